"""Whether a function's code bears out what tables say of a call in it.

Unwind tables can be stale, written by hand or damaged, and nothing in them shows it. The code is
what made the frame, so it is asked too: first what its first instructions do, which is enough for
nearly every function, then all ways from its start to the call.

Whether a function plainly begins by making a frame record, as most functions do.

Behind that, and until it takes the record away and returns or jumps on, the frame pointer leads to
the caller: the quickest thing to see that bears out what tables say of its calls.

Whether code before a call may move what unwind tables count from, without their knowing.

Compilers' tables say nothing of assembly inside of a function: it may push and call, or make a
frame record of its own. What is looked for here is quick to see; where it is seen the function is
followed, and only that decides.

Rules for calls, from the instructions of the function that called.
"""

from __future__ import annotations

from struct import unpack
from typing import NamedTuple, Protocol, runtime_checkable

from machtrace.errors import FormatError, MemoryReadError
from machtrace.model.address import Svma
from machtrace.model.arch import Arch
from machtrace.model.memory import ImageContents
from machtrace.model.stack import FrameTrust
from machtrace.unwinder.code.calling_convention import CallerValue, FromCfa
from machtrace.unwinder.code.frame_state import FrameState
from machtrace.unwinder.rules import AtCfa, Claims, InRegister, RegisterOffset, UnwindRule

LOOKED_AT = 64
"""Bytes of a function's start: seven pairs of registers and signing come before the record."""

_PAIR_MASK = 0xFFC07FFF
_PAIR_AT, _PAIR_BELOW = 0xA9007BFD, 0xA9807BFD
"""``stp x29, x30, [sp, #n]``; ``stp x29, x30, [sp, #-n]!``, which leads sp to the pair."""
_SUB_MASK, _SUB = 0xFF8003FF, 0xD10003FF
"""``sub sp, sp, #n``."""
_ADD_MASK, _ADD = 0xFFC003FF, 0x910003FD
"""``add x29, sp, #n``, which is ``mov x29, sp`` where n is 0."""
_BRANCH_MASK, _BRANCH = 0x1C000000, 0x14000000
"""Branches, calls and returns; also what traps, and system instructions."""
_HINT_MASK, _HINT = 0xFFFFF01F, 0xD503201F
"""Those of them that functions begin with: signing, landing pads."""
_X86_RECORD = {
    Arch.X86_64: (b"\x55\x48\x89\xe5", b"\x55\x48\x8b\xec"),
    Arch.X86_64H: (b"\x55\x48\x89\xe5", b"\x55\x48\x8b\xec"),
    Arch.I386: (b"\x55\x89\xe5", b"\x55\x8b\xec"),
}
"""``push rbp`` and ``mov rbp, rsp``, which has two encodings; the same of 32 bits."""


def follows_record(rule: UnwindRule, arch: Arch) -> bool:
    """Whether ``rule`` is that of a frame record, whatever else it restores."""
    cfa, word, fp = rule.cfa, arch.saved_register_size, arch.registers.fp
    return (
        isinstance(cfa, RegisterOffset)
        and (cfa.register, cfa.offset) == (fp, 2 * word)
        and rule.return_address == AtCfa(-word)
        and (fp, AtCfa(-2 * word)) in rule.registers
    )


def record_made(code: bytes | memoryview, arch: Arch) -> int | None:
    """How many bytes of a function are behind it when it has made its record.

    ``code`` is its beginning, at most :data:`LOOKED_AT` bytes of it. None where no record is seen
    to be made, which does not mean that there is none.
    """
    if arch.is_arm64:
        return _made_on_arm64(code)
    beginning = bytes(code[:4])
    for record in _X86_RECORD.get(arch, ()):
        if beginning.startswith(record):
            return len(record)
    return None


def _made_on_arm64(code: bytes | memoryview) -> int | None:
    count = len(code) // 4
    place: int | None = None
    """From sp to the pair."""
    for index, word in enumerate(unpack(f"<{count}I", code[: 4 * count])):
        if word & _BRANCH_MASK == _BRANCH and word & _HINT_MASK != _HINT:
            return None
        pair = word & _PAIR_MASK
        if pair == _PAIR_AT:
            place = (word >> 15 & 0x7F) * 8
        elif pair == _PAIR_BELOW:
            place = 0
        elif word & _SUB_MASK == _SUB:
            place = None
        elif word & _ADD_MASK == _ADD:
            return 4 * index + 4 if place == word >> 10 & 0xFFF else None
    return None


LOOKED_BACK = 128
"""Bytes before a call that are looked at."""

_SETS_FP_MASK, _SETS_FP = 0xFFC003FF, 0x910003FD
"""``add x29, sp, #n``, which is ``mov x29, sp`` where n is 0."""
_LOWERS_SP_MASK, _LOWERS_SP = 0xFF8003FF, 0xD10003FF
"""``sub sp, sp, #n``."""
_PUSH_MASK, _PUSH = 0x3B200FE0, 0x38000FE0
"""``str``, ``strh`` and the like, ``[sp, #-n]!``; loads too."""
_PUSHES_PAIR_MASK, _PUSHES_PAIR = 0x3B8003E0, 0x298003E0
"""``stp [sp, #-n]!``; loads too."""
_X86_RECORDS = (b"\x89\xe5", b"\x8b\xec")
"""``mov ebp, esp``, in two encodings; of 64 bits it has one byte more before it."""


def may_move_frame(code: bytes | memoryview, rule: UnwindRule, arch: Arch) -> bool:
    """Whether ``code``, which leads to a call, may move the register that ``rule`` counts from.

    Of arm64, ``code`` is whole instructions. x86 code that counts from sp is always said to.
    """
    cfa, registers = rule.cfa, arch.registers
    if not isinstance(cfa, RegisterOffset):
        return False
    if cfa.register == registers.fp:
        if arch.is_arm64:
            return any(word & _SETS_FP_MASK == _SETS_FP for word in _words(code))
        return any(record in bytes(code) for record in _X86_RECORDS)
    if cfa.register != registers.sp:
        return False
    return not arch.is_arm64 or any(_moves_sp(word) for word in _words(code))


def _words(code: bytes | memoryview) -> tuple[int, ...]:
    count = len(code) // 4
    return unpack(f"<{count}I", code[: 4 * count])


def _moves_sp(word: int) -> bool:
    return (
        word & _LOWERS_SP_MASK == _LOWERS_SP
        or word & _PUSH_MASK == _PUSH & _PUSH_MASK
        or word & _PUSHES_PAIR_MASK == _PUSHES_PAIR
    )


FIRST_INSTRUCTIONS = 24
"""Of a function, that are looked at alone: ten pairs of registers, and what makes room."""
MOST_CODE = 1 << 11
"""Bytes of the largest function that is analysed to check a table; the first stack is not to wait
for those of interpreters."""
MOST_EXPLAINED = 1 << 16
"""Bytes of the largest function that is analysed where its own rule is wanted: to explain a frame,
or because a table's needs a register that was lost."""
REMEMBERED = 1 << 14
"""Functions whose beginnings are remembered; at the limit all are forgotten."""


class CodeAnalysis(Protocol):
    """Instruction analysis, as far as it can speak of calls."""

    def function_at(self, address: Svma, /) -> tuple[Svma, Svma] | None:
        """The (start, end) of the function that holds ``address``."""
        ...

    def state_behind_start(self, lookup: Svma, count: int, /) -> FrameState | None:
        """The state behind a function's first straight run of instructions, at most ``count``.

        The function is the one that holds ``lookup``; None if ``lookup`` is in that run.
        """
        ...

    def state_in_call(self, lookup: Svma, most: int, /) -> FrameState | None:
        """The state while the call that holds ``lookup`` is in progress.

        None where it is not known, where the function has more than ``most`` bytes, or does not
        leave its caller's frame on every way as it found it.
        """
        ...


class Objection(NamedTuple):
    """What the code says of a call, against a table."""

    rule: UnwindRule
    """The code's own."""
    is_later: bool
    """Whether the code bears the table out at its start and moves sp, or makes another record,
    before the call: then nothing is wrong but that the table does not know of it."""


class CodeCheck:
    """Checks the rules that tables have for calls in an image."""

    __slots__ = ("_analysis", "_arch", "_contents", "_records")

    trust = FrameTrust.PROLOGUE

    def __init__(self, analysis: CodeAnalysis, contents: ImageContents, arch: Arch) -> None:
        """``analysis`` is of ``contents``, an image of ``arch``."""
        self._analysis = analysis
        self._contents = contents
        self._arch = arch
        self._records: dict[Svma, int | None] = {}
        """How many bytes of a function, by its start, are behind it when its record is made."""

    def objection(self, lookup: Svma, rule: UnwindRule) -> Objection | None:
        """What the code says against ``rule``, a table's for the call that holds ``lookup``.

        None where it bears ``rule`` out, or says nothing. Raises nothing.
        """
        try:
            is_borne_out = self._is_borne_out_at_start(lookup, rule)
            if is_borne_out and not self._may_move_on(lookup, rule):
                return None
            state = self._analysis.state_in_call(lookup, MOST_CODE)
        except (FormatError, MemoryReadError):
            return None
        if state is None or verdict(state, rule) is not False:
            return None
        own = state.rule(prefers_memory=True)
        return None if own is None else Objection(own, is_borne_out)

    def _is_borne_out_at_start(self, lookup: Svma, rule: UnwindRule) -> bool:
        if follows_record(rule, self._arch) and self._has_record(lookup):
            return True
        first = self._analysis.state_behind_start(lookup, FIRST_INSTRUCTIONS)
        return first is not None and bool(verdict(first, rule))

    def _may_move_on(self, lookup: Svma, rule: UnwindRule) -> bool:
        """Whether assembly may have moved what ``rule`` counts from, between start and call."""
        bounds = self._analysis.function_at(lookup)
        if bounds is None or bounds[1] - bounds[0] > MOST_CODE:
            return False
        start = bounds[0] + (self._records.get(bounds[0]) or 0)
        start = max(start, lookup - LOOKED_BACK)
        start += (bounds[0] - start) % 4 if self._arch.is_arm64 else 0
        code = self._contents.read_svma(Svma(start), max(0, lookup - start))
        return may_move_frame(code, rule, self._arch)

    def rule_at(self, lookup: Svma) -> UnwindRule | None:
        """The rule of the code itself in the call that holds ``lookup``; None where it is unknown.

        Raises nothing.
        """
        try:
            state = self._analysis.state_in_call(lookup, MOST_EXPLAINED)
        except (FormatError, MemoryReadError):
            return None
        return None if state is None else state.rule(prefers_memory=True)

    def origin(self, lookup: Svma) -> str:
        """Which code that is."""
        return origin_in_code(self._analysis, lookup)

    def _has_record(self, lookup: Svma) -> bool:
        bounds = self._analysis.function_at(lookup)
        if bounds is None:
            return False
        start, end = bounds
        if start not in self._records:
            if len(self._records) >= REMEMBERED:
                self._records.clear()
            code = self._contents.read_svma(start, min(LOOKED_AT, end - start))
            self._records[start] = record_made(code, self._arch)
        behind = self._records[start]
        return behind is not None and lookup - start >= behind


def verdict(state: FrameState, rule: UnwindRule) -> bool | None:
    """Whether ``rule`` finds the caller that ``state`` has; None where one of them does not say."""
    if not isinstance(rule.cfa, RegisterOffset):
        return None
    base, recovery = state.value(rule.cfa.register), rule.return_address
    if not isinstance(base, FromCfa) or base.offset != -rule.cfa.offset:
        return False if isinstance(base, FromCfa | CallerValue) else None
    if isinstance(recovery, AtCfa):
        found = state.slots.get(recovery.offset)
    elif isinstance(recovery, InRegister) and not recovery.offset:
        found = state.value(recovery.register)
    else:
        return None
    if found == state.machine.return_address:
        return True
    return None if state.return_address is None else False


@runtime_checkable
class HasFunctions(Protocol):
    """Something that knows where functions are."""

    def function_at(self, address: Svma, /) -> tuple[Svma, Svma] | None:
        """The (start, end) of the function that holds ``address``."""
        ...


def origin_in_code(analysis: HasFunctions, lookup: Svma) -> str:
    """Which function's code says so, and how far into it that is."""
    bounds = analysis.function_at(lookup)
    if bounds is None:
        return ""
    start, end = bounds
    return f"code of the function at {start:#x}, {lookup - start:#x} of its {end - start:#x} bytes"


class CallAnalysis(Protocol):
    """Instruction analysis that has rules for calls."""

    def function_at(self, address: Svma, /) -> tuple[Svma, Svma] | None:
        """The (start, end) of the function that holds ``address``."""
        ...

    def rule_at_call(self, lookup: Svma, /) -> UnwindRule | None:
        """The rule while the call that holds ``lookup`` is in progress; None if it is unknown.

        Raises:
            MemoryReadError: the function's instructions were not captured.
        """
        ...


class CallSiteRules:
    """Instruction analysis of calls, for when no table knows. A :class:`RuleSource`.

    Most of it is assembly that has no frame pointer, or something between it and its caller's;
    on arm64 also code whose return address waits in another register, while it calls what was cut
    out of it: its unwind information is that of a function that calls nobody.
    """

    __slots__ = ("_analysis", "function_at")

    trust = FrameTrust.PROLOGUE
    claims = Claims.EVERYWHERE

    def __init__(self, analysis: CallAnalysis) -> None:
        """``analysis`` is of the image's code."""
        self._analysis = analysis
        self.function_at = analysis.function_at

    def rule_for(self, lookup: Svma, /, *, interrupted: bool) -> UnwindRule | None:
        """See :meth:`RuleSource.rule_for`.

        Raises:
            MemoryReadError: the function's instructions were not captured.
        """
        return None if interrupted else self._analysis.rule_at_call(lookup)
