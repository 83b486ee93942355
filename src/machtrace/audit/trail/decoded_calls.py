"""Facts of the app's code, by decoding the functions that recorded stacks lead to.

Only what the stacks refer to is decoded: the functions with recorded return addresses, those that
they call and that end with jumps, and where a call leads to an address in a register, the functions
that end with a jump to what it led to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from machtrace.audit.rules import Rule
from machtrace.audit.scan.code import ImageCode
from machtrace.audit.scan.elf_names import ElfNames
from machtrace.audit.scan.machines import X86
from machtrace.audit.scan.values import (
    ClassObject,
    CodeUse,
    Instance,
    MessageUse,
    SymbolUse,
    Use,
)
from machtrace.audit.trail.calls import Image, Trail
from machtrace.audit.trail.code_facts import UNKNOWN_CALLEE, Callee, CodeFacts, is_method
from machtrace.audit.trail.libraries import Function
from machtrace.audit.trail.stacks import ROOT
from machtrace.model.address import LAST_OFFSET

_ROUNDS = 8
"""Consecutive jumps that are searched backward."""
_ELSEWHERE = Callee(function=Function("", 1 << 12))
"""A function of an image that is not open, which may end with a jump to anything."""
_NEAR = 130
"""Bytes that the shortest jumps of x86 reach."""


class AppImage(NamedTuple):
    """An image of the app whose file is open."""

    image: Image
    code: ImageCode
    is_linked: bool = True
    """Whether others refer to its functions by their names, rather than load it at run time."""
    is_complete: bool = True
    """Whether all that it loads is the system's, or open: what nothing open defines is the
    system's then."""


class DecodedImage:
    """The calls and jumps of one image's functions. Functions are numbers of its table."""

    def __init__(self, opened: AppImage) -> None:
        self.key = opened.image.key
        self.is_linked, self.is_complete = opened.is_linked, opened.is_complete
        self.code = opened.code
        self._uses: dict[int, list[Use]] = {}

    def function_at(self, address: int) -> int | None:
        """Return the function that holds a stated address; None for stubs and outside of code."""
        offset = address - self.code.base
        if not 0 <= offset <= LAST_OFFSET:
            return None
        number = int(self.code.table.ids(np.array([offset], np.uint64))[0])
        return number if number in self._numbers else None

    @cached_property
    def _numbers(self) -> frozenset[int]:
        return frozenset(self.code.functions.tolist())

    def function(self, number: int) -> Function:
        """Return a function by its number."""
        return Function(self.key, int(self.code.table.starts[number]))

    def uses(self, number: int) -> list[Use]:
        """Return the calls and jumps of a function."""
        if number not in self._uses:
            self._uses[number] = self.code.uses(number, every=True)
        return self._uses[number]

    @cached_property
    def exports(self) -> dict[str, int]:
        """The functions that other images may call: addresses (Svma), by name."""
        return self.code.watched.exports()

    @cached_property
    def methods(self) -> dict[str, list[Function]]:
        """The functions of methods, by selector."""
        methods = self.code.watched.methods
        by_selector: dict[str, list[Function]] = defaultdict(list)
        if methods is not None:
            for row, address in enumerate(methods.rows.implementations.tolist()):
                if address >= self.code.base:
                    function = Function(self.key, address - self.code.base)
                    by_selector[methods.selector(row)].append(function)
        return by_selector


def code_facts(opened: Sequence[AppImage], trail: Trail) -> CodeFacts:
    """Return what the instructions show about the calls in recorded stacks.

    Args:
        opened: images of the trail, and others that these load.
        trail: the calls.
    """
    return _Facts([DecodedImage(each) for each in opened], trail).run()


class _Facts:
    def __init__(self, images: list[DecodedImage], trail: Trail) -> None:
        self._images = {each.key: each for each in images}
        self._trail = trail
        nodes = np.unique(trail.calls.stack)
        columns = trail.stacks.image[nodes].tolist(), trail.stacks.offset[nodes].tolist()
        self._innermost = set(zip(*columns, strict=True))
        self._calls: dict[Function, Callee] = {}
        self._jumps: dict[Function, tuple[Callee, ...]] = {}
        self._methods: dict[str, tuple[Function, ...]] = {}

    def run(self) -> CodeFacts:
        for index, image in enumerate(self._trail.images):
            decoded = self._images.get(image.key)
            if decoded is not None:
                self._add_calls(decoded, index)
        self._follow(self._calls.values())
        self._follow_backward(set(self._unknown_goals()))
        return CodeFacts(
            calls=self._calls, jumps=self._jumps, methods=self._methods, replacements={}
        )

    # --- calls ---

    def _add_calls(self, image: DecodedImage, index: int) -> None:
        """Add the calls before recorded return addresses."""
        tree, code = self._trail.stacks, image.code
        offsets = np.unique(tree.offset[tree.image == index])
        numbers = code.table.ids(offsets[offsets > 0], back=1)
        recorded = set(offsets.tolist())
        for number in np.intersect1d(numbers, code.functions).tolist():
            for use in image.uses(number):
                offset = use.after - code.base
                place = Function(image.key, offset)
                if offset not in recorded or place in self._calls or not _is_call(use):
                    continue
                callee = self._callee(image, use)
                if callee is None and (index, offset) in self._innermost:
                    callee = _ELSEWHERE
                if callee is not None:
                    self._calls[place] = callee

    def _callee(self, image: DecodedImage, use: Use) -> Callee | None:
        """Return where a call or jump leads; None for an import that may be the app's."""
        match use:
            case SymbolUse(symbol):
                return self._imported(image, symbol)
            case MessageUse(selector, receiver):
                for rule in image.code.watched.rules_of(selector):
                    if _is_sent_to(rule, receiver):
                        return Callee(watch=rule.watch)
                return Callee(selector=selector)
            case CodeUse(int(target)):
                return self._own(image, target)
            case _:
                return UNKNOWN_CALLEE

    def _own(self, image: DecodedImage, target: int) -> Callee:
        veneer = image.code.veneer(target)
        if isinstance(veneer, SymbolUse):
            return self._imported(image, veneer.symbol) or UNKNOWN_CALLEE
        if isinstance(veneer, CodeUse) and veneer.target is not None:
            target = veneer.target
        number = image.function_at(target)
        if number is None:
            return UNKNOWN_CALLEE
        watched = image.code.watched
        if isinstance(watched, ElfNames):
            rule = watched.rule_of(f"_{image.code.table.linkage_name(number)}")
            if rule is not None:
                return Callee(watch=rule.watch)
        return Callee(function=image.function(number))

    def _imported(self, image: DecodedImage, symbol: str) -> Callee | None:
        rule = image.code.watched.rule_of(symbol)
        if rule is not None:
            return Callee(watch=rule.watch)
        owners = self._exporters.get(symbol, ())
        if len(owners) == 1:
            owner = self._images[owners[0]]
            number = owner.function_at(owner.exports[symbol])
            return UNKNOWN_CALLEE if number is None else Callee(function=owner.function(number))
        if owners:
            return UNKNOWN_CALLEE
        return Callee(is_system=True) if image.is_complete else None

    @cached_property
    def _exporters(self) -> dict[str, list[str]]:
        """The images that define a symbol, by its name."""
        exporters: dict[str, list[str]] = defaultdict(list)
        for key, image in self._images.items():
            for name in image.exports if image.is_linked else ():
                exporters[name].append(key)
        return exporters

    # --- jumps ---

    def _follow(self, callees: Iterable[Callee]) -> None:
        """Add the jumps of functions that calls lead to."""
        waiting = [function for callee in callees for function in self._targets(callee)]
        while waiting:
            function = waiting.pop()
            if function not in self._jumps:
                self._add_jumps(function)
                for callee in self._jumps[function]:
                    waiting += self._targets(callee)

    def _targets(self, callee: Callee) -> tuple[Function, ...]:
        if callee.function is not None:
            return (callee.function,)
        if callee.selector and callee.selector not in self._methods:
            self._methods[callee.selector] = tuple(
                function
                for image in self._images.values()
                for function in image.methods.get(callee.selector, ())
            )
        return self._methods.get(callee.selector, ())

    def _add_jumps(self, function: Function) -> None:
        image = self._images.get(function.image)
        number = None if image is None else image.function_at(function.offset + image.code.base)
        jumps: list[Callee] = []
        if image is not None and number is not None:
            uses = filter(_is_jump, image.uses(number))
            jumps += [self._callee(image, use) or UNKNOWN_CALLEE for use in uses]
        self._jumps[function] = tuple(dict.fromkeys(jumps))

    # --- from what was called ---

    def _unknown_goals(self) -> Iterator[str | Function]:
        """Yield what calls of addresses in registers led to."""
        trail, tree = self._trail, self._trail.stacks
        is_unknown = np.zeros(len(tree), np.bool_)
        for index, image in enumerate(trail.images):
            offsets = [
                place.offset
                for place, callee in self._calls.items()
                if place.image == image.key and callee.is_unknown
            ]
            if offsets:
                column = np.array(offsets, np.uint64)
                is_unknown |= (tree.image == index) & np.isin(tree.offset, column)
        is_unknown[ROOT] = False
        for number in np.unique(trail.calls.rule[is_unknown[trail.calls.stack]]).tolist():
            yield trail.rules[number]
        inner = np.flatnonzero(is_unknown[tree.parent] & (tree.image >= 0))
        places = {(int(tree.image[node]), int(tree.offset[node])) for node in inner.tolist()}
        for index, offset in places:
            decoded = self._images.get(trail.images[index].key)
            number = (
                None if decoded is None else decoded.function_at(offset - 1 + decoded.code.base)
            )
            if decoded is not None and number is not None:
                yield decoded.function(number)

    def _follow_backward(self, goals: set[str | Function]) -> None:
        """Add the functions that end with a jump to a goal, or to such a function."""
        for _ in range(_ROUNDS):
            new: set[Function] = set()
            for image in self._images.values() if goals else ():
                for number in self._referring(image, goals):
                    function = image.function(number)
                    if function in self._jumps:
                        continue
                    if any(_is_jump(use) for use in image.uses(number)):
                        self._add_jumps(function)
                        new.add(function)
            self._follow(callee for each in new for callee in self._jumps[each])
            goals = set(new)

    def _referring(self, image: DecodedImage, goals: set[str | Function]) -> list[int]:
        """Return the functions that refer to goals."""
        code = image.code
        own = [
            goal.offset + code.base
            for goal in goals
            if isinstance(goal, Function) and goal.image == image.key
        ]
        targets = [*own, *self._names_of(image, goals)]
        if not targets or code.machine is None:
            return []
        column = np.unique(np.array(targets, np.uint64))
        places = [code.references(column).places]
        if isinstance(code.machine, X86):
            places += [np.arange(start - _NEAR, start + _NEAR, dtype=np.int64) for start in own]
        numbers = code.functions_at(np.concatenate(places))
        return [int(number) for number in np.intersect1d(numbers, code.functions)]

    def _names_of(self, image: DecodedImage, goals: set[str | Function]) -> Iterator[int]:
        """Yield the addresses of stubs, slots and selectors that lead to goals."""
        names = image.code.names
        for address, symbol in (*names.stubs.items(), *names.slots.items()):
            callee = self._imported(image, symbol)
            if callee is not None and (callee.watch in goals or callee.function in goals):
                yield address
        watches = [goal for goal in goals if isinstance(goal, str)]
        for address, selector in (*names.message_stubs.items(), *names.selectors.items()):
            if any(is_method(watch, selector) for watch in watches):
                yield address


def _is_call(use: Use) -> bool:
    if isinstance(use, SymbolUse):
        return use.is_call and not use.is_tail
    return isinstance(use, MessageUse | CodeUse) and not use.is_tail


def _is_jump(use: Use) -> bool:
    if isinstance(use, SymbolUse):
        return use.is_call and use.is_tail
    return isinstance(use, MessageUse | CodeUse) and use.is_tail


def _is_sent_to(rule: Rule, receiver: object) -> bool:
    """Return whether a receiver is of the class of a rule's method."""
    method = rule.method
    if method is None:
        return False
    if isinstance(receiver, ClassObject):
        return method.is_class_method and receiver.name == method.class_name
    is_instance = isinstance(receiver, Instance) and receiver.class_name == method.class_name
    return is_instance and not method.is_class_method
