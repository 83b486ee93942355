"""Rules for interrupted frames of AArch64 code, from its instructions.

Compact unwind is exact at calls. An interrupted thread may be anywhere: before the frame is made,
while registers are being saved, after the epilogue's loads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from struct import unpack_from

from machtrace.errors import MemoryReadError
from machtrace.model.address import Svma
from machtrace.model.memory import ImageContents
from machtrace.model.stack import FrameTrust
from machtrace.unwinder.arch.arm64.decoder import decode
from machtrace.unwinder.arch.arm64.registers import (
    ARM64,
    ENTRY,
    ENTRY_WITHOUT_VOLATILE,
    FP,
    INSTRUCTION_SIZE,
    LINKING,
    SP,
)
from machtrace.unwinder.code.calling_convention import CallerValue
from machtrace.unwinder.code.data_flow import Flow
from machtrace.unwinder.code.effects import (
    AddConstant,
    AddRegister,
    Call,
    Effect,
    IndirectJump,
    Jump,
    Load,
    MoveRegister,
    Return,
    Store,
    Trap,
    Writes,
)
from machtrace.unwinder.code.frame_state import FrameState
from machtrace.unwinder.code.function_analysis import (
    MAX_BEGINNING_LENGTH,
    MAX_CHECKED_LENGTH,
    FunctionAnalysis,
    entry_with,
    pushed_before,
    rule_at_edges,
)
from machtrace.unwinder.code.path_search import after_all
from machtrace.unwinder.code.return_path import (
    MAX_PATH_LENGTH,
    leaves_stack,
    loses_registers,
    rule_across_stacks,
    rule_behind_call,
)
from machtrace.unwinder.rules import AtCfa, Claims, FunctionAt, UnwindRule

# --- Recognition of code that a compiler outlined ---
#
# A call leaves the caller's frame alone, unless the callee is a part of the caller: code that
# saves or restores its registers, or makes or removes its frame (LLVM's machine outliner,
# ``AArch64InstrInfo::buildOutlinedFrame``).

_FRAME = frozenset({SP, FP})
_PRESERVED = frozenset({*range(19, 31), *range(72, 80)})
"""DWARF numbers of callee-saved registers and the link register."""


def leaves_frame(instruction: Effect) -> bool:
    """Return whether an instruction moves sp out of the function's and its callers' frames.

    ``longjmp`` does: its call does not change the caller's frame but ends it.
    """
    match instruction:
        case AddConstant(register, source) | MoveRegister(register, source):
            return register == SP and source not in _FRAME
        case Load(registers) | Writes(registers):
            return SP in registers
        case _:
            return False


def _loops(body: Sequence[Effect]) -> bool:
    return any(
        isinstance(instruction, Jump) and at * INSTRUCTION_SIZE >= -instruction.distance > 0
        for at, instruction in enumerate(body)
    )


def keeps_own_frame(body: Sequence[Effect]) -> bool:
    """Return whether straight code makes its own frame, saves registers there, and removes it.

    Then it is an ordinary function, however short, and does not change its caller's frame.
    """
    state = ENTRY
    makes_frame = False
    for instruction in body:
        state = state.after(instruction)
        makes_frame = makes_frame or (state.sp_offset or 0) < 0
    preserved = (*ARM64.callee_saved, ARM64.return_address.register)
    return (
        makes_frame
        and state.sp_offset == 0
        and all(state.value(register) == CallerValue(register) for register in preserved)
    )


def touches_callers_frame(body: Sequence[Effect]) -> bool:
    """Return whether a function with these instructions may change its caller's frame.

    Jumps are ignored: an ordinary function lowers sp, saves registers below its entry value, and
    raises sp again. True if that is not recognised.
    """
    if _loops(body):
        return False  # only straight code is outlined
    offsets = {SP: 0}
    saved: set[int] = set()
    for instruction in body:
        match instruction:
            case AddConstant(register, source, amount) if register in _FRAME:
                if register == FP and FP not in saved:
                    return True
                base = offsets.get(source)
                if base is None:
                    return True
                offsets[register] = base + amount
            case AddRegister(register) | MoveRegister(register) if register in _FRAME:
                return True
            case Store(registers, _, source, offset, write_back) | Load(
                registers, _, source, offset, write_back
            ) if source == SP:
                preserved = _PRESERVED.intersection(r for r in registers if r is not None)
                if preserved and offsets[SP] + offset >= 0:
                    return True
                if isinstance(instruction, Store):
                    saved |= preserved
                offsets[SP] += write_back
            case _:
                pass
    return offsets[SP] != 0


MAX_REMOVED = 1 << 12
"""Bytes of the largest frame of functions with a common end."""


def entry_of_end(body: Sequence[Effect], entry: FrameState) -> FrameState | None:
    """Return the state at the first instruction of an outlined end of functions.

    They jump to it: it restores registers that they saved, raises sp, and returns. None if
    ``body`` is something else.

    Args:
        body: a function's instructions, in order.
        entry: the state at the first instruction of a function.
    """
    sp, restored = 0, dict[int, int]()
    ending = (Return, Call, Jump, IndirectJump, Trap)
    end = next((at for at, one in enumerate(body) if isinstance(one, ending)), len(body))
    if not isinstance(body[end] if end < len(body) else None, Return):
        return None
    for instruction in body[:end]:
        match instruction:
            case AddConstant(destination, source, amount) if destination == source == SP:
                sp += amount
            case Load(registers, size, source, offset, write_back) if source == SP:
                for index, register in enumerate(registers):
                    if register is not None and register in _PRESERVED:
                        restored[register] = sp + offset + index * size
                sp += write_back
            case _:
                pass
    if not 0 < sp <= MAX_REMOVED or sp % ARM64.word:
        return None
    values, slots = list(entry_with(sp, entry).values), dict(entry.slots)
    for register, at in restored.items():
        if register in ARM64.indices:
            values[ARM64.indices[register]] = None
            slots[at - sp] = ARM64.caller_values[register]
    return FrameState(ARM64, tuple(values), slots)


# --- Rules for interrupted frames of AArch64 code, from its instructions ---

MAX_INSTRUCTIONS = 1 << 16
"""Instructions of the largest function; those of compiled code have some tens of thousands."""
CACHED_SIZE = 1 << 21
"""Bytes of code of all cached functions; a full cache is cleared. Each instruction takes some 10 to
100 bytes."""
OUTLINED_SIZE = 64 * INSTRUCTION_SIZE
"""Bytes of the longest function that may be outlined code."""
VIEWED_SECTION = 64 << 20
"""Bytes of the largest section that is read as a whole; memory in pieces makes that a copy."""
_JUMPS_FOLLOWED = 8
_READ_AT_ONCE = 1 << 12
"""Instructions decoded between two checks of the budget."""
_READING = 4
"""Steps to locate code."""
_KNOWN_A_STEP = 4
"""Instructions decoded per step, if the same words were decoded before."""
_STEPS_EXPECTED = 8
"""Steps for an instruction of an analysed function."""
_STEPS_FOR_A_START = 100
"""Steps for a function's first instructions, which are not analysed with less."""
_STEPS_UNKNOWN = 2
"""Steps for a word decoded for the first time."""
_NESTING = 3


class _Function:
    """A followed function, as cached."""

    __slots__ = ("flow", "keeps_volatile", "start")

    def __init__(self, start: Svma, code: Sequence[Effect], flow: Flow) -> None:
        self.start = start
        self.flow = flow
        self.keeps_volatile = len(code) * INSTRUCTION_SIZE <= OUTLINED_SIZE and not any(
            isinstance(instruction, Call) for instruction in code
        )

    def state(self, address: Svma) -> FrameState | None:
        return self.flow.state((address - self.start) // INSTRUCTION_SIZE)

    def state_before(self, at: int) -> FrameState | None:
        """Return the state before the instruction at the offset ``at`` from the start."""
        return self.flow.state(at // INSTRUCTION_SIZE)

    def state_in_call(self, at: int) -> FrameState | None:
        """Return the state while the call at the offset ``at`` from the start is in progress."""
        state = self.flow.state(at // INSTRUCTION_SIZE)
        return None if state is None else state.after(LINKING)


class InstructionRules(FunctionAnalysis[_Function]):
    """Instruction analysis of one image's AArch64 code. A :class:`RuleSource`.

    It has rules for interrupted frames, and for calls of outlined code: there the return address
    may be anywhere, even in a caller-saved register.
    """

    trust = FrameTrust.PROLOGUE
    claims = Claims.EVERYWHERE

    def __init__(
        self,
        contents: ImageContents,
        function_at: FunctionAt,
        code_sections: Sequence[tuple[int, int]] = (),
    ) -> None:
        """``code_sections``: the (start, end) of code searched for jumps into outlined code."""
        self._outlined: dict[Svma, tuple[Effect, ...] | None] = {}
        self._sharing: dict[Svma, bool] = {}
        caches = (self._outlined, self._sharing)
        super().__init__(function_at, limit=CACHED_SIZE, caches=caches)
        self._contents = contents
        self._sections = tuple(code_sections)
        self._views: dict[int, memoryview | None] = {}
        self._nesting = 0
        """The depth of functions followed because they jump into another."""

    def rule_for(self, lookup: Svma, /, *, interrupted: bool) -> UnwindRule | None:
        """See :meth:`RuleSource.rule_for`."""
        address = Svma(lookup & -INSTRUCTION_SIZE)
        if not interrupted and not self._involves_outlined_code(address):
            return None
        return self.rule_at(address, interrupted=interrupted)

    def rule_at(self, address: Svma, *, interrupted: bool) -> UnwindRule | None:
        """Return the rule at an instruction, whatever it calls; see :meth:`rule_for`."""
        self._budget.begin_query()
        bounds = self._bounds_at(address, MAX_INSTRUCTIONS * INSTRUCTION_SIZE)
        if bounds is None:
            return None
        function = self._function(*bounds)
        if function is None or not function.flow.is_complete:
            if not interrupted:
                return None
            return self._rule_at_edges(address, bounds)
        state = function.state(address)
        if state is None:
            return None
        if not interrupted:
            return state.after(LINKING).rule()
        rule = state.rule(keeps_volatile=function.keeps_volatile)
        size = min(bounds[1] - address, MAX_PATH_LENGTH * INSTRUCTION_SIZE)
        ahead = () if rule is not None and not loses_registers(rule) else self._read(address, size)

        def has_left() -> bool:
            return leaves_stack(self._read(bounds[0], address - bounds[0]), ARM64)

        rule = rule_across_stacks(ahead, 0, state, rule, has_left=has_left, unit=INSTRUCTION_SIZE)
        return rule or self._rule_of_released_frame(address)

    def _rule_of_released_frame(self, address: Svma) -> UnwindRule | None:
        """Return the rule from the path to the return, if that loads the return address.

        In a register, it may be what this code put there.
        """
        rule = self._rule_ahead(address)
        return rule if rule is not None and isinstance(rule.return_address, AtCfa) else None

    def _rule_at_edges(self, lookup: Svma, bounds: tuple[Svma, Svma]) -> UnwindRule | None:
        return rule_at_edges(self._straight, lookup, bounds, ENTRY, self._budget)

    def _straight(self, start: Svma, end: Svma) -> Iterator[tuple[int, tuple[Effect]]]:
        """Return offset and effect of the first instructions from ``start``."""
        code = self._read(start, min(end - start, MAX_BEGINNING_LENGTH * INSTRUCTION_SIZE))
        return ((INSTRUCTION_SIZE * index, (effect,)) for index, effect in enumerate(code))

    def rule_at_call(self, lookup: Svma) -> UnwindRule | None:
        """See :class:`~machtrace.unwinder.rules.CallAnalysis`."""
        address = Svma(lookup & -INSTRUCTION_SIZE)
        rule = self.rule_at(address, interrupted=False)
        return rule or self._rule_ahead(Svma(address + INSTRUCTION_SIZE))

    def _rule_ahead(self, behind_call: Svma) -> UnwindRule | None:
        """Return the rule of a calling function, from its path to the return.

        A loop that only a jump table leads to does not show its frame, but the code behind it
        releases that.
        """
        bounds = self.function_at(behind_call)
        if bounds is None:
            return None
        start, end = bounds
        if end - start > MAX_CHECKED_LENGTH:
            start = behind_call
            end = Svma(min(end, behind_call + MAX_PATH_LENGTH * INSTRUCTION_SIZE))
        code = self._read(start, end - start)
        at = (behind_call - start) // INSTRUCTION_SIZE
        return rule_behind_call(code, at, ARM64, unit=INSTRUCTION_SIZE)

    def state_behind_start(self, lookup: Svma, count: int) -> FrameState | None:
        """See :class:`~machtrace.unwinder.code.code_check.CodeAnalysis`."""
        self._budget.begin_query()
        bounds = self.function_at(lookup)
        if bounds is None or not self._budget.afford(_STEPS_FOR_A_START):
            return None
        state, at = ENTRY, bounds[0]
        for instruction in self._read(at, min(count * INSTRUCTION_SIZE, bounds[1] - at)):
            if isinstance(instruction, Call | Jump | IndirectJump | Return | Trap):
                break
            state = state.after(instruction)
            at = Svma(at + INSTRUCTION_SIZE)
        return state if at <= lookup else None

    def _involves_outlined_code(self, address: Svma) -> bool:
        """Return whether a call is in outlined code, or calls it."""
        around = self.function_at(address)
        if around is not None and self._is_outlined(around[0]):
            return True
        instruction = self._read(address, INSTRUCTION_SIZE)[0]
        if not isinstance(instruction, Call) or instruction.distance is None:
            return False
        return self._is_outlined(Svma(address + instruction.distance))

    def _is_outlined(self, start: Svma, nesting: int = 0) -> bool:
        """Return whether a short function shares a frame, or jumps to one that does."""
        self._budget.spend(_READING)
        is_shared = self._sharing.get(start)
        if is_shared is None:
            is_shared = self._sharing[start] = self._shares_frame(start, nesting)
        return is_shared

    def _shares_frame(self, start: Svma, nesting: int) -> bool:
        bounds = self.function_at(start)
        if bounds is None or bounds[0] != start or bounds[1] - start > OUTLINED_SIZE:
            return False
        body = self._read(start, bounds[1] - start)
        if touches_callers_frame(body):
            return True
        last = body[-1] if body else None
        if not isinstance(last, Jump) or last.is_conditional or nesting >= _NESTING:
            return False
        target = Svma(bounds[1] - INSTRUCTION_SIZE + last.distance)
        return target not in range(*bounds) and self._is_outlined(target, nesting + 1)

    def _read(self, start: Svma, size: int) -> list[Effect]:
        """Decode the instructions in a range; fewer if the budget is exhausted."""
        count = size // INSTRUCTION_SIZE  # bounds may include data of any size
        code = self._code(start, INSTRUCTION_SIZE * count)
        read: list[Effect] = []
        budget = self._budget
        for at in range(0, count, _READ_AT_ONCE):
            words = unpack_from(f"<{min(_READ_AT_ONCE, count - at)}I", code, INSTRUCTION_SIZE * at)
            unknown = decode.cache_info().misses
            read += map(decode, words)
            steps = _READING + len(words) // _KNOWN_A_STEP
            if not budget.spend(steps + _STEPS_UNKNOWN * (decode.cache_info().misses - unknown)):
                break
        return read

    def _code(self, start: Svma, size: int) -> memoryview:
        """Return ``size`` bytes of code, from a view of its whole section if available."""
        for low, high in self._sections:
            if low <= start and start + size <= high <= low + VIEWED_SECTION:
                if low not in self._views:
                    self._views[low] = self._view(Svma(low), high - low)
                view = self._views[low]
                if view is not None:
                    return view[start - low : start - low + size]
        return self._contents.read_svma(start, size)

    def _view(self, start: Svma, size: int) -> memoryview | None:
        try:
            return self._contents.read_svma(start, size)
        except MemoryReadError:  # parts of it may be readable
            return None

    def _straight_code(self, start: Svma, end: Svma) -> Iterator[tuple[int, tuple[Effect]]]:
        code = self._read(start, end - start)
        return ((INSTRUCTION_SIZE * index, (effect,)) for index, effect in enumerate(code))

    def _followed(self, start: Svma, end: Svma, *, with_volatile: bool = False) -> _Function | None:
        count = (end - start) // INSTRUCTION_SIZE
        if not 0 < count <= MAX_INSTRUCTIONS:
            return None
        budget = self._budget
        code = self._read(start, count * INSTRUCTION_SIZE)
        if budget.is_used_up:
            return None

        def outlined(distance: int) -> tuple[Effect, ...] | None:
            return self._outlined_body(Svma(start + distance))

        standard = ENTRY
        if count * INSTRUCTION_SIZE > OUTLINED_SIZE and not with_volatile:
            standard = ENTRY_WITHOUT_VOLATILE
        flow = Flow(code, standard, outlined, budget=budget)
        entry = None
        if not flow.is_balanced:
            entry, is_searched = self._entry_from_jumps(start)
            if budget.is_used_up:
                return None
            if entry is None and not is_searched:
                entry = entry_of_end(code, standard)
        if entry is None and _may_take_away(code):
            pushed = pushed_before(flow, ARM64)
            entry = entry_with(pushed, standard) if pushed else None
        if entry is not None:
            flow = Flow(code, entry, outlined, budget=budget)
        return _Function(start, code, flow)

    def _entry_from_jumps(self, start: Svma) -> tuple[FrameState | None, bool]:
        """Return the state at the start of code that other functions jump into, frame and all.

        Also return whether all code was searched for such jumps.
        """
        budget = self._budget
        if self._nesting >= _NESTING:
            return None, True
        from machtrace.unwinder.functions.branch_scan import jumps_to  # imports numpy

        entry: FrameState | None = None
        jumps = jumps_to(start, self._contents, self._sections, budget)
        for address in islice(jumps, _JUMPS_FOLLOWED):
            if address is None:
                return entry, False
            bounds = self.function_at(address)
            if bounds is None or bounds[0] == start:
                continue
            if bounds[0] not in self._functions:
                # Leave as many steps for the function itself as each caller may take.
                count = (bounds[1] - bounds[0]) // INSTRUCTION_SIZE
                if 2 * _STEPS_EXPECTED * count > budget.left:
                    continue
            self._nesting += 1
            try:
                function = self._function(*bounds, is_queried=False)
            except MemoryReadError:
                continue
            finally:
                self._nesting -= 1
            state = None if function is None else function.state(address)
            if state is not None:
                entry = state if entry is None else entry.join(state)
        return entry, True

    def _outlined_body(self, target: Svma, nesting: int = 0) -> tuple[Effect, ...] | None:
        """Return all effects of a short callee without calls and conditions; else None.

        See :data:`~machtrace.unwinder.code.path_search.OutlinedBody`.
        """
        if target not in self._outlined:
            self._budget.spend(_READING)
            try:
                self._outlined[target] = self._straight_line(target, nesting)
            except MemoryReadError:
                self._outlined[target] = None
        return self._outlined[target]

    def _straight_line(self, target: Svma, nesting: int) -> tuple[Effect, ...] | None:
        bounds = self.function_at(target)
        if bounds is None or bounds[0] != target or bounds[1] - target > OUTLINED_SIZE:
            return None
        body: list[Effect] = []
        for index, instruction in enumerate(self._read(target, bounds[1] - target)):
            if isinstance(instruction, Return):
                return None if keeps_own_frame(body) else tuple(body)
            if isinstance(instruction, Jump) and not instruction.is_conditional:
                onwards = Svma(target + index * INSTRUCTION_SIZE + instruction.distance)
                return self._passed_on(body, onwards, bounds, nesting)
            if isinstance(instruction, Call | Jump | IndirectJump | Trap) or leaves_frame(
                instruction
            ):
                return None
            body.append(instruction)
        return None

    def _passed_on(
        self, body: list[Effect], target: Svma, bounds: tuple[Svma, Svma], nesting: int
    ) -> tuple[Effect, ...] | None:
        """Return ``body`` with the effects of the function that it ends with a jump to."""
        if target in range(*bounds) or nesting >= _NESTING or keeps_own_frame(body):
            return None
        rest = self._outlined_body(target, nesting + 1)
        if rest is None and after_all(ENTRY, body).sp_offset != ENTRY.sp_offset:
            return None  # the rest removes a frame, but not in a straight line
        return (*body, *((Call(None),) if rest is None else rest))


def _may_take_away(code: Sequence[Effect]) -> bool:
    """Return whether code may pop what jumps to it pushed: it is short, and jumps on."""
    if len(code) * INSTRUCTION_SIZE > OUTLINED_SIZE:
        return False
    is_leaving = any(isinstance(instruction, IndirectJump) for instruction in code)
    return is_leaving and not any(isinstance(instruction, Return) for instruction in code)
