"""What instruction analysis does alike for every architecture: follow functions, and keep them.

An image's code is followed a function at a time, when it is first asked for, and what was found is
kept up to a limit. How a function's instructions are read is each architecture's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, Protocol, TypeVar

from machtrace.model.address import Svma
from machtrace.unwinder.code.data_flow import Flow
from machtrace.unwinder.code.frame_state import FrameState
from machtrace.unwinder.functions.bounds import FunctionAt
from machtrace.unwinder.step_budget import Allowance, StepBudget


class FollowedFunction(Protocol):
    """What is kept of a function."""

    @property
    def flow(self) -> Flow:
        """The states before its instructions."""
        ...

    def state_in_call(self, at: int, /) -> FrameState | None:
        """The state while the call is in progress that has the byte ``at`` bytes from the start."""
        ...


_Function = TypeVar("_Function", bound=FollowedFunction)


class FunctionAnalysis(ABC, Generic[_Function]):
    """The functions of one image, as far as they were asked for."""

    def __init__(
        self,
        function_at: FunctionAt,
        *,
        limit: int,
        kept_along: tuple[dict[Svma, Any], ...] = (),
    ) -> None:
        """What every analysis needs.

        Args:
            function_at: see :class:`~machtrace.unwinder.functions.bounds.FunctionBounds`.
            limit: bytes of code of all functions that are kept; at the limit all are forgotten.
            kept_along: what else was learnt of functions, by start, and is forgotten with them.
        """
        self.function_at = function_at
        self._limit = limit
        self._kept_along = kept_along
        self._functions: dict[Svma, _Function | None] = {}
        self._size = 0
        """Bytes of code of those."""
        self._allowance = Allowance()

    def draw_on(self, work: StepBudget) -> None:
        """See :class:`~machtrace.unwinder.step_budget.DrawsOnBudget`."""
        self._allowance.draw_on(work)

    def state_in_call(self, lookup: Svma, most: int) -> FrameState | None:
        """See :class:`~machtrace.unwinder.code.code_check.CodeAnalysis`.

        Raises:
            MemoryReadError: the function's instructions were not captured.
        """
        bounds = self.function_at(lookup)
        if bounds is None or bounds[1] - bounds[0] > most:
            return None
        self._allowance.begin_question()
        function = self._function(*bounds)
        if function is None or not function.flow.is_balanced:
            return None
        return function.state_in_call(lookup - bounds[0])

    def _function(self, start: Svma, end: Svma) -> _Function | None:
        """The function there, followed; None where that is too dear or makes no sense.

        Raises:
            MemoryReadError: the function's instructions were not captured.
        """
        functions = self._functions
        if start in functions:
            return functions[start]
        work = self._allowance.work
        if work.is_used_up:
            return None
        if self._size + end - start > self._limit:
            self._forget()
        is_whole = work.is_whole
        # A function that is asked for while its own callers are looked at has no answer.
        functions[start] = None
        is_kept = False
        try:
            function = self._followed(start, end)
            is_kept = is_whole or not work.is_used_up  # else the next walk may have more for it
        finally:
            if not is_kept:
                functions.pop(start, None)
        if is_kept:
            functions[start] = function
            self._size += end - start
        return function

    def _forget(self) -> None:
        self._functions.clear()
        for kept in self._kept_along:
            kept.clear()
        self._size = 0

    @abstractmethod
    def _followed(self, start: Svma, end: Svma) -> _Function | None:
        """Follow the function there."""
