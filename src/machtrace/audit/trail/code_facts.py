"""Facts of a program's code: where each call leads, and by which jumps functions end.

A call of a function that ends with a jump to a watched function leaves no frame of that function:
the return address is its caller's. The instructions show the missing functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from machtrace.audit.scan.app import AppScan
from machtrace.audit.scan.image import Certainty
from machtrace.audit.trail.libraries import Function
from machtrace.frozen import dataclass

_LONGEST = 8
"""Consecutive jumps that are followed."""
_MOST = 64
"""Paths between a call and a watched function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Callee:
    """Where a call or a jump leads. Without any value: to an address in a register."""

    watch: str = ""
    """The watched thing, by its name in the rules."""
    function: Function | None = None
    selector: str = ""
    """The message's, if the class of its receiver is unknown."""


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

    @cached_property
    def tail_callers(self) -> Mapping[str, frozenset[Function]]:
        """By a rule's ``watch``: the functions that end with a jump to it."""
        callers: dict[str, set[Function]] = {}
        for function, callees in self.jumps.items():
            for callee in callees:
                if callee.watch:
                    callers.setdefault(callee.watch, set()).add(function)
        return {watch: frozenset(functions) for watch, functions in callers.items()}

    def missing_frames(self, address: Function, watch: str) -> tuple[tuple[Function, ...], ...]:
        """Return the functions between a return address and a watched function that it called.

        Args:
            address: the return address of the innermost frame.
            watch: the rule.

        Returns:
            All possible paths, each with the innermost function first; an empty path is a call
            without missing frames. No path at all: the call leads to a function that is not known
            to jump to what is watched.
        """
        callee = self.calls.get(address)
        # Another watched function is the system's, too: it may itself end with a jump to this one.
        if callee is None or callee.watch or (callee.function is None and not callee.selector):
            return ((),)
        paths: list[tuple[Function, ...]] = []
        if callee.selector and _selector(watch) == callee.selector:
            paths.append(())
        for function in self._targets(callee):
            self._follow(function, watch, (), paths)
        return tuple(dict.fromkeys(paths))

    def _targets(self, callee: Callee) -> tuple[Function, ...]:
        if callee.function is not None:
            return (callee.function,)
        return self.methods.get(callee.selector, ())

    def _follow(
        self,
        function: Function,
        watch: str,
        outer: tuple[Function, ...],
        paths: list[tuple[Function, ...]],
    ) -> None:
        if function in outer or len(outer) >= _LONGEST or len(paths) >= _MOST:
            return
        path = (function, *outer)
        for callee in self.jumps.get(function, ()):
            if callee.watch == watch or (callee.selector and callee.selector == _selector(watch)):
                paths.append(path)
            for further in self._targets(callee):
                self._follow(further, watch, path, paths)


NO_FACTS = CodeFacts(calls={}, jumps={}, methods={}, replacements={})


def _selector(watch: str) -> str:
    return watch[:-1].partition(" ")[2] if watch.startswith(("-[", "+[")) else ""


def facts_of_scan(scan: AppScan) -> CodeFacts:
    """Return what a scan knows: the watched calls and jumps themselves."""
    calls: dict[Function, Callee] = {}
    jumps: dict[Function, set[Callee]] = {}
    for image in scan.images:
        key = image.uuid or image.path
        for site in image.scan.sites:
            if not site.is_call:
                continue
            sure = site.certainty is not Certainty.POSSIBLE
            watch = site.rule.watch
            callee = Callee(watch=watch) if sure else Callee(selector=_selector(watch))
            if site.return_offset is not None:
                calls[Function(key, int(site.return_offset))] = callee
            else:
                function = Function(key, int(site.function_offset))
                jumps.setdefault(function, set()).add(callee)
    return CodeFacts(
        calls=calls,
        jumps={
            function: tuple(sorted(callees, key=lambda each: (each.watch, each.selector)))
            for function, callees in jumps.items()
        },
        methods={},
        replacements={},
    )
