"""The call sites that a scan of the app's files lists, joined with recorded return addresses.

A return address is that of the instruction after a call, so the join is exact. A site that is a
jump leaves none: it was reached if the instructions lead from a recorded return address to its
function alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from machtrace.audit.rules import Rule
from machtrace.audit.scan.image import Certainty
from machtrace.audit.trail.app_code import AppCode, AppSite
from machtrace.audit.trail.attribution import Attribution, AttributionFlag
from machtrace.audit.trail.calls import Trail
from machtrace.audit.trail.libraries import Function
from machtrace.audit.trail.stacks import ROOT
from machtrace.frozen import dataclass

_Key = tuple[Function, str]
"""A place in code, and what was watched there."""


class CoveredSite(NamedTuple):
    """A call site of the app."""

    site: AppSite
    calls: int
    """Calls that were recorded from it."""


class Unlisted(NamedTuple):
    """Calls from a place that the scan does not list: by a pointer, or by a name made at run time.

    The image is one that was scanned.
    """

    library: str
    watch: str
    place: Function
    """The return address."""
    calls: int


class CoverageRow(NamedTuple):
    """The sites of one function in one library."""

    library: str
    rule: Rule
    reached: int
    sites: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """The call sites of what was watched; those that may call something else only if reached."""

    sites: tuple[CoveredSite, ...]
    unlisted: tuple[Unlisted, ...]

    @property
    def reached(self) -> int:
        """The number of sites with calls."""
        return sum(site.calls > 0 for site in self.sites)

    def rows(self) -> list[CoverageRow]:
        """Return the sums by library and function."""
        groups: dict[tuple[str, str], list[CoveredSite]] = defaultdict(list)
        for each in self.sites:
            groups[each.site.library, each.site.site.rule.watch].append(each)
        return [
            CoverageRow(
                library, sites[0].site.site.rule, sum(site.calls > 0 for site in sites), len(sites)
            )
            for (library, _), sites in sorted(groups.items())
        ]

    def missed(self) -> Iterator[AppSite]:
        """Yield the sites without calls."""
        return (site.site for site in self.sites if not site.calls)


def coverage_of(trail: Trail, attribution: Attribution, app: AppCode) -> Coverage:
    """Return which call sites of an app were reached.

    Args:
        trail: the calls.
        attribution: their libraries.
        app: the files of the trail's images.
    """
    callers = _callers(trail, attribution)
    jumps: dict[_Key, int] = defaultdict(int)
    for (place, watch), (calls, _) in callers.items():
        paths = app.facts.paths(place, watch)
        if len(paths) == 1 and paths[0]:
            jumps[paths[0][0], watch] += calls
    covered: list[CoveredSite] = []
    listed: set[_Key] = set()
    for each in app.sites:
        site = each.site
        if not site.is_call or site.rule.watch not in trail.rules:
            continue
        if site.return_offset is not None:
            key = Function(each.image.key, site.return_offset), site.rule.watch
            listed.add(key)
            calls = callers[key][0] if key in callers else 0
        else:
            calls = jumps.get((Function(each.image.key, site.function_offset), site.rule.watch), 0)
        if calls or site.certainty is not Certainty.POSSIBLE:
            covered.append(CoveredSite(each, calls))
    unlisted = [
        Unlisted(library, watch, place, calls)
        for (place, watch), (calls, library) in callers.items()
        if place.image in app.ranges
        and (place, watch) not in listed
        and app.facts.paths(place, watch) == ((),)
    ]
    return Coverage(
        sites=tuple(covered), unlisted=tuple(sorted(unlisted, key=lambda each: each[:3]))
    )


def _callers(trail: Trail, attribution: Attribution) -> dict[_Key, tuple[int, str]]:
    """Return the calls from each recorded return address, by function, and its library."""
    weights = np.zeros(len(attribution.rule), np.int64)
    np.add.at(weights, attribution.row_of_call, trail.calls.calls)
    tree = trail.stacks
    callers: dict[_Key, tuple[int, str]] = {}
    # Of a call by name, the site is the call of the function that takes the name.
    is_by_name = (attribution.flags & np.uint8(AttributionFlag.REFLECTION)) != 0
    nodes = np.where(is_by_name, attribution.frame, attribution.stack)
    for row, node in enumerate(nodes.tolist()):
        if node == ROOT or tree.image[node] < 0:
            continue
        image = trail.images[int(tree.image[node])]
        key = Function(image.key, int(tree.offset[node])), trail.rules[int(attribution.rule[row])]
        calls, _ = callers.get(key, (0, ""))
        library = attribution.library_name(int(attribution.asker[row]))
        callers[key] = calls + int(weights[row]), library
    return callers
