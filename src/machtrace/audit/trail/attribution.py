"""Who requested the data: the code that called a watched function, and the library that owns it.

The *asker* is the nearest code of the app's side, outward from the call. The *owner* is the
outermost library between it and the app's own code, as far as libraries called each other: where
the system, or a library that runs callbacks, called the inner library, that library's own handler
ran. Libraries that pass through are skipped for the owner.

Recorded frames are answered for all nodes of the tree at once (``owners``). Here are the rules for
a pair of stack and watched function: replaced functions, and functions without frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntFlag
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from machtrace.audit.trail.calls import CallFlag, ImageRole, Trail
from machtrace.audit.trail.code_facts import NO_FACTS, CodeFacts
from machtrace.audit.trail.libraries import CodeMap, Evidence, Function
from machtrace.audit.trail.owners import UNKNOWN, NodeColumns, Reason
from machtrace.audit.trail.stacks import ROOT, Mask, Nodes
from machtrace.frozen import dataclass

_SWIZZLES = 8
"""Replacements of one function on a stack that are skipped."""


class AttributionFlag(IntFlag):
    """How the answer came about."""

    REFLECTION = 1
    """The call was made by name, through ``performSelector:`` and similar."""
    THROUGH_SYSTEM = 2
    """The asker called a system function that made the call."""
    TAIL_CALL = 4
    """The asker has no frame: it ended with a jump."""
    SWIZZLED = 8
    """The call passed another library's replacement of the watched function."""
    PASSED_THROUGH = 16
    """A library that passes through made the call for the owner."""
    INLINED = 32


class _Answer(NamedTuple):
    library: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Attribution:
    """The answers for distinct pairs of stack and rule, as columns."""

    stack: Nodes
    rule: npt.NDArray[np.int32]
    asker: npt.NDArray[np.int32]
    """Index of the library, or :data:`UNKNOWN`."""
    owner: npt.NDArray[np.int32]
    frame: Nodes
    """The asker's node; of a tail call, that of its caller. The root if there is none."""
    evidence: npt.NDArray[np.uint8]
    flags: npt.NDArray[np.uint8]
    asker_reason: npt.NDArray[np.uint8]
    owner_reason: npt.NDArray[np.uint8]
    candidates: Mapping[int, tuple[int, ...]]
    """By row, where the asker is one of several libraries: which."""
    functions: Mapping[int, tuple[tuple[Function, ...], ...]]
    """By row, for tail calls: the possible functions without frames, innermost first."""
    row_of_call: npt.NDArray[np.int64]
    """By call of the trail: the row."""
    code: CodeMap

    def library_name(self, number: int) -> str:
        """Return the name of a library; ``?`` if it is unknown."""
        return "?" if number == UNKNOWN else self.code.libraries[number].name


def attribute(trail: Trail, code: CodeMap, facts: CodeFacts = NO_FACTS) -> Attribution:
    """Return who requested each call of a trail.

    Args:
        trail: the calls; its images are those of ``code``, in the same order.
        code: whose code each address is.
        facts: what the instructions show, for tail calls and replaced functions.
    """
    calls = trail.calls
    outer_missing = calls.has(CallFlag.OUTER_MISSING).astype(np.int64)
    inner_missing = calls.has(CallFlag.INNER_MISSING).astype(np.int64)
    keys = ((calls.stack.astype(np.int64) << 16) | calls.rule) << 2
    keys |= outer_missing | inner_missing << 1
    distinct, row_of_call = np.unique(keys, return_inverse=True)
    state = NodeColumns(trail.stacks, code)
    rows = _Rows(
        state,
        (distinct >> 18).astype(np.int32),
        ((distinct >> 2) & 0xFFFF).astype(np.int32),
        (distinct & 1) != 0,
        (distinct & 2) != 0,
    )
    rows.start()
    rows.skip_replacements(trail.rules, facts)
    rows.resolve_jumps(trail.rules, facts)
    return rows.result(row_of_call.reshape(-1))


class _Rows:
    """The answers, by distinct stack and rule."""

    def __init__(
        self,
        nodes: NodeColumns,
        stack: Nodes,
        rule: npt.NDArray[np.int32],
        outer_missing: Mask,
        inner_missing: Mask,
    ) -> None:
        size = len(stack)
        self._nodes = nodes
        self._stack, self._rule = stack, rule
        self._top = stack.copy()
        """The innermost frame that is no replacement of the watched function."""
        self._outer_missing, self._inner_missing = outer_missing, inner_missing
        self._asker = np.full(size, UNKNOWN, np.int32)
        self._owner = np.full(size, UNKNOWN, np.int32)
        self._frame = np.zeros(size, np.int32)
        self._evidence = np.full(size, Evidence.NONE, np.uint8)
        self._flags = np.zeros(size, np.uint8)
        self._asker_reason = np.zeros(size, np.uint8)
        self._owner_reason = np.zeros(size, np.uint8)
        self._candidates: dict[int, tuple[int, ...]] = {}
        self._functions: dict[int, tuple[tuple[Function, ...], ...]] = {}

    def start(self) -> None:
        """Answer by the recorded frames alone."""
        self._answer(np.arange(len(self._stack)), self._stack)

    def _answer(self, rows: npt.NDArray[np.int64], top: Nodes) -> None:
        """Answer rows as if ``top`` were their innermost frames."""
        nodes = self._nodes
        end = nodes.asker[top]
        plain = nodes.plain_count[top] - nodes.plain_count[end]
        unnamed = nodes.unnamed_count[top] - nodes.unnamed_count[end]
        between = nodes.system_count[top] - nodes.system_count[end]
        is_side = nodes.is_app[end] | nodes.is_library[end]
        is_end = nodes.dispatches[end] | (end == ROOT)
        reason = np.zeros(len(rows), np.uint8)
        reason[nodes.is_unknown[end]] = Reason.UNKNOWN_CODE
        reason[nodes.is_mark[end]] = Reason.OUTER_MISSING
        reason[(is_side | is_end) & (unnamed > 0)] = Reason.UNNAMED_SYSTEM
        by_system = is_end & (plain > 0)
        reason[by_system] = Reason.NONE
        reason[is_end & (plain == 0) & (unnamed == 0)] = Reason.SCHEDULED
        reason[(end == ROOT) & self._outer_missing[rows]] = Reason.OUTER_MISSING
        reason[top == ROOT] = Reason.NO_STACK
        reason[self._inner_missing[rows]] = Reason.INNER_MISSING
        is_known = reason == Reason.NONE
        system_frame = nodes.first_plain[top]
        frame = np.where(by_system, system_frame, end).astype(np.int32)
        asker = np.where(is_known, nodes.library[frame], UNKNOWN)
        owner = np.where(by_system, asker, nodes.owner[frame])
        owner_reason = np.where(is_side, nodes.owner_reason[frame], reason)
        cut = is_side & nodes.owner_at_root[frame] & self._outer_missing[rows]
        owner_reason[cut] = Reason.OUTER_MISSING
        owner_reason[~is_known] = reason[~is_known]
        flags = np.zeros(len(rows), np.uint8)
        flags[is_side & (plain == 0) & (between > 0)] |= np.uint8(AttributionFlag.REFLECTION)
        flags[is_side & (plain > 0)] |= np.uint8(AttributionFlag.THROUGH_SYSTEM)
        flags[is_side & nodes.passed[frame]] |= np.uint8(AttributionFlag.PASSED_THROUGH)
        flags[is_side & (nodes.located.within[frame] >= 0)] |= np.uint8(AttributionFlag.INLINED)
        self._asker[rows] = asker
        self._owner[rows] = np.where(owner_reason == Reason.NONE, owner, UNKNOWN)
        self._frame[rows] = frame
        self._evidence[rows] = np.where(is_known, nodes.located.evidence[frame], Evidence.NONE)
        self._flags[rows] = (self._flags[rows] & np.uint8(AttributionFlag.SWIZZLED)) | flags
        self._asker_reason[rows] = reason
        self._owner_reason[rows] = owner_reason

    def skip_replacements(self, rules: tuple[str, ...], facts: CodeFacts) -> None:
        """Continue at the caller where the asker is a replacement of the watched function."""
        if not facts.replacements:
            return
        nodes = self._nodes
        is_ours = np.array([watch in facts.replacements for watch in rules] or [False])
        rows = np.flatnonzero(is_ours[self._rule])
        for _ in range(_SWIZZLES):
            side = nodes.is_app[self._frame[rows]] | nodes.is_library[self._frame[rows]]
            rows = rows[side & (nodes.located.function[self._frame[rows]] >= 0)]
            keys = (self._frame[rows].astype(np.int64) << 16) | self._rule[rows]
            pairs, places = np.unique(keys, return_inverse=True)
            is_replaced = np.array(
                [
                    nodes.function_at(pair >> 16) in facts.replacements[rules[pair & 0xFFFF]]
                    for pair in pairs.tolist()
                ],
                np.bool_,
            )
            rows = rows[is_replaced[places.reshape(-1)]]
            if not len(rows):
                return
            self._flags[rows] |= np.uint8(AttributionFlag.SWIZZLED)
            self._top[rows] = nodes.tree.parent[self._frame[rows]]
            self._answer(rows, self._top[rows])

    def resolve_jumps(self, rules: tuple[str, ...], facts: CodeFacts) -> None:
        """Add the functions without frames that the innermost frame's instructions show."""
        if not facts.calls:
            return
        nodes = self._nodes
        top = self._top
        usable = (nodes.tree.image[top] >= 0) & (top != ROOT) & ~self._inner_missing
        usable &= ~nodes.is_system[top]
        rows = np.flatnonzero(usable)
        keys = np.stack(
            [
                nodes.tree.image[top[rows]].astype(np.int64),
                nodes.tree.offset[top[rows]].view(np.int64),
                self._rule[rows].astype(np.int64),
            ],
            axis=1,
        )
        distinct, places = np.unique(keys, axis=0, return_inverse=True)
        by_place = np.argsort(places.reshape(-1), kind="stable")
        bounds = np.searchsorted(places.reshape(-1)[by_place], np.arange(len(distinct) + 1))
        for number, (image, offset, rule) in enumerate(distinct.tolist()):
            address = Function(nodes.code.images[image].key, offset)
            paths = facts.missing_frames(address, rules[rule])
            if paths == ((),):
                continue
            for row in rows[by_place[bounds[number] : bounds[number + 1]]].tolist():
                if paths:
                    self._add_frames(row, paths, facts.replacements.get(rules[rule], frozenset()))
                else:
                    self._without_path(row, facts, address)

    def _without_path(self, row: int, facts: CodeFacts, address: Function) -> None:
        function = facts.calls[address].function
        libraries = self._nodes.code.libraries
        number = UNKNOWN if function is None else self._nodes.code.library_of(function)
        if number != UNKNOWN and libraries[number].role is ImageRole.SYSTEM:
            self._flags[row] |= np.uint8(AttributionFlag.THROUGH_SYSTEM)
            return
        self._refuse(row, Reason.UNKNOWN_JUMP)

    def _refuse(self, row: int, reason: Reason) -> None:
        self._asker[row] = self._owner[row] = UNKNOWN
        self._asker_reason[row] = self._owner_reason[row] = reason
        self._evidence[row] = Evidence.NONE

    def _add_frames(
        self,
        row: int,
        paths: tuple[tuple[Function, ...], ...],
        replacements: frozenset[Function],
    ) -> None:
        answers: dict[tuple[_Answer, _Answer], None] = {}
        is_direct = False
        flags = int(self._flags[row])
        for path in paths:
            inner = [function for function in path if function not in replacements]
            is_direct |= not inner
            if len(inner) < len(path):
                flags |= AttributionFlag.SWIZZLED
            answers[self._with(row, inner)] = None
        self._functions[row] = paths
        if not is_direct:
            flags = (flags & AttributionFlag.SWIZZLED) | AttributionFlag.TAIL_CALL
            self._frame[row] = self._top[row]
        self._flags[row] = flags
        askers = tuple(dict.fromkeys(asker for asker, _ in answers))
        owners = tuple(dict.fromkeys(owner for _, owner in answers))
        if len(askers) > 1:
            self._candidates[row] = tuple(asker.library for asker in askers)
            self._refuse(row, Reason.SEVERAL)
        else:
            self._asker[row], self._asker_reason[row] = askers[0]
            if not is_direct:
                self._evidence[row] = self._evidence_of(paths[0][0])
        if len(owners) == 1:
            self._owner[row], self._owner_reason[row] = owners[0]
        else:
            self._owner[row], self._owner_reason[row] = UNKNOWN, Reason.SEVERAL

    def _evidence_of(self, function: Function) -> int:
        code = self._nodes.code
        image = np.array([code.index_of(function.image)], np.int32)
        if image[0] < 0:
            return Evidence.NONE
        return int(code.locate(image, np.array([function.offset + 1], np.uint64)).evidence[0])

    def _with(self, row: int, functions: list[Function]) -> tuple[_Answer, _Answer]:
        """Return the asker and the owner with functions without frames inside of the stack."""
        nodes = self._nodes
        top = int(self._top[row])
        recorded = self._recorded(top, is_cut=bool(self._outer_missing[row]))
        if not functions:
            return recorded
        numbers = [nodes.code.library_of(function) for function in functions]
        if numbers[0] == UNKNOWN:
            unknown = _Answer(UNKNOWN, Reason.UNKNOWN_CODE)
            return unknown, unknown
        asker = _Answer(numbers[0], Reason.NONE)
        return asker, self._owner_of(numbers, top, recorded[1])

    def _owner_of(self, numbers: list[int], top: int, outer: _Answer) -> _Answer:
        """Return the owner of functions without frames, called by a recorded frame.

        Args:
            numbers: their libraries, the innermost first.
            top: the recorded frame's node.
            outer: that frame's own owner.
        """
        nodes = self._nodes
        owner = numbers[0]
        for number in numbers[1:]:
            if number == UNKNOWN:
                return _Answer(UNKNOWN, Reason.UNKNOWN_CODE)
            if not self._is_caller(owner, number):
                return _Answer(owner, Reason.NONE)
            owner = self._outward(owner, number)
        if nodes.is_wrapper[top] and not nodes.code.libraries[owner].passes_through:
            top = int(nodes.past_wrappers[top])
            outer = self._recorded(top, is_cut=False)[1]
        if nodes.is_mark[top] or nodes.is_unknown[top]:
            return outer
        caller = int(nodes.library[top])
        if top == ROOT or not self._is_caller(owner, caller):
            return _Answer(owner, Reason.NONE)
        return outer

    def _is_caller(self, owner: int, caller: int) -> bool:
        """Return whether the owner may be further outward, if ``caller`` calls ``owner``."""
        inner = self._nodes.code.libraries[owner]
        outer = self._nodes.code.libraries[caller]
        if inner.role is not ImageRole.LIBRARY or outer.role is ImageRole.SYSTEM:
            return False
        return inner.passes_through or (
            outer.role is ImageRole.LIBRARY and not outer.runs_callbacks
        )

    def _outward(self, owner: int, caller: int) -> int:
        """Return the owner after ``caller``: a library that passes through owns nothing more."""
        libraries = self._nodes.code.libraries
        if libraries[caller].passes_through and not libraries[owner].passes_through:
            return owner
        return caller

    def _recorded(self, top: int, *, is_cut: bool) -> tuple[_Answer, _Answer]:
        """Return the answers for a node of the app's side."""
        nodes = self._nodes
        if nodes.is_unknown[top] or nodes.is_mark[top]:
            reason = Reason.UNKNOWN_CODE if nodes.is_unknown[top] else Reason.OUTER_MISSING
            return _Answer(UNKNOWN, reason), _Answer(UNKNOWN, reason)
        owner = _Answer(int(nodes.owner[top]), Reason(int(nodes.owner_reason[top])))
        if nodes.owner_at_root[top] and is_cut:
            owner = _Answer(UNKNOWN, Reason.OUTER_MISSING)
        return _Answer(int(nodes.library[top]), Reason.NONE), owner

    def result(self, row_of_call: npt.NDArray[Any]) -> Attribution:
        """Return the columns."""
        return Attribution(
            stack=self._stack,
            rule=self._rule,
            asker=self._asker,
            owner=self._owner,
            frame=self._frame,
            evidence=self._evidence,
            flags=self._flags,
            asker_reason=self._asker_reason,
            owner_reason=self._owner_reason,
            candidates=self._candidates,
            functions=self._functions,
            row_of_call=row_of_call.astype(np.int64),
            code=self._nodes.code,
        )
