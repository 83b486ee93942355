"""The true stack of calls, recorded from calls and returns.

It needs no unwinder. Where code leaves a function by other ways than a return (``longjmp``, a
switch to another stack), the stack pointer shows which calls are still in progress.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.registers import RegisterSet
from tests.support.emulated.cpu import Transfer


@dataclass(frozen=True)
class TrueFrame:
    """A caller, as it was when it called."""

    return_address: Avma
    """The next instruction of a function that a signal interrupted."""
    sp: int
    """The caller's, before a call pushes anything."""
    captured: Callable[[], RegisterSet]
    is_interrupted: bool = False
    """A signal came, where others call."""

    @cached_property
    def registers(self) -> RegisterSet:
        """The caller's, with :attr:`sp`."""
        return self.captured()


class TrueStack:
    """Calls in progress of one thread, on all the stacks that it has."""

    __slots__ = (
        "_asks_where_it_is",
        "_current",
        "_entered",
        "_known",
        "_others",
        "_stacks",
        "frames",
    )

    def __init__(self, outermost: TrueFrame, stacks: Sequence[range] = ()) -> None:
        """``stacks``: further memory that the program uses as stacks of their own."""
        self.frames = [outermost]
        """Outermost first."""
        self._asks_where_it_is = outermost.registers.arch is Arch.I386
        self._stacks = tuple(stacks)
        self._current: range | None = None
        self._others: dict[range | None, list[TrueFrame]] = {}
        self._known: set[int] = set()
        """Where calls returned to, or would have."""
        self._entered: set[int] = set()
        """Where calls led."""

    @property
    def has_other_stacks(self) -> bool:
        """Whether :meth:`stand_on` needs the stack pointer."""
        return bool(self._stacks)

    def stand_on(self, sp: int) -> None:
        """Record that the stack pointer is ``sp`` now, maybe on another stack than before."""
        current = next((stack for stack in self._stacks if stack.start < sp <= stack.stop), None)
        if current != self._current:
            self._others[self._current] = self.frames
            self._current = current
            self.frames = self._others.setdefault(current, [])

    def call(self, target: int, frame: TrueFrame) -> None:
        """Record a call of ``target``.

        To the next instruction: i386 code reads its own address so. Elsewhere that is not needed;
        the function there never returns, and follows its caller.
        """
        if target != frame.return_address or not self._asks_where_it_is:
            self._known.add(frame.return_address)
            self._entered.add(target)
            self.frames.append(frame)

    def interrupt(self, frame: TrueFrame) -> None:
        """Record a signal."""
        self.frames.append(frame)

    def resume(self) -> None:
        """Resume the function that the innermost signal interrupted."""
        while not self.frames.pop().is_interrupted:
            pass

    def leave(self, transfer: Transfer, after: int, target: int, sp: int) -> None:
        """Record a return or an indirect jump.

        Args:
            transfer: RETURN or JUMP.
            after: the instruction behind it, which follows if a condition did not hold.
            target: where it led.
            sp: the stack pointer there.

        Raises:
            AssertionError: a return led to where nothing was called from.
        """
        frames = self.frames
        if (
            frames
            and frames[-1].return_address == target
            and (transfer is Transfer.RETURN or frames[-1].sp <= sp)
        ):
            frames.pop()  # maybe below where it called: shared prologues leave what they pushed
        elif target == after:
            return
        elif transfer is Transfer.RETURN or (target in self._known and target not in self._entered):
            before = len(frames)
            while frames and frames[-1].sp <= sp:
                frames.pop()
            is_left = len(frames) < before or not frames or transfer is Transfer.JUMP
            assert is_left, f"returned to {target:#x}, not {frames[-1].return_address:#x}"
