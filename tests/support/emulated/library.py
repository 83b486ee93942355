"""A Mach-O library in an emulator: its functions can be called, and what it imports is ours.

Everything that the library calls outside of itself is a function in Python. Lazy stubs are bound
as dyld did it, by ``dyld_stub_binder`` when they are first called, so that a test can see when.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from struct import pack

from unicorn.unicorn_const import UC_HOOK_CODE

# What ``unicorn`` names the same: type checkers see the classes for Python 2 there.
from unicorn.unicorn_py3.unicorn import Uc, UcContext

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.fixups.bind_opcodes import BindReader, BindTable
from machtrace.formats.macho.fixups.rebase_opcodes import rebased_pointers, slid_segment
from tests.support.emulated.cpu import EmulatedCpu, emulated_cpu
from tests.support.emulated.dyld import symbols_of

BINDER = "dyld_stub_binder"
_PAGE = 0x4000
_SMALL_PAGE = 0x1000
_IMAGE = 0x5_0000_0000
_OUTSIDE = 0x6_0000_0000
"""A slot for each function that is imported, and before them two that are returned to."""
_SLOT = 16
_VARIABLES = 0x6_1000_0000
_HEAP = 0x7_0000_0000
_STACKS = 0x8_0000_0000
_STACK_SIZE = 0x100000
_STAY = {"arm64": bytes.fromhex("00000014"), "x86_64": bytes.fromhex("ebfe")}
"""A jump to itself: nothing at a slot is ever run."""
_BUDGET = 5_000_000
"""Instructions after which a call has gone astray."""

Steps = Generator[tuple[int, Sequence[int]], int, int]
"""A function that calls back: yields (address, arguments), is sent results, returns."""


@dataclass(frozen=True, slots=True)
class _Convention:
    """How a function is called; registers by DWARF number."""

    arguments: tuple[int, ...]
    result: int
    second_result: int
    link: int | None
    """The register with the return address; without one it is on the stack."""
    helper_number: int
    """The offset in a stub helper of the number by which the binder finds the pointer to bind."""


_CONVENTIONS = {
    "arm64": _Convention(tuple(range(8)), 0, 1, 30, 8),
    "x86_64": _Convention((5, 4, 1, 2, 8, 9), 0, 1, None, 1),
}


class EmulatedMemoryBlock:
    """Reads and writes of a library's memory."""

    __slots__ = ("_uc",)

    def __init__(self, uc: Uc) -> None:
        self._uc = uc

    def read(self, address: int, size: int) -> bytes:
        """Bytes, all of them."""
        return bytes(self._uc.mem_read(address, size)) if size else b""

    def write(self, address: int, data: bytes) -> None:
        """Write all of ``data``."""
        self._uc.mem_write(address, data)

    def word(self, address: int, size: int = 8) -> int:
        """Read an unsigned number."""
        return int.from_bytes(self.read(address, size), "little")

    def set_word(self, address: int, value: int, size: int = 8) -> None:
        """Write a number, of which as much as fits."""
        self.write(address, (value % (1 << 8 * size)).to_bytes(size, "little"))

    def string(self, address: int) -> bytes:
        """Return the bytes before a NUL."""
        found = bytearray()
        while (byte := self.read(address + len(found), 1)) != b"\0":
            found += byte
        return bytes(found)


Function = Callable[[Sequence[int]], "int | Steps"]
"""An imported function: takes the registers of arguments, returns the result."""


@dataclass(slots=True)
class Call:
    """A call of one of the library's functions, on a stack of its own."""

    context: UcContext
    """While it does not run."""
    waiting: list[tuple[Steps, int, int]] = field(default_factory=list)
    """Steps, sp and return address of imported functions that call back."""
    result: tuple[int, int] | None = None
    """Its two registers of results, once it has returned."""


class EmulatedLibrary:
    """A library, loaded, on one CPU."""

    def __init__(
        self,
        contents: MachOFileContents,
        functions: Mapping[str, Function],
        variables: Mapping[str, bytes],
        observe: Callable[[str], None],
    ) -> None:
        """Load it; nothing of it runs.

        Args:
            contents: an arm64 or x86_64 library, with bind opcodes.
            functions: what it imports to call, by symbol. One that is missing is missed only by
                a call.
            variables: what else it imports, by symbol.
            observe: called before every imported function, and before the binder.
        """
        self._contents = contents
        arch = contents.image.arch
        self.cpu: EmulatedCpu = emulated_cpu(arch)
        self._convention = _CONVENTIONS[arch.value]
        self.uc = self.cpu.uc
        self.memory = EmulatedMemoryBlock(self.uc)
        self._functions = functions
        self._observe = observe
        self._slots: list[str] = ["", "back"]
        self._stay = _STAY[arch.value]
        self._lazy: list[tuple[int, str]] = []
        """Places and names of pointers that are bound by the binder."""
        self._stack_count = 0
        self._stacks_mapped = 0
        self._heap_end = _HEAP
        self.uc.mem_map(_OUTSIDE, _PAGE)
        self.uc.hook_add(UC_HOOK_CODE, self._come_to_slot, begin=_OUTSIDE, end=_OUTSIDE + _PAGE - 1)
        self._fresh = self.uc.context_save()
        self._load(variables)
        self._symbols = symbols_of(contents)

    # --- memory ---

    @property
    def image(self) -> range:
        """From its header to the end of its segments."""
        parsed = self._contents.image
        end = max(segment.vmaddr + segment.vmsize for segment in parsed.segments)
        return range(_IMAGE + parsed.header_svma, _IMAGE + end)

    def address(self, symbol: str) -> int:
        """Return the address of one of its symbols."""
        return _IMAGE + self._symbols[symbol]

    def allocate(self, size: int) -> int:
        """New memory, zeroed, and beside it some that is not there."""
        start = self._heap_end
        pages = -(-max(size, 1) // _PAGE) * _PAGE
        self.uc.mem_map(start, pages)
        self._heap_end = start + pages + _PAGE
        return start

    def free(self, address: int, size: int) -> None:
        """Take memory back."""
        self.uc.mem_unmap(address, -(-max(size, 1) // _PAGE) * _PAGE)

    def _load(self, variables: Mapping[str, bytes]) -> None:
        pointers = rebased_pointers(self._contents)
        for segment in self._contents.image.segments:
            start = segment.vmaddr + _IMAGE
            self.uc.mem_map(start, -(-segment.vmsize // _SMALL_PAGE) * _SMALL_PAGE)
            self.memory.write(start, slid_segment(self._contents, segment, pointers, _IMAGE))
        places: dict[str, int] = {}
        self.uc.mem_map(_VARIABLES, _PAGE)
        at = _VARIABLES
        for name, value in variables.items():
            self.memory.write(at, value)
            places[name] = at
            at += -(-len(value) // _SLOT) * _SLOT
        info = self._contents.image.dyld_info
        assert info is not None, "the library has no bind opcodes"
        for table in BindTable.all_of(info):
            for place, name in self._binds(table):
                if table.is_lazy:
                    # zig's linker leaves the numbers of helpers away: they are of these places.
                    number = self.memory.word(place) + self._convention.helper_number
                    self.memory.set_word(number, len(self._lazy), 4)
                    self._lazy.append((place, name))
                else:
                    self.memory.set_word(place, places.get(name) or self._slot(name))

    def _binds(self, table: BindTable) -> Iterator[tuple[int, str]]:
        """Where pointers are to be bound, and to what."""
        reader = BindReader(self._contents)
        reader.run(table)
        rows = reader.rows()
        for place, symbol in zip(rows.places.tolist(), rows.symbols.tolist(), strict=True):
            yield place + _IMAGE, rows.names[symbol]

    def _slot(self, name: str) -> int:
        if name not in self._slots:
            self._slots.append(name)
        address = _OUTSIDE + _SLOT * self._slots.index(name)
        self.memory.write(address, self._stay)
        return address

    # --- calling ---

    def call(self, symbol: str, *arguments: int) -> int:
        """Call a function, and run it to its end.

        Raises:
            AssertionError: it goes astray, or an import is not there.
        """
        return self.call_for_two(symbol, *arguments)[0]

    def call_for_two(self, symbol: str, *arguments: int) -> tuple[int, int]:
        """Call a function that returns a structure of two words."""
        call = self.begin(self.address(symbol), *arguments)
        self.run(call)
        assert call.result is not None, f"{symbol} did not return"
        self._stack_count -= 1
        return call.result

    @property
    def stack_of_next_call(self) -> range:
        """The memory that the next call has for its stack."""
        top = _STACKS + (self._stack_count + 1) * 2 * _STACK_SIZE
        return range(top - _STACK_SIZE, top)

    def begin(self, function: int, *arguments: int) -> Call:
        """Return a call that has not run yet."""
        stack = self.stack_of_next_call
        top = stack.stop
        self._stack_count += 1
        if self._stack_count > self._stacks_mapped:
            self._stacks_mapped = self._stack_count
            self.uc.mem_map(stack.start, _STACK_SIZE)
        self.uc.context_restore(self._fresh)
        self.cpu.write(self.cpu.arch.registers.sp, top - _SLOT)
        self._go(function, arguments, _OUTSIDE)
        return Call(self.uc.context_save())

    def run(self, call: Call, count: int | None = None) -> bool:
        """Continue a call, to its end or for ``count`` instructions; whether it has ended.

        What is called outside counts as an instruction.
        """
        self.uc.context_restore(call.context)
        if count is None:
            while call.result is None:
                assert self._run_on(call, _BUDGET), "a call went astray"
        for _ in range(count or 0):
            if call.result is None:
                self._run_on(call, 1)
        call.context = self.uc.context_save()
        return call.result is not None

    def _run_on(self, call: Call, count: int) -> bool:
        """Run to the next call outside, or for ``count`` instructions; whether it reached one."""
        self._at: int | None = None
        self.uc.emu_start(self.cpu.program_counter, 0, count=count)
        if self._at is None:
            return False
        self._outside(call, self._slots[(self._at - _OUTSIDE) // _SLOT])
        return True

    def _come_to_slot(self, uc: Uc, address: int, _size: int, _: object) -> None:
        self._at = address
        uc.emu_stop()

    def _outside(self, call: Call, name: str) -> None:
        cpu, convention = self.cpu, self._convention
        if not name:
            call.result = (cpu.read(convention.result), cpu.read(convention.second_result))
        elif name == "back":
            steps, sp, back = call.waiting.pop()
            result = cpu.read(convention.result)
            cpu.write(cpu.arch.registers.sp, sp)
            self._continue(call, steps, result, back)
        elif name == BINDER:
            self._observe(name)
            self._bind_lazily()
        else:
            self._observe(name)
            assert name in self._functions, f"{name} is not provided"
            values = cpu.registers().values  # all together are read quicker than a few
            arguments = [values[number] or 0 for number in convention.arguments]
            back = self._pop_return_address()
            returned = self._functions[name](arguments)
            if isinstance(returned, int):
                self._return(returned, back)
            else:
                self._continue(call, returned, None, back)

    def _continue(self, call: Call, steps: Steps, result: int | None, back: int) -> None:
        """Continue an imported function, which calls back or returns."""
        try:
            function, arguments = next(steps) if result is None else steps.send(result)
        except StopIteration as ended:
            self._return(ended.value, back)
            return
        sp = self.cpu.sp
        call.waiting.append((steps, sp, back))
        self.cpu.write(self.cpu.arch.registers.sp, sp & -_SLOT)
        self._go(function, arguments, self._slot("back"))

    def _go(self, function: int, arguments: Sequence[int], back: int) -> None:
        """Set registers and stack as a call does, with sp as it is; it must be aligned."""
        cpu, convention = self.cpu, self._convention
        for number, value in zip(convention.arguments, arguments, strict=False):
            cpu.write(number, value % (1 << 64))
        if convention.link is None:
            sp = cpu.sp - 8
            self.memory.set_word(sp, back)
            cpu.write(cpu.arch.registers.sp, sp)
        else:
            cpu.write(convention.link, back)
        self.uc.reg_write(cpu.pc, function)

    def _pop_return_address(self) -> int:
        cpu = self.cpu
        if self._convention.link is not None:
            return cpu.read(self._convention.link)
        sp = cpu.sp
        cpu.write(cpu.arch.registers.sp, sp + 8)
        return self.memory.word(sp)

    def _return(self, result: int, back: int) -> None:
        self.cpu.write(self._convention.result, result % (1 << 64))
        self.uc.reg_write(self.cpu.pc, back)

    def _bind_lazily(self) -> None:
        """Bind the pointer that a stub's helper left on the stack; continue at its target."""
        cpu = self.cpu
        sp = cpu.sp
        # arm64: x16, x17; x86_64: the loader's word, and what the helper pushed before.
        number = self.memory.word(sp if self._convention.link is not None else sp + 8, 4)
        place, name = self._lazy[number]
        target = self._slot(name)
        self.memory.set_word(place, target)
        cpu.write(cpu.arch.registers.sp, sp + 16)
        self.uc.reg_write(cpu.pc, target)


def packed(*words: int) -> bytes:
    """Words of 64 bits."""
    return pack(f"<{len(words)}Q", *words)
