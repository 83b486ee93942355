"""Rules for Go functions, from the table of frame sizes that Go's own traceback uses.

The table of each function (``pcsp``) has the distance from sp to the frame's end at every
instruction, and is present in stripped programs, too. Sources: Go, ``runtime/traceback.go``
(``unwinder.next``), ``cmd/internal/obj/x86/obj6.go`` and ``arm64/obj7.go`` (``preprocess``),
``runtime/asm_amd64.s``.

A goroutine's stack ends in ``runtime.goexit``. The scheduler's stack (g0) ends where a function has
switched to it: what is above belongs to another stack. A thread's begins in code that the kernel or
C called, so ``runtime.mstart`` is unwound like any other function.
"""

from __future__ import annotations

from machtrace.errors import FormatError, MemoryReadError
from machtrace.formats.elf.contents import ElfContents, ElfFileContents
from machtrace.formats.go_images import elf_go_functions, macho_go_functions
from machtrace.formats.gopclntab import TOP_FRAME, WRITES_SP, GoFunctions
from machtrace.formats.macho.contents import MachOContents
from machtrace.formats.macho.fixups.pointers import parse_pointers
from machtrace.model.address import Svma
from machtrace.model.arch import Arch
from machtrace.model.memory import ImageContents
from machtrace.model.stack import FrameTrust
from machtrace.unwinder.rules import (
    AtCfa,
    Claims,
    InRegister,
    Lost,
    Recovery,
    RegisterOffset,
    UnwindRule,
)

_TOPS = frozenset(f"runtime.{name}" for name in ("goexit", "rt0_go", "clone"))
"""Functions that nobody called, while they call: before Go 1.17 without a flag. ``clone`` calls in
the new thread only."""
_THREAD_STARTS = frozenset({"runtime.mstart"})
_SIGNAL_HANDLERS = frozenset({"runtime.sigtramp", "runtime.cgoSigtramp"})
"""Functions that the system calls, with the interrupted stack below: Go's own traceback switches to
that by other means. They save the registers of C's calling convention, as only their code shows.
"""
_SWITCHES = frozenset(
    f"runtime.{name}" for name in ("mcall", "systemstack", "morestack", "morestack_noctxt")
)
"""Functions that call on the scheduler's stack, from its start."""
_ABI = ".abi0"

_X86_SAVES = tuple(map(bytes.fromhex, ("48892c24", "48896c24", "4889ac24")))
"""``mov [rsp + ...], rbp``, which follows the instruction that makes the frame."""
_ARM64_SAVES = (bytes.fromhex("fd831ff8"),)
"""``stur x29, [sp, #-8]``, likewise."""
_MAX_LENGTH = 4


class GoFrameRules:
    """The Go functions of one image. A :class:`~machtrace.unwinder.rules.RuleSource`."""

    __slots__ = ("_arch", "_contents", "_functions", "_outermost")

    trust = FrameTrust.PCSP
    claims = Claims.EVERYWHERE

    def __init__(self, contents: ImageContents, functions: GoFunctions, arch: Arch) -> None:
        self._contents = contents
        self._functions = functions
        self._arch = arch
        self._outermost = UnwindRule(RegisterOffset(arch.registers.sp, 0), Lost())

    @classmethod
    def of_elf(cls, contents: ElfContents, arch: Arch) -> GoFrameRules | None:
        """Return the rules of an ELF file; None if it is no Go program of a known architecture."""
        if not isinstance(contents, ElfFileContents) or not _is_supported(arch):
            return None
        try:
            functions = elf_go_functions(contents)
        except (FormatError, MemoryReadError):
            return None
        return None if functions is None else cls(contents, functions, arch)

    @classmethod
    def of_macho(cls, contents: MachOContents, arch: Arch) -> GoFrameRules | None:
        """Return the rules of a Mach-O; None if it is no Go program of a known architecture."""
        if not _is_supported(arch):
            return None
        try:
            functions = macho_go_functions(contents, lambda: parse_pointers(contents))
        except (FormatError, MemoryReadError):
            return None
        return None if functions is None else cls(contents, functions, arch)

    def rule_for(self, lookup: Svma, /, *, interrupted: bool) -> UnwindRule | None:
        """See :meth:`~machtrace.unwinder.rules.RuleSource.rule_for`. Raises nothing."""
        functions = self._functions
        row = functions.row_at(lookup)
        if row is None:
            return None
        name, flags = functions.name(row).removesuffix(_ABI), functions.flags(row)
        if name not in _THREAD_STARTS:
            is_handler = name in _SIGNAL_HANDLERS
            if name in _TOPS or (flags & TOP_FRAME and not is_handler):
                return self._outermost if name != "runtime.clone" or not interrupted else None
            if name in _SWITCHES:
                return None if interrupted else self._outermost
            if flags & WRITES_SP or is_handler:
                return None
        size = functions.frame_size(row, lookup)
        if size is None or size % self._arch.pointer_size:
            return None
        first = functions.first_frame_size(row, lookup)
        return self._rule(lookup, size, first, interrupted=interrupted)

    def _rule(self, lookup: Svma, size: int, first: int, *, interrupted: bool) -> UnwindRule | None:
        """Return the rule of a frame of ``size`` bytes, without a pushed return address.

        ``first``: the bytes of it that the prologue allocated; assembly lowers sp further.
        """
        numbers, word = self._arch.registers, self._arch.pointer_size
        return_address: Recovery = AtCfa(-word)
        fp_at, cfa, saves = -2 * word, size + word, _X86_SAVES
        if numbers.lr is not None:
            # The lowest word of what the prologue allocated is the return address, and the word
            # below it x29.
            if not size and not interrupted:
                return None
            return_address = AtCfa(-first) if size else InRegister(numbers.lr)
            fp_at, cfa, saves = -first - word, size, _ARM64_SAVES
        is_saved = size > 0 and not (interrupted and self._is_next(lookup, saves))
        # Go preserves no other register.
        saved: dict[int, Recovery] = {
            number: Lost()
            for number in numbers.callee_saved
            if number not in (numbers.fp, numbers.sp, numbers.lr)
        }
        if is_saved:
            saved[numbers.fp] = AtCfa(fp_at)
        rows = tuple(sorted(saved.items()))
        return UnwindRule(RegisterOffset(numbers.sp, cfa), return_address, rows)

    def _is_next(self, address: Svma, codes: tuple[bytes, ...]) -> bool:
        try:
            return bytes(self._contents.read_svma(address, _MAX_LENGTH)).startswith(codes)
        except MemoryReadError:
            return False


def _is_supported(arch: Arch) -> bool:
    return arch in (Arch.X86_64, Arch.X86_64H, Arch.ARM64)
