"""The walk by ``_native``'s loop, which falls back to the exact walker, step by step.

The results are those of :func:`machtrace.unwinder.walker.walk`. The loop takes rules that only add
to registers and load words. Importing this module raises ImportError if the extensions are missing.
"""

from __future__ import annotations

from machtrace._native import _walk
from machtrace.errors import MemoryReadError
from machtrace.frozen import dataclass
from machtrace.model.address import Avma, PacMask
from machtrace.model.arch import Arch
from machtrace.model.image import ImageFormat
from machtrace.model.memory import LayeredMemory, MemoryReader
from machtrace.model.registers import RegisterSet
from machtrace.model.snapshot import ThreadSnapshot
from machtrace.model.stack import (
    AddressChain,
    AddressKind,
    FrameAddress,
    FrameTrust,
    Gap,
    Stop,
    StopReason,
    Walk,
)
from machtrace.unwinder.frame_limit import FrameLimit, FrameLimiter
from machtrace.unwinder.last_resort import guesses, known_end
from machtrace.unwinder.rule_cache import CACHE_LIMIT, RuleCache
from machtrace.unwinder.rules import (
    AtCfa,
    CfaPlus,
    InRegister,
    Lost,
    Recovery,
    RegisterOffset,
    UnwindRule,
)
from machtrace.unwinder.step import THUMB_BIT
from machtrace.unwinder.swift_async import AsyncEntry, async_entry
from machtrace.unwinder.thread_walker import (
    KIND_COUNT,
    KINDS,
    TRUSTS,
    Collected,
    code_of,
    collected,
)
from machtrace.unwinder.walker import find_caller, needs_scratch, walk, walk_of

_REGISTERS = 128
"""``MACHTRACE_REGISTERS``."""
_MAX_OFFSET = (1 << 31) - 1
ADDRESS_BITS = (1 << 64) - 1
"""The width of the loop's words."""
_SIZES = (4, 8)
"""The sizes of the loop's loads, in bytes."""


class NativeRules:
    """A process's rules in the table of the loop.

    They are from :class:`~machtrace.unwinder.rule_cache.RuleCache`. The table takes 32 to 64 bytes
    per address, and 32 to some 200 per distinct rule.
    """

    __slots__ = ("_arch", "_last", "_numbers", "table")

    def __init__(self, arch: Arch) -> None:
        self._arch = arch
        self._numbers: dict[tuple[UnwindRule, FrameTrust], int] = {}
        self._last: dict[FrameTrust, tuple[UnwindRule, int]] = {}
        registers = arch.registers
        self.table = _walk.RuleTable(
            sp=registers.sp,
            fp=registers.fp,
            pointer_size=arch.pointer_size,
            register_count=len(registers.names),
            code_bits=ADDRESS_BITS & ~THUMB_BIT if arch.is_arm else ADDRESS_BITS,
            preserved=bytes(registers.callee_saved),
        )
        """The table that the loop reads."""

    def add(self, lookup: int, *, interrupted: bool, rule: UnwindRule, trust: FrameTrust) -> bool:
        """Add ``rule`` at ``lookup``, which is no guess; return whether the loop can execute it."""
        if interrupted and trust is FrameTrust.FRAME_POINTER:
            return False  # it depends on the thread
        if len(self.table) >= CACHE_LIMIT:
            self.table.clear()
            self._numbers.clear()
            self._last.clear()
        number = self._number(rule, trust)
        if number is None:
            return False
        self.table.add(lookup, interrupted, number)
        return True

    def _number(self, rule: UnwindRule, trust: FrameTrust) -> int | None:
        # A few rules serve most functions, and comparing rules takes longer than finding one.
        same = self._last.get(trust)
        if same is not None and same[0] is rule:
            return same[1]
        number = self._numbers.get((rule, trust))
        if number is None:
            number = self._define(rule, trust)
            if number is None:
                return None
            self._numbers[rule, trust] = number
        self._last[trust] = rule, number
        return number

    def _define(self, rule: UnwindRule, trust: FrameTrust) -> int | None:
        cfa = rule.cfa
        if rule.is_signal_frame or rule.async_context is not None:
            return None
        if not isinstance(cfa, RegisterOffset):
            return None
        if not 0 <= cfa.register < _REGISTERS or abs(cfa.offset) > _MAX_OFFSET:
            return None
        return_address = self._recovery(0, rule.return_address, self._arch.saved_register_size)
        saved = []
        for number, recovery in rule.registers:
            if number >= len(self._arch.registers.names):
                continue  # a step skips it, too
            size = self._arch.saved_register_size
            if number in self._arch.registers.doubles:
                size *= 2
            saved.append(self._recovery(number, recovery, size))
        registers = tuple(recovery for recovery in saved if recovery is not None)
        if return_address is None or len(registers) < len(saved) or len(saved) >= _REGISTERS:
            return None
        return self.table.define(
            cfa.register,
            cfa.offset,
            return_address,
            registers,
            code_of(trust, rule.caller_kind),
            trust is FrameTrust.FRAME_POINTER,
        )

    @staticmethod
    def _recovery(number: int, recovery: Recovery, size: int) -> _walk.Recovery | None:
        """Return the loop's form of a recovery; None if only ``step`` executes it."""
        source = 0
        match recovery:
            case AtCfa(offset):
                kind = _walk.AT_CFA
            case CfaPlus(offset):
                kind = _walk.CFA_PLUS
            case InRegister(source, offset):
                kind = _walk.IN_REGISTER
            case Lost():
                kind, offset = _walk.LOST, 0
            case _:
                return None
        if abs(offset) > _MAX_OFFSET or not 0 <= source < _REGISTERS or size not in _SIZES:
            return None
        return number, kind, source, size, offset


_INNERMOST = code_of(FrameTrust.CONTEXT, AddressKind.PROGRAM_COUNTER)
_KINDS = (AddressKind.RETURN_ADDRESS, AddressKind.PROGRAM_COUNTER)
"""The kind of a calling frame, and of an interrupted one."""
_ROOT = Stop(StopReason.ROOT)
_NO_PROGRESS = {
    _walk.PASSED: StopReason.NO_PROGRESS,
    _walk.TOO_DEEP: StopReason.DEPTH_LIMIT,
}


def _frame(address: int, code: int) -> FrameAddress:
    trust, kind = divmod(code, KIND_COUNT)
    return FrameAddress(Avma(address), TRUSTS[trust], KINDS[kind])


@dataclass(frozen=True, slots=True)
class _Trace:
    """One stack, whose frames are the walker's last."""

    stop: Stop
    depth: int
    """The number of frames of the first part, including dropped ones: all, or those before an async
    function's caller."""
    end: int
    """The end of the first part in the walker's frames."""
    entry: AsyncEntry | None
    """The first continuation of that function."""
    outer_depth: int = 0
    """The number of frames of the second part."""


class _Ended(dict[int, Collected]):
    """The results of walks that end alike and have nothing else special, by depth."""

    def __init__(self, stop: Stop) -> None:
        self.stop = stop

    def __missing__(self, frame_count: int) -> Collected:
        result = self[frame_count] = Collected(frame_count, self.stop, is_plain=True)
        return result


class NativeWalker:
    """The walker in C. A :class:`~machtrace.unwinder.thread_walker.ThreadWalker`."""

    __slots__ = (
        "_arch",
        "_dead_ends",
        "_fp",
        "_mask",
        "_native",
        "_roots",
        "_rules",
        "_size",
        "_walker",
    )

    def __init__(self, rules: RuleCache, arch: Arch, mask: PacMask) -> None:
        """``rules``: cached for the lifetime of ``self``."""
        self._rules = rules
        self._arch = arch
        self._fp, self._size = arch.registers.fp, arch.pointer_size
        self._mask = mask
        self._native = NativeRules(arch)
        self._roots = _Ended(_ROOT)
        self._dead_ends: dict[int, _Ended] = {}
        """The walks that end at frames in no image whose frame pointer is zero, by address."""
        self._walker = _walk.StackWalker(self._native.table, mask.bits & ADDRESS_BITS, _frame)

    @property
    def table(self) -> _walk.RuleTable:
        """The cached rules, for walkers elsewhere."""
        return self._native.table

    def add(self, lookup: Avma, *, interrupted: bool) -> bool:
        """Add the rule at ``lookup`` to the table; return whether the loop can execute it."""
        self._rules.begin_walk()
        try:
            return self._add(lookup, interrupted=interrupted)
        finally:
            self._rules.end_walk()

    def walk(self, thread: ThreadSnapshot, rest: MemoryReader, limit: FrameLimit) -> Walk:
        """See :meth:`ThreadWalker.walk`."""
        walker, first = self._walker, len(self._walker)
        try:
            pause = self._start(thread, limit)
            known = (
                self._roots if pause == _walk.ROOT else self._known_dead_end(pause, thread.stack)
            )
            if known is not None:
                stop = known.stop
                depth = walker.finish()
                end = len(walker)
                return Walk(
                    addresses=walker.objects(first, end),
                    stop=stop,
                    gap=_gap(end - first, depth, limit) if depth > end - first else None,
                )
            memory = LayeredMemory((thread.stack, rest))
            trace = self._continue(pause, memory)
            if trace is None:
                return walk(thread.registers, memory, self._rules, self._mask, limit)
            inner = self._chain(first, trace.end, trace.depth, trace.stop, limit)
            if trace.entry is None:
                return walk_of(inner)
            limiter = FrameLimiter.of(limit, inner.addresses, trace.depth)
            stop = trace.entry.follow(memory, self._mask, limiter.add)
            outer = self._chain(trace.end, len(walker), trace.outer_depth, trace.stop, limit)
            return walk_of(limiter.chain(stop), outer)
        finally:
            walker.drop(first)

    def collect(self, thread: ThreadSnapshot, rest: MemoryReader, limit: FrameLimit) -> Collected:
        """See :meth:`ThreadWalker.collect`."""
        walker = self._walker
        first = len(walker)
        pause = self._start(thread, limit)
        known = self._roots if pause == _walk.ROOT else self._known_dead_end(pause, thread.stack)
        if known is not None:
            count = len(walker) - first
            if count <= limit.inner + limit.outer:  # so the loop has not yet dropped any
                return known[count]
            stop, depth = known.stop, walker.finish()
        else:
            trace = self._continue(pause, LayeredMemory((thread.stack, rest)))
            if trace is None or trace.entry is not None:
                walker.drop(first)
                return self._append(self.walk(thread, rest, limit))
            stop, depth = trace.stop, trace.depth
        count = len(walker) - first
        return Collected(count, stop, _gap(count, depth, limit) if depth > count else None)

    def _append(self, walk: Walk) -> Collected:
        for frame in walk.addresses:
            self._walker.append(frame.address, code_of(frame.trust, frame.kind))
        return collected(walk)

    def take(self) -> tuple[bytes, bytes]:
        """See :meth:`ThreadWalker.take`."""
        taken = self._walker.frames(0, len(self._walker))
        self._walker.drop(0)
        return taken

    def _chain(
        self, first: int, end: int, depth: int, stop: Stop, limit: FrameLimit
    ) -> AddressChain:
        return AddressChain(
            addresses=self._walker.objects(first, end),
            stop=stop,
            gap=_gap(end - first, depth, limit) if depth > end - first else None,
        )

    def _start(self, thread: ThreadSnapshot, limit: FrameLimit) -> int:
        registers, stack = thread.registers, thread.stack
        return self._walker.start(
            registers.pc,
            registers.values,
            _INNERMOST,
            stack.start,
            stack.data,
            limit.inner,
            limit.outer,
        )

    def _continue(self, pause: int, memory: MemoryReader) -> _Trace | None:
        """Walk the physical stack to its end; return None if its registers do not fit."""
        self._rules.begin_walk()
        try:
            return self._steps(pause, memory)
        finally:
            self._rules.end_walk()

    def _steps(self, pause: int, memory: MemoryReader) -> _Trace | None:
        walker = self._walker
        stop, entry, depth, end = _ROOT, None, 0, 0
        is_guessed = False
        while pause != _walk.ROOT:
            if pause == _walk.DOES_NOT_FIT:
                return None
            pc, interrupted = walker.place()
            here = FrameAddress(Avma(pc), FrameTrust.CONTEXT, _KINDS[interrupted])
            if pause == _walk.NO_RULE and self._add(here.lookup, interrupted=interrupted):
                pause = walker.resume()
                continue
            last = RegisterSet(self._arch, here.address, walker.values())
            step_up = find_caller(here, last, memory, self._rules, self._mask)
            if self._is_beyond(here, last, step_up):
                return None
            if isinstance(step_up, Stop):
                stop = self._noted_end(here, step_up, memory)
                break
            is_guessed = is_guessed or guesses(step_up[1], here, self._rules)
            rule, trust, caller = step_up
            marked = None if entry is not None else async_entry(here, rule, last, caller)
            if marked is not None:
                depth = walker.part()
                end = len(walker)
            put = walker.push(
                caller.pc,
                caller.values,
                code_of(trust, rule.caller_kind),
                rule.is_signal_frame,
                isinstance(rule.return_address, AtCfa),
            )
            if put == _walk.DOES_NOT_FIT:
                return None
            if put != _walk.PUSHED:
                stop = Stop(_NO_PROGRESS[put], caller.pc)
                break
            entry = entry or marked
            pause = walker.resume()
        stop = self._known_end(stop, is_guessed=is_guessed)
        last_depth = walker.finish()
        if entry is None:  # the last part is empty if its first frame made no progress
            return _Trace(stop, last_depth or depth, len(walker), None)
        return _Trace(stop, depth, end, entry, last_depth)

    def _is_beyond(
        self,
        here: FrameAddress,
        registers: RegisterSet,
        step_up: tuple[UnwindRule, FrameTrust, RegisterSet] | Stop,
    ) -> bool:
        """Return whether it has disputes, is a trampoline, or needs earlier frames' registers."""
        needs = needs_scratch(step_up, here, registers, self._rules)
        if needs or isinstance(step_up, Stop):
            return needs
        is_disputed = self._rules.objection(here.lookup) is not None
        return is_disputed or self._is_trampoline(here, step_up[0])

    def _is_trampoline(self, here: FrameAddress, rule: UnwindRule) -> bool:
        if not rule.is_signal_frame:
            return False
        image = self._rules.image_at(here.address)
        return image is not None and image.format is ImageFormat.ELF

    def _noted_end(self, here: FrameAddress, stop: Stop, memory: MemoryReader) -> Stop:
        """Return ``stop``; the next walk finds it sooner if only the frame pointer decides it."""
        rules = self._rules
        is_general = not rules.scans and not rules.has_frame_pointers
        if here.kind is AddressKind.RETURN_ADDRESS and is_general:
            is_guess = rules.image_at(here.lookup) is None
            if is_guess and self._ends_chain(memory):
                if len(self._dead_ends) >= CACHE_LIMIT:
                    self._dead_ends.clear()
                self._dead_ends[here.address] = _Ended(stop)
        return stop

    def _known_dead_end(self, pause: int, stack: MemoryReader) -> _Ended | None:
        """Return the end at a frame in no image whose chain of frame pointers ends there.

        None unless an earlier walk ended at this address, so.
        """
        if pause != _walk.NO_RULE or not self._dead_ends:
            return None
        pc, interrupted = self._walker.place()
        ended = None if interrupted else self._dead_ends.get(pc)
        return ended if ended is not None and self._ends_chain(stack) else None

    def _ends_chain(self, memory: MemoryReader) -> bool:
        """Return whether the frame pointer is zero, or the return address of its record is."""
        record = self._walker.values()[self._fp]
        if not record:
            return record == 0
        try:
            return not any(memory.read(Avma(record + self._size), self._size))
        except MemoryReadError:
            return False

    def _known_end(self, stop: Stop, *, is_guessed: bool) -> Stop:
        """Return ``stop``, qualified if a caller was guessed; see :func:`known_end`."""
        if not is_guessed:
            return stop
        pc, interrupted = self._walker.place()
        here = FrameAddress(Avma(pc), FrameTrust.CONTEXT, _KINDS[interrupted])
        return known_end(stop, here, self._rules)

    def _add(self, lookup: Avma, *, interrupted: bool) -> bool:
        rule, trust = self._rules.find(lookup, interrupted=interrupted)
        is_cached = self._rules.is_cached(lookup, interrupted=interrupted)
        if not is_cached or self._rules.objection(lookup) is not None:
            return False
        if self._rules.is_guess(lookup, interrupted=interrupted):
            # Its result depends on the memory, unless the ABI reserves the frame pointer.
            is_kept = not interrupted and trust is FrameTrust.FRAME_POINTER
            if not is_kept or not self._rules.keeps_frame_pointers(lookup):
                return False
        return self._native.add(lookup, interrupted=interrupted, rule=rule, trust=trust)


def _gap(count: int, depth: int, limit: FrameLimit) -> Gap:
    return Gap(limit.inner, depth - count)
