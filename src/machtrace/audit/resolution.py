"""Whether each rule can match in a target: resolved, inherited, shared or absent, and why.

A target either defines what a rule watches, as a system framework does, or refers to it, as an app
does. A rule that nothing defines or refers to matches no call there; its answer states what is
missing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from pathlib import Path

import numpy as np

from machtrace.audit.rules import Method, Rule, RuleKind, RuleSet
from machtrace.audit.scan.app import open_images
from machtrace.audit.scan.names import WatchedNames
from machtrace.errors import MachtraceError
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.tables.symtab import parse_symbols
from machtrace.frozen import dataclass

_SHOWN = 3


class Resolution(Enum):
    """The answer to a rule."""

    RESOLVED = "resolved"
    """The target defines what is watched, or refers to it."""
    INHERITED = "inherited"
    """The class has the method from a superclass, for whose other subclasses it is called, too."""
    SHARED = "shared"
    """Something else has the same code or the same selector."""
    ABSENT = "absent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The resolution of one rule."""

    rule: Rule
    resolution: Resolution
    reason: str
    """The evidence, or what is missing."""
    others: tuple[str, ...] = ()
    """The owner of an inherited method, or the names that share the code or the selector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The answers of a target, one for each rule."""

    answers: tuple[Answer, ...]
    images: int
    problems: tuple[MachtraceError, ...]


def resolve_rules(path: Path, rules: RuleSet) -> Answers:
    """Answer every rule for an app, an archive of one, a folder or an image.

    Raises:
        FileAccessError, FormatError: see :func:`~machtrace.audit.scan.bundles.read_parts`.
    """
    problems: list[MachtraceError] = []
    facts: list[_Facts] = []
    for image, contents in open_images(path, problems):
        try:
            facts.append(_Facts(image, contents, rules))
        except MachtraceError as error:
            problems.append(error)
    resolver = _Resolver(facts)
    return Answers(
        answers=tuple(resolver.answer(rule) for rule in rules.rules),
        images=len(facts),
        problems=(*problems, *(problem for fact in facts for problem in fact.problems)),
    )


class _Facts:
    """The watched names that one image defines and refers to."""

    def __init__(self, path: str, contents: MachOFileContents, rules: RuleSet) -> None:
        watched = WatchedNames(contents, rules)
        watched.names()
        self.name = path.rpartition("/")[2]
        self.references = watched.found_names
        self.classes = watched.class_names
        self.frameworks = {dylib.name.rpartition("/")[2] for dylib in contents.image.load_dylibs}
        self.superclasses = watched.superclasses
        self.definers = watched.definers
        self.methods: dict[Method, int] = {}
        self.sharers: dict[int, list[str]] = defaultdict(list)
        self._add_methods(watched, rules)
        self.symbols = _defined_symbols(contents, rules, watched.problems)
        self.problems = watched.problems

    def _add_methods(self, watched: WatchedNames, rules: RuleSet) -> None:
        methods = watched.methods
        if methods is None:
            return
        code = methods.rows.implementations.tolist()
        for row, address in enumerate(code):
            if (selector := methods.selector(row)) in rules.by_selector:
                is_class = bool(methods.is_class_method[row])
                self.methods[Method(is_class, methods.owner(row).class_name, selector)] = address
        shared = set(self.methods.values())
        for row, address in enumerate(code):
            if address in shared:
                sign = "+" if methods.is_class_method[row] else "-"
                name = f"{sign}[{methods.owner(row).class_name} {methods.selector(row)}]"
                self.sharers[address].append(name)


def _defined_symbols(
    contents: MachOFileContents, rules: RuleSet, problems: list[MachtraceError]
) -> Mapping[str, tuple[str, ...]]:
    """Return the watched functions and constants that an image exports.

    Each has the other watched names of the same address.
    """
    try:
        symbols = parse_symbols(contents)
        rows = np.flatnonzero(symbols.is_in_section & symbols.is_external & ~symbols.is_stab)
        names = symbols.names(rows.tolist())
    except MachtraceError as error:
        problems.append(error)
        return {}
    addresses = symbols.n_value[rows].tolist()
    at: dict[int, set[str]] = defaultdict(set)
    defined: dict[str, int] = {}
    for name, address in zip(names, addresses, strict=True):
        rule = rules.of_symbol(name)
        if rule is not None:
            defined[rule.watch] = address
            at[address].add(rule.watch)
    return {watch: tuple(sorted(at[where] - {watch})) for watch, where in defined.items()}


class _Resolver:
    def __init__(self, facts: Sequence[_Facts]) -> None:
        self._facts = facts

    @cached_property
    def _superclasses(self) -> Mapping[str, str]:
        return {name: parent for fact in self._facts for name, parent in fact.superclasses.items()}

    @cached_property
    def _methods(self) -> Mapping[Method, _Facts]:
        return {method: fact for fact in self._facts for method in fact.methods}

    def answer(self, rule: Rule) -> Answer:
        method = rule.method
        if method is not None:
            return self._defined_method(rule, method) or self._referred_method(rule, method)
        for fact in self._facts:
            if rule.watch in fact.symbols:
                others = fact.symbols[rule.watch]
                state = Resolution.SHARED if others else Resolution.RESOLVED
                return _answer(rule, state, f"{fact.name} exports it", others)
        return self._referred(rule)

    def _referred(self, rule: Rule) -> Answer:
        for way, reason in (("imported", "imports it"), ("string", "has its name as a string")):
            images = self._with(rule, way)
            if images:
                return _answer(rule, Resolution.RESOLVED, f"{_listed(images)} {reason}")
        missing = "no string is its path" if rule.kind is RuleKind.FILE else "no image imports it"
        return _answer(rule, Resolution.ABSENT, missing)

    def _with(self, rule: Rule, way: str) -> list[str]:
        return [fact.name for fact in self._facts if way in fact.references.get(rule.watch, ())]

    def _defined_method(self, rule: Rule, method: Method) -> Answer | None:
        for class_name in self._ancestry(method.class_name):
            candidate = method._replace(class_name=class_name)
            facts = self._methods.get(candidate)
            if facts is None:
                continue
            name = f"{'+' if method.is_class_method else '-'}[{class_name} {method.selector}]"
            reason = f"{facts.name} has {name}"
            if class_name != method.class_name:
                return _answer(rule, Resolution.INHERITED, reason, (name,))
            others = tuple(sorted(set(facts.sharers[facts.methods[candidate]]) - {name}))
            state = Resolution.SHARED if others else Resolution.RESOLVED
            return _answer(
                rule, state, f"{reason}{', with the code of others' * bool(others)}", others
            )
        return None

    def _ancestry(self, name: str) -> Iterator[str]:
        seen: set[str] = set()
        while name and name not in seen:
            seen.add(name)
            yield name
            name = self._superclasses.get(name, "")

    def _referred_method(self, rule: Rule, method: Method) -> Answer:
        images = self._with(rule, "selector") + self._with(rule, "string")
        if not images:
            return _answer(rule, Resolution.ABSENT, f"no image has the selector {method.selector}")
        own = {name for fact in self._facts for name in fact.definers.get(method.selector, ())}
        with_class = [fact.name for fact in self._facts if method.class_name in fact.classes]
        with_framework = [fact.name for fact in self._facts if rule.framework in fact.frameworks]
        if not with_class and not with_framework:
            why = (
                f"the selector is in {_listed(images)}, and no image refers to {method.class_name}"
            )
            return _answer(rule, Resolution.ABSENT, why)
        receiver = method.class_name if with_class else rule.framework
        users = _listed(with_class or with_framework)
        reason = f"{_listed(images)} has the selector, {users} uses {receiver}"
        others = tuple(sorted(f"[{name} {method.selector}]" for name in own))
        return _answer(rule, Resolution.SHARED if others else Resolution.RESOLVED, reason, others)


def _listed(names: Sequence[str]) -> str:
    unique = list(dict.fromkeys(names))
    more = len(unique) - _SHOWN
    return ", ".join(unique[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _answer(rule: Rule, state: Resolution, reason: str, others: tuple[str, ...] = ()) -> Answer:
    return Answer(rule=rule, resolution=state, reason=reason, others=others)
