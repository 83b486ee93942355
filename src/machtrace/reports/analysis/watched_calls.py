"""Calls of watched functions in the report of a spool: how often, from which images and stacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from heapq import nlargest
from typing import NamedTuple

from machtrace.frozen import dataclass
from machtrace.model.report import Report, ReportedFrame, SampledTree
from machtrace.reports.spool.facts import RuleFacts, SpoolFacts, spool_facts


class WatchedFunction(NamedTuple):
    """A watched function."""

    facts: RuleFacts
    callers: tuple[tuple[str, int], ...]
    """Names of images with their calls, the most first; an empty name for unknown callers."""


class WatchedStack(NamedTuple):
    """A stack that called a watched function."""

    function: str
    calls: int
    frames: tuple[ReportedFrame, ...]
    """The callers, innermost first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedCalls:
    """The calls of one spool."""

    facts: SpoolFacts
    functions: tuple[WatchedFunction, ...]
    """The most called first."""
    stacks: tuple[WatchedStack, ...]
    """The most frequent of all functions, as many as were requested, and of each function the most
    frequent one; sorted by calls.
    """


def watched_calls(report: Report, count: int) -> WatchedCalls | None:
    """Return the calls in the report of a spool, with its ``count`` most frequent stacks.

    None for reports of other kinds.
    """
    facts = spool_facts(report)
    if facts is None:
        return None
    callers: dict[str, Counter[str]] = {}
    ends: list[tuple[int, int, SampledTree]] = []
    firsts: dict[str, tuple[int, int, SampledTree]] = {}
    for tree in report.trees:
        for node, calls in _ends(tree):
            end, name = (calls, node, tree), _name(tree.nodes[node].frame)
            ends.append(end)
            # A function that is called rarely is shown beside one that is called all the time.
            firsts[name] = max(firsts.get(name, end), end, key=_calls)
            images = callers.setdefault(name, Counter())
            caller = next(_callers(tree, node), None)
            index = None if caller is None else caller.image
            images["" if index is None else report.images[index].name] += calls
    heaviest = nlargest(count, ends, key=_calls)
    shown = {id(end) for end in heaviest}
    heaviest += [end for end in firsts.values() if id(end) not in shown]
    heaviest.sort(key=_calls, reverse=True)
    return WatchedCalls(
        facts=facts,
        functions=tuple(
            WatchedFunction(rule, tuple(callers.get(rule.symbol, Counter()).most_common()))
            for rule in facts.rules
        ),
        stacks=tuple(
            WatchedStack(_name(tree.nodes[node].frame), calls, tuple(_callers(tree, node)))
            for calls, node, tree in heaviest
        ),
    )


def _calls(end: tuple[int, int, SampledTree]) -> int:
    return end[0]


def _name(frame: ReportedFrame) -> str:
    return "" if frame.symbol is None else frame.symbol.name


def _ends(tree: SampledTree) -> Iterator[tuple[int, int]]:
    """Yield the nodes of watched functions with their calls; they have no callees."""
    own = [node.samples for node in tree.nodes]
    for node in tree.nodes:
        if node.parent is not None:
            own[node.parent] -= node.samples
    yield from ((node, calls) for node, calls in enumerate(own) if calls > 0)


def _callers(tree: SampledTree, node: int) -> Iterator[ReportedFrame]:
    parent = tree.nodes[node].parent
    while parent is not None:
        yield tree.nodes[parent].frame
        parent = tree.nodes[parent].parent
