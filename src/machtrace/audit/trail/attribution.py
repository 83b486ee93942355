"""Who requested the data: the code that called a watched function, and the library that owns it.

The *asker* is the nearest code of the app's side, outward from the call. The *owner* is the
outermost library between it and the app's own code, as far as libraries called each other: where
the system, or a library that runs callbacks, called the inner library, that library's own handler
ran. Libraries that pass through are skipped for the owner.

Functions without frames are added to the tree first (``missing_frames``), and all nodes of the tree
are answered at once (``owners``). Here are the rules for a pair of stack and watched function:
replaced functions, and several possible callers.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntFlag
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from machtrace.audit.trail.calls import CallFlag, Trail
from machtrace.audit.trail.code_facts import NO_FACTS, CodeFacts
from machtrace.audit.trail.libraries import CodeMap, Evidence
from machtrace.audit.trail.missing_frames import CompletedTree
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
    stack, rule = (distinct >> 18).astype(np.int32), ((distinct >> 2) & 0xFFFF).astype(np.int32)
    tree = CompletedTree(trail.stacks, code, facts)
    candidates = _candidates(tree, stack, rule, trail.rules, facts)
    nodes = NodeColumns(tree.build(), code)
    flags = (distinct & 1) != 0, (distinct & 2) != 0
    answers = _Answers(nodes, rule, *flags, candidates)
    answers.skip_replacements(trail.rules, facts)
    return answers.result(stack, row_of_call.reshape(-1), code)


class _Candidates(NamedTuple):
    """Nodes that may have made the calls of a row, ordered by row."""

    row: npt.NDArray[np.int64]
    top: Nodes
    through_system: Mask


def _candidates(
    tree: CompletedTree,
    stack: Nodes,
    rule: npt.NDArray[np.int32],
    rules: tuple[str, ...],
    facts: CodeFacts,
) -> _Candidates:
    """Return the candidates of each row: its innermost frame, or functions without frames."""
    top = tree.node_of[stack]
    if not facts.calls:
        return _Candidates(np.arange(len(stack)), top, np.zeros(len(stack), np.bool_))
    pairs, inverse = np.unique((top.astype(np.int64) << 16) | rule, return_inverse=True)
    callers = [list(tree.callers(pair >> 16, rules[pair & 0xFFFF])) for pair in pairs.tolist()]
    through = np.array([tree.calls_system(pair >> 16) for pair in pairs.tolist()], np.bool_)
    places = inverse.reshape(-1)
    flat = [node for place in places.tolist() for node in callers[place]]
    sizes = [len(callers[place]) for place in places.tolist()]
    rows = np.repeat(np.arange(len(stack)), sizes)
    return _Candidates(rows, np.array(flat, np.int32), through[places[rows]])


class _Answers:
    """The answers, by candidate."""

    def __init__(
        self,
        nodes: NodeColumns,
        rule: npt.NDArray[np.int32],
        outer_missing: Mask,
        inner_missing: Mask,
        candidates: _Candidates,
    ) -> None:
        self._nodes, self._rule_of_row = nodes, rule
        self._row, top, through_system = candidates
        size = len(top)
        self._rule = rule[self._row]
        self._outer_missing = outer_missing[self._row]
        self._inner_missing = inner_missing[self._row]
        self._asker = np.full(size, UNKNOWN, np.int32)
        self._owner = np.full(size, UNKNOWN, np.int32)
        self._frame = np.zeros(size, np.int32)
        self._flags = np.zeros(size, np.uint8)
        self._asker_reason = np.zeros(size, np.uint8)
        self._owner_reason = np.zeros(size, np.uint8)
        self._answer(np.arange(size), top)
        self._flags[through_system & (self._asker >= 0)] |= np.uint8(AttributionFlag.THROUGH_SYSTEM)

    def _answer(self, rows: npt.NDArray[np.int64], top: Nodes) -> None:
        """Answer candidates as if ``top`` were their innermost nodes."""
        nodes = self._nodes
        end = nodes.asker[top]
        plain = nodes.plain_count[top] - nodes.plain_count[end]
        unnamed = nodes.unnamed_count[top] - nodes.unnamed_count[end]
        between = nodes.system_count[top] - nodes.system_count[end]
        is_side = nodes.is_app[end] | nodes.is_library[end]
        is_end = nodes.dispatches[end] | (end == ROOT)
        reason = nodes.reason[end]
        reason[(is_side | is_end) & (unnamed > 0)] = Reason.UNNAMED_SYSTEM
        by_system = is_end & (plain > 0)
        reason[by_system] = Reason.NONE
        reason[is_end & (plain == 0) & (unnamed == 0)] = Reason.SCHEDULED
        reason[(end == ROOT) & self._outer_missing[rows]] = Reason.OUTER_MISSING
        reason[top == ROOT] = Reason.NO_STACK
        reason[self._inner_missing[rows]] = Reason.INNER_MISSING
        is_known = reason == Reason.NONE
        frame = np.where(by_system, nodes.first_plain[top], end).astype(np.int32)
        owner_reason = np.where(is_side & is_known, nodes.owner_reason[frame], reason)
        cut = is_side & is_known & nodes.owner_at_root[frame] & self._outer_missing[rows]
        owner_reason[cut] = Reason.OUTER_MISSING
        asker = np.where(is_known, nodes.library[frame], UNKNOWN)
        owner = np.where(by_system, asker, nodes.owner[frame])
        flags = np.zeros(len(rows), np.uint8)
        is_inlined = nodes.located.within[frame] >= 0
        for flag, mask in (
            (AttributionFlag.REFLECTION, (plain == 0) & (between > 0)),
            (AttributionFlag.THROUGH_SYSTEM, plain > 0),
            (AttributionFlag.PASSED_THROUGH, nodes.passed[frame]),
            (AttributionFlag.INLINED, is_inlined),
            (AttributionFlag.TAIL_CALL, nodes.is_missing[frame]),
        ):
            flags[is_side & is_known & mask] |= np.uint8(flag)
        self._asker[rows] = asker
        self._owner[rows] = np.where(owner_reason == Reason.NONE, owner, UNKNOWN)
        self._frame[rows] = frame
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
            self._answer(rows, nodes.tree.parent[self._frame[rows]])

    def result(
        self, stack: Nodes, row_of_call: npt.NDArray[np.int64], code: CodeMap
    ) -> Attribution:
        """Return one answer for each row: what all of its candidates agree on."""
        nodes = self._nodes
        first = np.searchsorted(self._row, np.arange(len(stack)))
        asker, owner = self._asker[first], self._owner[first]
        asker_reason, owner_reason = self._asker_reason[first], self._owner_reason[first]
        evidence = np.where(
            asker >= 0, nodes.located.evidence[self._frame[first]], np.uint8(Evidence.NONE)
        )
        others = first[self._row]
        # A candidate whose library is unknown may be any of them.
        differs = (self._asker != self._asker[others]) | (
            self._asker_reason != self._asker_reason[others]
        )
        several = np.unique(self._row[differs])
        owners = np.unique(
            self._row[
                (self._owner != self._owner[others])
                | (self._owner_reason != self._owner_reason[others])
            ]
        )
        asker[several], asker_reason[several] = UNKNOWN, Reason.SEVERAL
        evidence[several] = Evidence.NONE
        owners = np.union1d(owners, several)
        owner[owners], owner_reason[owners] = UNKNOWN, Reason.SEVERAL
        ends = np.append(first[1:], len(self._row))
        return Attribution(
            stack=stack,
            rule=self._rule_of_row,
            asker=asker,
            owner=owner,
            frame=nodes.recorded[self._frame[first]],
            evidence=evidence.astype(np.uint8),
            flags=self._flags[first],
            asker_reason=asker_reason,
            owner_reason=owner_reason,
            candidates={
                row: tuple(dict.fromkeys(self._asker[first[row] : ends[row]].tolist()))
                for row in several.tolist()
            },
            row_of_call=row_of_call.astype(np.int64),
            code=code,
        )
