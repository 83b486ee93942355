"""Facts of a program's code: where each call leads, and by which jumps functions end.

A call of a function that ends with a jump leaves no frame of that function: the return address is
its caller's. The instructions show the missing functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TypeAlias

from machtrace.audit.trail.libraries import Function
from machtrace.frozen import dataclass

_MAX_JUMPS = 8
"""Consecutive jumps that are followed."""
_MAX_PATHS = 64
"""Paths between a call and what it led to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Callee:
    """Where a call or a jump leads. Without any value: to an address in a register."""

    watch: str = ""
    """The watched thing, by its name in the rules."""
    function: Function | None = None
    """A function of the app's images."""
    selector: str = ""
    """The message's, if the class of its receiver is unknown."""
    is_system: bool = False
    """Whether it is a system function that is not watched."""

    @property
    def is_unknown(self) -> bool:
        """Whether it may be any function."""
        return self == UNKNOWN_CALLEE


UNKNOWN_CALLEE = Callee()
Path: TypeAlias = tuple[Function, ...]
"""Consecutive functions without frames, the innermost first."""
Goal: TypeAlias = str | Function | None
"""The end of a path: a watched thing, a function, or (None) some system function."""
_DIRECT: tuple[Path, ...] = ((),)


@dataclass(frozen=True, kw_only=True)  # without slots, for its cached property
class CodeFacts:
    """Facts about the code of a program's images, each by image key and offset."""

    calls: Mapping[Function, Callee]
    """By return address. Calls that are not listed are unknown."""
    jumps: Mapping[Function, tuple[Callee, ...]]
    """By function: where it may end with a jump."""
    methods: Mapping[str, tuple[Function, ...]]
    """By selector: the functions that implement it, outside of the system."""
    replacements: Mapping[str, frozenset[Function]]
    """By a rule's ``watch``: functions that were put in its place and call the original."""

    def paths(self, address: Function, goal: Goal) -> tuple[Path, ...]:
        """Return the functions between a return address and what its call led to.

        Args:
            address: a frame's return address.
            goal: what the call led to.

        Returns:
            All possible paths; an empty path is a call without missing frames. No path at all: the
            call leads to a function that is not known to jump to the goal.
        """
        callee = self.calls.get(address)
        if callee is None or callee.is_system or callee.watch:
            # Another watched function is the system's, too: it may itself end with a jump.
            return _DIRECT
        if callee.is_unknown:
            return (*_DIRECT, *self._to(goal))
        paths: list[Path] = []
        if self._is_at(callee, goal):
            paths.append(())
        for function in self._targets(callee):
            if function != goal:
                self._follow(function, goal, (), paths)
        if not paths and callee.selector:
            return _DIRECT  # a method of the system, or of code that was loaded later
        return tuple(dict.fromkeys(paths))

    @cached_property
    def replacing(self) -> frozenset[Function]:
        """All functions that were put in the place of another."""
        return frozenset().union(*self.replacements.values())

    @cached_property
    def _paths_to(self) -> dict[Goal, tuple[Path, ...]]:
        return {}

    def _to(self, goal: Goal) -> tuple[Path, ...]:
        """Return the paths of jumps to a goal from any function; none to system functions."""
        if goal is None:
            return ()
        if goal not in self._paths_to:
            paths: list[Path] = []
            for function in self.jumps:
                self._follow(function, goal, (), paths)
            self._paths_to[goal] = tuple(dict.fromkeys(paths))
        return self._paths_to[goal]

    def _is_at(self, callee: Callee, goal: Goal) -> bool:
        """Return whether a call or a jump leads to the goal itself, as far as is known."""
        if goal is None:
            return callee.is_system or bool(callee.watch) or callee.is_unknown
        if isinstance(goal, str):
            is_message = callee.selector and is_method(goal, callee.selector)
            return callee.watch == goal or bool(is_message)
        if goal == callee.function or goal in self.methods.get(callee.selector, ()):
            return True
        return any(
            goal in replaced and self._is_at(callee, watch)
            for watch, replaced in self.replacements.items()
        )

    def _targets(self, callee: Callee) -> tuple[Function, ...]:
        if callee.function is not None:
            return (callee.function,)
        return self.methods.get(callee.selector, ())

    def _follow(self, function: Function, goal: Goal, outer: Path, paths: list[Path]) -> None:
        if function in outer or len(outer) >= _MAX_JUMPS or len(paths) >= _MAX_PATHS:
            return
        path = (function, *outer)
        for callee in self.jumps.get(function, ()):
            if self._is_at(callee, goal):
                paths.append(path)
            for further in self._targets(callee):
                if further != goal:
                    self._follow(further, goal, path, paths)


NO_FACTS = CodeFacts(calls={}, jumps={}, methods={}, replacements={})


def is_method(watch: str, selector: str) -> bool:
    """Return whether a rule watches a method with a selector."""
    return watch.startswith(("-[", "+[")) and watch[:-1].partition(" ")[2] == selector
