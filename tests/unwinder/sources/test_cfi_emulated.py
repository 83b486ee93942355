"""Call-frame rules of real ELF programs give the true stack at every instruction.

Each program runs in an emulator. Its true stack needs no unwinder: a call pushes its return
address, and arriving there with the same stack pointer pops it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from machtrace.errors import MemoryReadError
from machtrace.formats.elf.contents import ElfFileContents
from machtrace.formats.elf.symtab import parse_dynamic_symbols
from machtrace.model.address import Avma, PacMask, Svma
from machtrace.model.arch import Arch
from machtrace.model.registers import RegisterSet
from machtrace.unwinder.rules import RuleSource, UnwindRule
from machtrace.unwinder.sources.cfi import CallFrameRules
from machtrace.unwinder.sources.exidx import ExceptionTableRules
from machtrace.unwinder.sources.of_elf import elf_rules
from machtrace.unwinder.sources.plt import LinkageStubRules
from machtrace.unwinder.step import step
from tests.support.compilers.executables import compile_elf

pytestmark = [pytest.mark.emulated, pytest.mark.peer]

unicorn = pytest.importorskip("unicorn", reason="the emulator, unicorn, is not installed")
capstone = pytest.importorskip("capstone", reason="capstone, which knows calls, is not installed")

PROGRAMS = Path(__file__).parents[2] / "formats" / "dwarf" / "programs"
OUTSIDE = 0x3000_0000
STACK, STACK_SIZE = 0x4000_0000, 0x10_0000
PAGE = 0x1000
RESOLVER = OUTSIDE + PAGE
RESOLVERS = {
    Arch.X86_64: bytes.fromhex("4883c410 c3"),  # add rsp, 16; ret
    Arch.I386: bytes.fromhex("83c408 c3"),  # add esp, 8; ret
    Arch.ARM64: bytes.fromhex("f07bc1a8 c0035fd6"),  # ldp x16, x30, [sp], #16; ret
}
INSTRUCTIONS = 30_000
EXCEPTIONS = ("-g0", "-funwind-tables", "-s")
"""Without what is for debuggers, and so with no more than ``.ARM.exidx``."""
NO_FRAME_POINTER = ("-O2", "-fomit-frame-pointer")

CASES = {
    "x86_64": ("x86_64-linux-musl", NO_FRAME_POINTER),
    "x86_64-small": ("x86_64-linux-musl", ("-Os",)),
    "x86_64-frame-pointer": ("x86_64-linux-musl", ("-O1", "-fno-omit-frame-pointer")),
    "i386": ("x86-linux-musl", NO_FRAME_POINTER),
    "arm64": ("aarch64-linux-musl", NO_FRAME_POINTER),
    "arm64-signed": ("aarch64-linux-musl", ("-O2", "-mbranch-protection=standard")),
    "arm": ("arm-linux-musleabihf", ("-g", *NO_FRAME_POINTER)),
    "arm-exceptions": ("arm-linux-musleabihf", (*EXCEPTIONS, *NO_FRAME_POINTER)),
    "arm-exceptions-small": ("arm-linux-musleabihf", (*EXCEPTIONS, "-Os")),
    "thumb-exceptions": ("thumb-linux-musleabihf", (*EXCEPTIONS, *NO_FRAME_POINTER)),
    "thumb-exceptions-gnu": ("thumb-linux-gnueabihf", (*EXCEPTIONS, "-O0")),
}


@dataclass(frozen=True)
class Caller:
    """A calling function, with its registers at the call."""

    return_address: int
    sp: int
    registers: RegisterSet


def _emulator(arch: Arch, *, is_thumb: bool) -> tuple[Any, Any, str]:
    """Return the emulator, the disassembler, and their names of registers."""
    if arch is Arch.X86_64:
        machine = unicorn.UC_ARCH_X86, unicorn.UC_MODE_64
        decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    elif arch is Arch.I386:
        machine = unicorn.UC_ARCH_X86, unicorn.UC_MODE_32
        decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_32)
    elif arch is Arch.ARM64:
        machine = unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM
        decoder = capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)
    else:
        machine = unicorn.UC_ARCH_ARM, unicorn.UC_MODE_ARM
        mode = capstone.CS_MODE_THUMB if is_thumb else capstone.CS_MODE_ARM
        decoder = capstone.Cs(capstone.CS_ARCH_ARM, mode)
    prefix = "UC_X86_REG_" if machine[0] == unicorn.UC_ARCH_X86 else ""
    prefix = prefix or ("UC_ARM64_REG_" if arch is Arch.ARM64 else "UC_ARM_REG_")
    decoder.detail = True
    return unicorn.Uc(*machine), decoder, prefix


def _register_ids(arch: Arch, prefix: str) -> Mapping[int, int]:
    """Return the emulator's numbers, by DWARF number."""
    from unicorn import arm64_const, arm_const, x86_const

    constants = {**vars(x86_const), **vars(arm64_const), **vars(arm_const)}
    names = ((n, name) for n, name in enumerate(arch.registers.names) if name)
    aliases = {"fp": "X29", "lr": "X30"} if arch is Arch.ARM64 else {}
    found = {n: constants.get(prefix + aliases.get(name, name.upper())) for n, name in names}
    return {n: identifier for n, identifier in found.items() if identifier is not None and n < 64}


class Run:
    """One run of a program, which compares at every instruction."""

    def __init__(self, contents: ElfFileContents, *, has_analysis: bool = False) -> None:
        """``has_analysis``: query all sources of the image, and not its tables alone."""
        self._contents = contents
        self._has_analysis = has_analysis
        self._arch = contents.image.arch
        self._is_thumb = bool(contents.image.header.entry & 1) and self._arch is Arch.ARM
        self._cpu, self._decoder, prefix = _emulator(self._arch, is_thumb=self._is_thumb)
        self._ids = _register_ids(self._arch, prefix)
        sources = (
            CallFrameRules.of_elf(contents),
            LinkageStubRules.of_elf(contents),
            ExceptionTableRules.of_elf(contents),
        )
        self._sources: list[RuleSource] = [source for source in sources if source is not None]
        if has_analysis:
            self._sources = list(elf_rules(contents, self._arch).sources)
        self._known: dict[tuple[int, bool], UnwindRule | None] = {}
        self._pending: Caller | None = None
        self._callers: list[Caller] = []
        self.instructions = 0
        self.compared = 0
        self.deepest = 0
        self.stubs = 0
        self._stubs = [s for s in contents.image.sections if s.name == ".plt"]
        self.failure: BaseException | None = None

    def read(self, address: Avma, size: int, /) -> bytes:
        """Read the emulator's memory."""
        try:
            return bytes(self._cpu.mem_read(address, size))
        except unicorn.UcError:
            raise MemoryReadError(address, size) from None

    def run(self, begin: int) -> None:
        """Run from ``begin`` until it returns."""
        self._load()
        self._cpu.hook_add(unicorn.UC_HOOK_CODE, self._at)
        self._cpu.emu_start(begin, OUTSIDE, count=INSTRUCTIONS)
        if self.failure is not None:
            raise self.failure

    def _load(self) -> None:
        cpu, numbers = self._cpu, self._arch.registers
        pages = set()
        for segment in self._contents.image.load_segments:
            pages |= set(range(segment.address // PAGE, -(-segment.end // PAGE)))
        for page in pages:
            cpu.mem_map(page * PAGE, PAGE)
        for segment in self._contents.image.load_segments:
            data = self._contents.read_svma(segment.address, segment.file_size)
            cpu.mem_write(segment.address, bytes(data))
        cpu.mem_map(STACK, STACK_SIZE)
        cpu.mem_map(OUTSIDE, 2 * PAGE)
        table = self._contents.image.section(".got.plt")
        if table is not None:
            # The loader's part of every lazy call: it finds no function, and returns.
            cpu.mem_write(RESOLVER, RESOLVERS[self._arch])
            pointer = RESOLVER.to_bytes(self._arch.pointer_size, "little")
            cpu.mem_write(table.address + 2 * len(pointer), pointer)
        sp = STACK + STACK_SIZE - 0x100
        size = self._arch.pointer_size
        if numbers.lr is None:
            sp -= size
            cpu.mem_write(sp, OUTSIDE.to_bytes(size, "little"))
        else:
            cpu.reg_write(self._ids[numbers.lr], OUTSIDE)
        cpu.reg_write(self._ids[numbers.sp], sp)
        outermost = sp if numbers.lr is not None else sp + size
        self._callers = [Caller(OUTSIDE, outermost, self._registers(OUTSIDE))]

    def _registers(self, pc: int) -> RegisterSet:
        values: list[int | None] = [None] * len(self._arch.registers.names)
        for number, identifier in self._ids.items():
            values[number] = self._cpu.reg_read(identifier)
        return RegisterSet(self._arch, Avma(pc), tuple(values))

    def _at(self, _: object, address: int, size: int, __: object) -> None:
        try:
            self._look(address, size)
        except BaseException as error:  # noqa: BLE001 (the emulator would swallow it)
            self.failure = error
            self._cpu.emu_stop()

    def _look(self, address: int, size: int) -> None:
        registers = self._registers(address)
        if self._pending is not None and address != self._pending.return_address:
            self._callers.append(self._pending)
        while (address, registers.sp) == (self._callers[-1].return_address, self._callers[-1].sp):
            self._callers.pop()
        self.instructions += 1
        self.deepest = max(self.deepest, len(self._callers))
        code = bytes(self._cpu.mem_read(address, size))
        decoded = next(self._decoder.disasm(code, address))
        is_call = decoded.group(capstone.CS_GRP_CALL) or decoded.mnemonic in ("bl", "blx", "blr")
        if address // PAGE == RESOLVER // PAGE:
            return
        self.stubs += any(address in range(s.address, s.end) for s in self._stubs)
        # On arm compilers describe the frame of a function's body only, not its setup.
        if is_call or self._arch is not Arch.ARM or self._has_analysis:
            self.compared += 1
            self._compare(registers)
        sp = registers.sp or 0
        self._pending = Caller(address + size, sp, registers) if is_call else None

    def _compare(self, registers: RegisterSet) -> None:
        interrupted, where = True, f"at {registers.pc:#x}"
        for caller in reversed(self._callers):
            lookup = registers.pc if interrupted else registers.pc - 1
            rule = self._rule(lookup, interrupted=interrupted)
            assert rule is not None, where
            recovered = step(rule, registers, self, PacMask())
            assert isinstance(recovered, RegisterSet), where
            assert recovered.pc == caller.return_address, where
            assert recovered.sp == caller.sp, where
            for number in self._arch.registers.callee_saved:
                # Registers that a function preserves for its callers; no more is required of it.
                if number in self._ids and number != self._arch.registers.sp:
                    assert recovered.get(number) == caller.registers.get(number), (where, number)
            registers, interrupted = recovered, False

    def _rule(self, lookup: int, *, interrupted: bool) -> UnwindRule | None:
        key = (lookup, interrupted)
        if key not in self._known:
            found = (s.rule_for(Svma(lookup), interrupted=interrupted) for s in self._sources)
            self._known[key] = next((rule for rule in found if rule is not None), None)
        return self._known[key]


@pytest.mark.parametrize("case", CASES)
def test_every_instruction_has_the_true_stack(case: str, tmp_path: Path) -> None:
    """Return addresses, stack pointers and every register that calls preserve.

    On arm, at every call.
    """
    if find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed; it compiles the programs")
    target, options = CASES[case]
    path = compile_elf(
        [PROGRAMS / "frames.c", PROGRAMS / "start.c"],
        tmp_path / case,
        target=target,
        options=("-static", "-Wl,-e,begin", *options),
    )
    contents = ElfFileContents(path.read_bytes(), case)
    if "exceptions" in case:
        assert CallFrameRules.of_elf(contents) is None, "there is nothing else to go by"
    run = Run(contents)
    run.run(contents.image.header.entry)
    assert 200 < run.instructions < INSTRUCTIONS
    assert run.compared > 20
    assert run.deepest >= 4


@pytest.mark.parametrize("is_stripped", [False, True])
@pytest.mark.parametrize("case", [case for case in CASES if case.startswith(("arm-", "thumb"))])
def test_every_instruction_of_arm_has_the_true_stack(
    case: str, tmp_path: Path, *, is_stripped: bool
) -> None:
    """By instruction analysis where tables are only right at calls; functions have no symbols."""
    if find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed; it compiles the programs")
    target, options = CASES[case]
    options = tuple(option for option in options if option != "-s" or is_stripped)
    path = compile_elf(
        [PROGRAMS / "frames.c", PROGRAMS / "start.c"],
        tmp_path / case,
        target=target,
        options=("-static", "-Wl,-e,begin", *options),
    )
    contents = ElfFileContents(path.read_bytes(), case)
    run = Run(contents, has_analysis=True)
    run.run(contents.image.header.entry)
    assert 200 < run.compared == run.instructions < INSTRUCTIONS


@pytest.mark.parametrize("case", ["x86_64", "i386", "arm64"])
def test_every_instruction_of_a_lazy_stub_has_the_true_stack(case: str, tmp_path: Path) -> None:
    """Its linker gives stubs no call-frame information: their instructions are analysed."""
    if find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed; it compiles the programs")
    target, options = CASES[case]
    options = ("-shared", *options)
    path = compile_elf([PROGRAMS / "frames.c"], tmp_path / case, target=target, options=options)
    contents = ElfFileContents(path.read_bytes(), case)
    rows = parse_dynamic_symbols(contents)
    run = Run(contents)
    run.run(int(rows.addresses[rows.names().index("deep")]))
    assert run.instructions < INSTRUCTIONS
    # By the shortest way on x86: a jump, a push, a jump to the start, a push, a jump.
    assert run.stubs >= 5
