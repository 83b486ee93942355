"""The analysis of instructions: any bytes as the code of an image.

An input is a byte that picks the machine, one with a number of functions, for each two bytes with
its start in the code, and the code.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from random import Random
from struct import pack, pack_into, unpack_from

from fuzz.frames import try_rule
from fuzz.mutation import Mutation, insert_token
from fuzz.programs import macho_programs
from fuzz.target import Target
from machtrace.errors import MachtraceError, MemoryReadError
from machtrace.model.address import FileOffset, Svma
from machtrace.model.arch import Arch
from machtrace.unwinder.arch.arm32.analysis import ArmInstructionRules, InstructionSets
from machtrace.unwinder.arch.arm64.analysis import InstructionRules
from machtrace.unwinder.arch.x86.analysis import X86InstructionRules
from machtrace.unwinder.arch.x86.registers import MODE_32, MODE_64
from machtrace.unwinder.code.code_check import CodeCheck
from machtrace.unwinder.functions.bounds import FunctionBounds
from machtrace.unwinder.rules import CallSiteRules, RuleSource, frame_pointer_rule
from machtrace.unwinder.step_budget import WalkBudgets

CODE_AT = Svma(0x1000)
MACHINES = (Arch.ARM64, Arch.X86_64, Arch.I386, Arch.ARMV7)
_LOOKUPS = 2
_SEED_SIZE = 96
"""Bytes of code of a seed, but that the last function is whole."""
_MAX_BYTES = 240
"""Bytes of a seed, but for a few: analysis takes time by the size."""
_FEW = 12


class Code:
    """Bytes as code, cut into functions. An image's contents, and what knows its functions."""

    source = "fuzz"

    def __init__(self, code: memoryview, cuts: Sequence[int]) -> None:
        """``cuts``: where functions start, in bytes from the start of ``code``."""
        self._code = code
        ends = {0, *(cut for cut in cuts if cut < len(code)), len(code)}
        self._cuts = [CODE_AT + cut for cut in sorted(ends)]

    def read_svma(self, address: Svma, size: int, /) -> memoryview:
        """See ImageContents."""
        start = address - CODE_AT
        if start < 0 or size < 0 or start + size > len(self._code):
            raise MemoryReadError(address, size)
        return self._code[start : start + size]

    def read_file(self, offset: FileOffset, size: int, /) -> memoryview:
        """See ImageContents."""
        return self.read_svma(Svma(offset), size)

    def function_at(self, address: Svma) -> tuple[Svma, Svma] | None:
        """The (start, end) of the function that holds ``address``."""
        index = bisect_right(self._cuts, address) - 1
        if not 0 <= index < len(self._cuts) - 1:
            return None
        return Svma(self._cuts[index]), Svma(self._cuts[index + 1])

    def sources(self, arch: Arch) -> tuple[tuple[RuleSource, ...], CodeCheck | None]:
        """Return the rule sources for this code, and the code check, with a walk's budgets."""
        budgets = WalkBudgets()
        if arch is Arch.ARMV7:
            arm = ArmInstructionRules(self, self.function_at, InstructionSets({}))
            arm.draw_on(budgets)
            return (arm, CallSiteRules(arm)), None
        if arch is not Arch.ARM64:
            mode = MODE_32 if arch is Arch.I386 else MODE_64
            x86 = X86InstructionRules(self, self.function_at, mode=mode)
            x86.draw_on(budgets)
            return (x86, CallSiteRules(x86)), CodeCheck(x86, self, arch)
        sections = [(CODE_AT, CODE_AT + len(self._code))]
        rules = InstructionRules(self, self.function_at, sections)
        rules.draw_on(budgets)
        return (rules, CallSiteRules(rules)), CodeCheck(rules, self, arch)


def run(data: bytes) -> None:
    """Look rules up at some instructions, as interrupted there and as inside a call."""
    if len(data) < 2:  # noqa: PLR2004 (the two bytes that every input has)
        return
    arch = MACHINES[data[0] % len(MACHINES)]
    start = 2 + 2 * data[1]
    cuts = [int.from_bytes(data[at : at + 2], "little") for at in range(2, start, 2)]
    code = memoryview(data)[start:]
    sources, code_check = Code(code, cuts).sources(arch)
    for lookup in range(_LOOKUPS):
        address = Svma(CODE_AT + len(code) * lookup // _LOOKUPS + (0 if lookup & 1 else 4))
        for source in sources:
            for interrupted in (True, False):
                try:
                    try_rule(source.rule_for(address, interrupted=interrupted), arch)
                except MachtraceError:
                    continue
        if code_check is not None:
            code_check.objection(address, frame_pointer_rule(arch))


def build(machine: int, cuts: Sequence[int], code: bytes) -> bytes:
    """An input of these parts."""
    kept = [cut for cut in cuts if 0 < cut < 1 << 16][:255]
    return bytes((machine, len(kept))) + pack(f"<{len(kept)}H", *kept) + code


def _seeds() -> Sequence[bytes]:
    seeds = []
    for program in macho_programs():
        section = program.image.section("__TEXT", "__text")
        if section is None:
            continue
        bounds = FunctionBounds.of_macho(program)
        code = bytes(program.read_svma(section.address, section.size))
        machine = MACHINES.index(program.image.arch)
        at = 0
        while at < section.size:
            upto, cuts = at, []
            while upto < min(section.size, at + _SEED_SIZE):
                cuts.append(upto - at)
                found = bounds.at(Svma(section.address + upto))
                upto = section.size if found is None else found[1] - section.address
            seeds.append(build(machine, cuts, code[at:upto]))
            at = upto
    large = [seed for seed in seeds if len(seed) > _MAX_BYTES]
    small = [seed for seed in seeds if len(seed) <= _MAX_BYTES]
    return [*small, *sorted(large, key=len)[: len(small) // _FEW]]


_ARM64_WORDS = tuple(
    pack("<I", word)
    for word in (
        *(0xA9BF7BFD, 0xA8C17BFD, 0x910003FD, 0x910003BF, 0xD10083FF, 0x910083FF, 0xD65F03C0),
        *(0xD503233F, 0xD50323BF, 0xD65F0FFF, 0xAA1E03E9, 0xAA0903FE, 0x9100C3E9, 0x9100013F),
        *(0xCB2963FF, 0x8B2963FF, 0xD2A00029, 0xD61F0200, 0xD63F0100, 0xD4200020, 0x927CEFFF),
        *(0xF90007E8, 0xA9004FF4, 0x6D0023E9, 0xF84107FE, 0xF81F0FFE, 0x94000002, 0x14000002),
        *(0x54000040, 0xB4000048, 0x36000048, 0x17FFFFFE, 0x97FFFFFE, 0x54FFFFC0, 0x00000000),
        *(0xA9BE4FF4, 0xA8C24FF4, 0xD10043E9, 0x6DBF23E9, 0x9400FFFF, 0xD2800009, 0xF2C00029),
    )
)
_X86_64_CODE = (
    *(b"\x55", b"\x48\x89\xe5", b"\x5d", b"\xc3", b"\xc9", b"\x41\x57", b"\x41\x5f", b"\x50"),
    *(b"\x48\x83\xec\x20", b"\x48\x83\xc4\x20", b"\x48\x81\xec\x00\x10\x00\x00", b"\xc2\x08\x00"),
    *(b"\x4c\x8d\x54\x24\x08", b"\x48\x83\xe4\xe0", b"\x41\xff\x72\xf8", b"\x48\x8d\x65\xd8"),
    *(b"\x74\x02", b"\x75\xf0", b"\xeb\x04", b"\xeb\xfe", b"\xe9\x00\x00\x00\x00", b"\xff\xe0"),
    *(b"\xe8\x00\x00\x00\x00", b"\xe8\xf0\xff\xff\xff", b"\xff\xd0", b"\x0f\x0b", b"\xcc"),
    *(b"\x0f\x84\x10\x00\x00\x00", b"\x48\x8b\x45\xf8", b"\x48\x89\x5d\xf0", b"\x68\0\0\0\0"),
    *(b"\xc5\xf8\x77", b"\x62\xf1\x7c\x48\x28\x00", b"\x66\x66\x66\x2e\x0f\x1f\x84\0\0\0\0\0"),
    *(b"\x48\x0f\xba\xed\x3c", b"\xf3\x0f\x1e\xfa", b"\x48\xb8", b"\x8f\xc0", b"\xc8\x10\x00\x00"),
)
_ARM_CODE = (
    *(b"\x80\xb5", b"\xf0\xb5", b"\x03\xaf", b"\x80\xbd", b"\xf0\xbd", b"\x70\x47", b"\x82\xb0"),
    *(b"\x02\xb0", b"\x08\xbf", b"\x0c\xbf", b"\xdf\xe8\x00\xf0", b"\xdf\xe8\x11\xf0", b"\x00\xde"),
    *(b"\x2d\xe9\x00\x0d", b"\xbd\xe8\x00\x8d", b"\x00\xf0\x01\xf8", b"\x01\xe0", b"\xfe\xe7"),
    *(b"\x04\xe0\x2d\xe5", b"\x04\xf0\x9d\xe4", b"\x1e\xff\x2f\xe1", b"\xf0\x48\x2d\xe9"),
    *(b"\x10\xd0\x4d\xe2", b"\x00\x00\x00\xeb", b"\x00\x00\x00\x0a", b"\x00\xf1\x9f\xe7"),
    *(b"\x2d\xed\x04\x8b", b"\xbd\xec\x04\x8b", b"\x6f\x46", b"\xbd\x46", b"\xa7\xf1\x0c\x04"),
)


def _in_code(change: Callable[[bytearray, int, Random], None], *machines: int) -> Mutation:
    """A mutation of the code only, of some machines or of any."""

    def mutate(data: bytearray, random: Random) -> None:
        if len(data) < 8 or (machines and data[0] % len(MACHINES) not in machines):  # noqa: PLR2004
            return
        start = 2 + 2 * data[1]
        if start + 4 < len(data):
            change(data, start, random)

    return mutate


def _word_at(data: bytearray, start: int, random: Random) -> int:
    return start + 4 * random.randrange(max(1, (len(data) - start) // 4))


def _write_word(data: bytearray, start: int, random: Random) -> None:
    at = _word_at(data, start, random)
    data[at : at + (4 if random.getrandbits(1) else 0)] = random.choice(_ARM64_WORDS)


def _retarget(data: bytearray, start: int, random: Random) -> None:
    """A branch, to somewhere in the code or just outside of it."""
    at = _word_at(data, start, random)
    if at + 4 > len(data):
        return
    distance = (random.randrange(start, len(data) + 8) - at) // 4
    kinds = (
        0x14000000 | distance & 0x3FFFFFF,
        0x94000000 | distance & 0x3FFFFFF,
        0x54000000 | (distance & 0x7FFFF) << 5,
        0xB4000000 | (distance & 0x7FFFF) << 5,
    )
    pack_into("<I", data, at, random.choice(kinds))


def _swap_words(data: bytearray, start: int, random: Random) -> None:
    first, second = _word_at(data, start, random), _word_at(data, start, random)
    if max(first, second) + 4 <= len(data):
        words = unpack_from("<I", data, first)[0], unpack_from("<I", data, second)[0]
        pack_into("<I", data, second, words[0])
        pack_into("<I", data, first, words[1])


def _retarget_x86(data: bytearray, start: int, random: Random) -> None:
    at = random.randrange(start, len(data))
    distance = random.randrange(start, len(data)) - at
    if random.getrandbits(1):
        raw = bytes((random.choice((0x74, 0xEB, 0xE3)), (distance - 2) & 0xFF))
    else:
        raw = random.choice((b"\xe8", b"\xe9", b"\x0f\x84"))
        raw += ((distance - len(raw) - 4) & 0xFFFFFFFF).to_bytes(4, "little")
    data[at : at + len(raw)] = raw


def _add_cut(data: bytearray, start: int, random: Random) -> None:
    """One more function."""
    if data[1] < 255:  # noqa: PLR2004 (the largest byte)
        data[1] += 1
        data[2:2] = (random.randrange(len(data) - start) & ~3 & 0xFFFF).to_bytes(2, "little")


def _repeat_block(data: bytearray, start: int, random: Random) -> None:
    """A few instructions many times, as loops unrolled without end."""
    at = _word_at(data, start, random)
    block = bytes(data[at : at + 4 * random.randrange(1, 9)])
    data[at:at] = block * random.randrange(1, 12)


_MUTATIONS: tuple[Mutation, ...] = (
    _in_code(_write_word, 0),
    _in_code(_write_word, 0),
    _in_code(_retarget, 0),
    _in_code(_retarget, 0),
    _in_code(_swap_words, 0),
    _in_code(_retarget_x86, 1, 2),
    _in_code(_retarget_x86, 1, 2),
    _in_code(lambda data, _, random: insert_token(_X86_64_CODE)(data, random), 1, 2),
    _in_code(lambda data, _, random: insert_token(_ARM_CODE, unit=2)(data, random), 3),
    _in_code(_add_cut),
    _in_code(_repeat_block),
)

TARGET = Target("instructions", run, _seeds, _MUTATIONS)
