"""Whole walks: registers, memory, and images that may be damaged.

An input is, little-endian: the number of a world (an image); flags; the width of addresses; how
many registers follow; 8 bytes where the stack's memory starts; pc; the registers, 8 bytes each;
how many patches of the image follow; for each its place (4 bytes), its length (1) and its bytes;
and the stack's memory. Of a damaged image nothing is remembered from input to input.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from struct import pack, unpack_from

from fuzz.mutation import Mutation, place, write_number
from fuzz.programs import cached, elf_programs, macho_programs, part_of
from fuzz.target import ContractError, Target
from machtrace.errors import MachtraceError
from machtrace.formats.elf.contents import ElfFileContents
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.object_file import ObjectFile, Signature, signature
from machtrace.model.address import Avma, FileOffset, PacMask, Svma
from machtrace.model.image import BinaryImage, ImageList
from machtrace.model.memory import MemoryRegion, RegionMemory
from machtrace.model.registers import RegisterSet
from machtrace.model.snapshot import ThreadId, ThreadInfo, ThreadSnapshot
from machtrace.model.stack import Walk
from machtrace.unwinder.frame_limit import FrameLimit
from machtrace.unwinder.rule_cache import ImageRules, RuleCache
from machtrace.unwinder.sources.of_image import image_rules
from machtrace.unwinder.thread_walker import PythonWalker, ThreadWalker
from machtrace.unwinder.unwinder import thread_walker
from tests.support.emulated.run import STACK_SIZE, EmulatedRun, Moment

LIMIT = FrameLimit(200, 56)
_HEAD = 20
"""Bytes before the registers."""
_SAMPLES = 12
_KEPT_STACK = 0x500
_NO_REGISTER = (1 << 64) - 0x5A5A


@dataclass(frozen=True, slots=True)
class World:
    """A process with one image."""

    image: BinaryImage
    contents: ObjectFile
    regions: tuple[MemoryRegion, ...]
    """The loaded segments."""

    def patched(self, patches: Sequence[tuple[int, bytes]]) -> World:
        """The same with other bytes at some file offsets.

        Raises:
            MachtraceError: it is no image any more.
        """
        data = bytearray(self.contents.read_file(FileOffset(0), len(self.contents.data)))
        for offset, patch in patches:
            start = offset % len(data)
            data[start : start + len(patch)] = patch[: len(data) - start]
        return world_of(bytes(data), self.image)

    def rules(self) -> RuleCache:
        """The process's rules, with an empty cache."""
        return RuleCache(ImageList([self.image]), self.image.arch, self._sources)

    def _sources(self, _: BinaryImage) -> ImageRules:
        return image_rules(self.contents, self.image.arch)


def world_of(data: bytes, like: BinaryImage | None = None) -> World:
    """Return a process that has the file ``data`` loaded at its stated addresses."""
    contents: ObjectFile
    if signature(data) is Signature.ELF:
        contents = ElfFileContents(data, "fuzz")
        segments = [(s.address, s.offset, s.file_size) for s in contents.image.load_segments]
        start, size = contents.image.header_svma, contents.image.size
    else:
        contents = MachOFileContents(data, "fuzz")
        segments = [(s.vmaddr, s.fileoff, s.filesize) for s in contents.image.segments]
        text = contents.image.text_segment
        start, size = (Svma(0), 0) if text is None else (text.vmaddr, text.vmsize)
    image = like or BinaryImage(
        path="fuzz",
        uuid=None,
        arch=contents.image.arch,
        format=contents.format,
        load_address=Avma(start),
        header_svma=start,
        size=size,
    )
    regions = (MemoryRegion(Avma(at), data[low : low + count]) for at, low, count in segments)
    return World(image, contents, tuple(region for region in regions if region.data))


@cache
def worlds() -> tuple[World, ...]:
    """The programs that seeds are of."""
    machos = [bytes(program.data) for program in macho_programs()]
    elves = [
        bytes(program.read_file(FileOffset(0), len(program.data))) for program in elf_programs()
    ]
    return tuple(world_of(data) for data in (*machos, *elves))


@cache
def _known_rules(number: int) -> RuleCache:
    return worlds()[number].rules()


def run(data: bytes) -> None:
    """Walk, and see that the walk is what it promises to be."""
    if len(data) < _HEAD + 1:
        return
    number, _, width, count, base, pc = unpack_from("<4B2Q", data)
    number %= len(worlds())
    world = worlds()[number]
    stated = data[_HEAD : _HEAD + 8 * count]
    values = [
        None if value == _NO_REGISTER else value
        for value in unpack_from(f"<{len(stated) // 8}Q", stated)
    ]
    at = _HEAD + 8 * count
    patches: list[tuple[int, bytes]] = []
    for _ in range(data[at] if at < len(data) else 0):
        head = data[at + 1 : at + 6]
        if len(head) < 5:  # noqa: PLR2004 (a place and a length)
            break
        patches.append((int.from_bytes(head[:4], "little"), data[at + 6 : at + 6 + head[4]]))
        at += 5 + head[4]
    rules = _known_rules(number)
    if patches:
        world = world.patched(patches)
        rules = world.rules()
    arch = world.image.arch
    values += [base] * (arch.registers.sp + 1 - len(values))
    registers = RegisterSet(arch, Avma(pc), tuple(values[: len(arch.registers.names)]))
    stack = MemoryRegion(Avma(base), data[at + 1 :])
    thread = ThreadSnapshot(
        info=ThreadInfo(id=ThreadId(1), index=1), registers=registers, stack=stack
    )
    mask = PacMask.of_width(width % 65)
    expected = _walk(PythonWalker(rules, mask), thread, world)
    # Without the extension, Python again, with an empty cache: every rule is computed.
    other = _walk(thread_walker(world.rules(), arch, mask), thread, world)
    if expected != other:
        raise ContractError(f"Python's walk is {expected!r}, the extension's {other!r}")


def _walk(walker: ThreadWalker, thread: ThreadSnapshot, world: World) -> Walk:
    try:
        walked = walker.walk(thread, RegionMemory(world.regions), LIMIT)
    except MachtraceError as error:
        raise ContractError(f"walk raised {error!r}") from error
    if not walked.addresses or len(walked.addresses) > sum(LIMIT):
        raise ContractError(f"a walk of {len(walked.addresses)} addresses, at most {sum(LIMIT)}")
    return walked


def build(world: int, registers: RegisterSet, base: int, stack: bytes, *, width: int = 47) -> bytes:
    """An input of these parts, without patches."""
    values = [_NO_REGISTER if value is None else value for value in registers.values]
    head = pack("<4B2Q", world, 0, width, len(values), base, registers.pc)
    return head + pack(f"<{len(values)}Q", *(v & (1 << 64) - 1 for v in values)) + b"\0" + stack


def _seeds() -> Sequence[bytes]:
    output = cached("walks")
    if not output.exists():
        part = part_of(output)
        part.write_bytes(pickle.dumps(_sampled()))
        part.replace(output)
    seeds: list[bytes] = pickle.loads(output.read_bytes())  # noqa: S301 (written above)
    return seeds


def _sampled() -> list[bytes]:
    """Return moments of real runs; for ELF images, which are not run here, synthetic ones."""
    seeds: list[bytes] = []
    for number, world in enumerate(worlds()):
        if isinstance(world.contents, MachOFileContents):
            seeds += _moments(number, world.contents)
            continue
        arch, start = world.image.arch, world.image.load_address
        for offset in range(0, world.image.size, max(16, world.image.size // _SAMPLES)):
            stack = b"".join(
                pack("<Q", start + offset + 24 * word if word & 1 else 0x7000 + 8 * word)
                for word in range(64)
            )
            count = len(arch.registers.names)
            values = tuple(0x7000 + 16 * (n % 8) for n in range(count))
            seeds.append(
                build(number, RegisterSet(arch, Avma(start + offset), values), 0x7000, stack)
            )
    return seeds


def _moments(number: int, program: MachOFileContents) -> list[bytes]:
    inputs: dict[int, bytes] = {}

    def visit(moment: Moment) -> None:
        registers = moment.registers
        sp = (registers.sp or 0) - 0x80
        if registers.pc not in inputs and moment.callers:
            size = min(_KEPT_STACK, STACK_SIZE)
            try:
                stack = bytes(moment.memory.read(Avma(sp), size))
            except MachtraceError:
                return
            inputs[registers.pc] = build(number, registers, sp, stack)

    EmulatedRun(program).run(visit)
    kept_pcs = list(inputs)[:: max(1, len(inputs) // _SAMPLES)]
    return [inputs[pc] for pc in kept_pcs]


def _pointer(data: bytearray, random: Random) -> int:
    """A number that leads somewhere: into the stack, into code, or to an edge of either."""
    world = worlds()[data[0] % len(worlds())]
    base = int.from_bytes(data[4:12], "little")
    kind = random.randrange(8)
    if kind < 3:  # noqa: PLR2004 (three in eight)
        return base + (random.randrange(len(data)) & ~7)
    if kind < 6:  # noqa: PLR2004
        return world.image.load_address + random.randrange(max(1, world.image.size))
    if kind == 6:  # noqa: PLR2004
        tagged = base + (random.randrange(len(data)) & ~7) | 1 << 60
        return tagged if random.getrandbits(1) else random.getrandbits(64)
    return random.choice((0, 1, 8, 0xFFF, 0x1000, base, base - 8, 1 << 47, (1 << 64) - 8))


def _change_register(data: bytearray, random: Random) -> None:
    if len(data) > _HEAD:
        at = 12 + 8 * random.randrange(data[3] + 1)
        if at + 8 <= len(data):
            write_number(data, at, 8, _pointer(data, random))


def _stack_start(data: bytearray) -> int:
    at = _HEAD + 8 * data[3]
    for _ in range(data[at] if at < len(data) else 0):
        if at + 6 > len(data):
            break
        at += 5 + data[at + 5]
    return at + 1


def _change_stack(data: bytearray, random: Random) -> None:
    """Words of the stack, by pointers."""
    if len(data) <= _HEAD:
        return
    start = _stack_start(data)
    for _ in range(1 + random.randrange(4)):
        if start + 8 <= len(data):
            at = start + (random.randrange(len(data) - start) & ~7)
            if at + 8 <= len(data):
                write_number(data, at, 8, _pointer(data, random))


def _chain(data: bytearray, random: Random) -> None:
    """A chain of frame records, which may lead to where it has been."""
    if len(data) <= _HEAD:
        return
    start, base = _stack_start(data), int.from_bytes(data[4:12], "little")
    at = start + (random.randrange(max(1, len(data) - start)) & ~7)
    tag = 1 << 60 if random.getrandbits(2) == 0 else 0
    for _ in range(random.randrange(2, 12)):
        if at + 16 > len(data):
            break
        following = min(len(data) - 16, at + random.choice((16, 16, 32, 48, 0, -32)))
        write_number(data, at, 8, base + following - start | tag)
        write_number(data, at + 8, 8, _pointer(data, random))
        at = max(start, following)


def _patch(data: bytearray, random: Random) -> None:
    """Damage the image: a few bytes at one place, in the tables or anywhere."""
    if len(data) <= _HEAD:
        return
    at = _HEAD + 8 * data[3]
    if at >= len(data) or data[at] >= 8 or random.getrandbits(1):  # noqa: PLR2004
        return
    size = len(worlds()[data[0] % len(worlds())].contents.data)
    patch = random.randbytes(random.choice((1, 1, 2, 4, 4, 8)))
    if random.getrandbits(1):
        patch = random.choice((b"\0", b"\xff", b"\x7f", b"\1")) * len(patch)
    where = place(data, random) if random.getrandbits(1) else random.randrange(size)
    data[at] += 1
    data[at + 1 : at + 1] = pack("<IB", where, len(patch)) + patch


_MUTATIONS: tuple[Mutation, ...] = (
    *(_change_register, _change_register, _change_register),
    *(_change_stack, _change_stack, _change_stack, _chain, _patch),
)

TARGET = Target("walker", run, _seeds, _MUTATIONS)
