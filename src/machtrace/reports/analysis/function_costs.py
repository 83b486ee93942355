"""Function costs: how many samples end in each function, and how many contain it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from machtrace.frozen import dataclass
from machtrace.model.profile import OUTERMOST, Profile, StackTable
from machtrace.render.call_tree import all_weights
from machtrace.render.functions import Function, functions_of


class FunctionKey(NamedTuple):
    """A function's identity across processes: neither address nor build."""

    name: str
    image: str
    """The image's file name; empty if unknown."""


class FunctionCost(NamedTuple):
    """The number of samples of a function."""

    function: FunctionKey
    own: int
    """Stacks that end in it."""
    total: int
    """Stacks that contain it, each counted once."""
    path: str
    """The path of its source file; empty if unknown."""


@dataclass(frozen=True, slots=True)
class FunctionCosts:
    """The functions of one or more profiles."""

    functions: tuple[FunctionCost, ...]
    """Most own samples first, then most total ones."""
    weight: int
    """The number of all stacks."""

    def share(self, samples: int) -> float:
        """Return the fraction of all stacks, from 0 to 1."""
        return samples / self.weight if self.weight else 0.0


def function_costs(profiles: Iterable[Profile]) -> FunctionCosts:
    """Compute what functions cost in ``profiles`` together."""
    own: dict[FunctionKey, int] = {}
    total: dict[FunctionKey, int] = {}
    paths: dict[FunctionKey, str] = {}
    weight = 0
    for profile in profiles:
        table = functions_of(profile.frames)
        numbers: dict[FunctionKey, int] = {}
        keys: list[int] = []
        for function in table.functions:
            key = function_key(function)
            paths[key] = paths.get(key) or function.path
            keys.append(numbers.setdefault(key, len(numbers)))
        calls = [tuple(keys[call.function] for call in calls) for calls in table.calls]
        weights = all_weights(profile)
        weight += sum(weights.values())
        own_total = _costs(profile.stacks, weights, calls, len(numbers))
        for key, its_own, its_total in zip(numbers, *own_total, strict=True):
            own[key] = own.get(key, 0) + its_own
            total[key] = total.get(key, 0) + its_total
    costs = [FunctionCost(key, own[key], total[key], paths[key]) for key in total if total[key]]
    costs.sort(key=lambda cost: (-cost.own, -cost.total, cost.function))
    return FunctionCosts(tuple(costs), weight)


def function_key(function: Function) -> FunctionKey:
    """Return the function's key, which other processes share."""
    return FunctionKey(function.name, "" if function.image is None else function.image.name)


def _costs(
    stacks: StackTable, weights: Mapping[int, int], calls: list[tuple[int, ...]], count: int
) -> tuple[array[int], array[int]]:
    """Return own and total of each function, in time linear in the table, not in all stacks."""
    own, total = array("q", bytes(8 * count)), array("q", bytes(8 * count))
    through = array("q", bytes(8 * len(stacks)))
    called: list[list[int]] = [[] for _ in range(len(stacks) + 1)]
    for row in range(len(stacks) - 1, -1, -1):
        caller = stacks.callers[row]
        through[row] += weights.get(row, 0)
        called[caller].append(row)  # callers-less roots are in the last slot
        if caller != OUTERMOST:
            through[caller] += through[row]
    open_calls = array("q", bytes(8 * count))
    waiting = list(called[OUTERMOST])
    while waiting:
        row = waiting.pop()
        if row < 0:  # all its callees are done
            for key in calls[stacks.frames[~row]]:
                open_calls[key] -= 1
            continue
        in_frame = calls[stacks.frames[row]]
        if in_frame:
            own[in_frame[-1]] += weights.get(row, 0)
        for key in in_frame:
            if not open_calls[key]:
                total[key] += through[row]
            open_calls[key] += 1
        waiting.append(~row)
        waiting += called[row]
    return own, total
