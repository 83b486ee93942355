"""The watched calls in one image: which function makes them, and how certain that is.

A C function, a constant or a Swift declaration is called where its symbol is. An Objective-C method
is called by its selector, which any class may have: the receiver decides, as far as the function's
code shows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property

import numpy as np

from machtrace.audit.rules import Rule, RuleKind, RuleSet
from machtrace.audit.scan.code import ImageCode
from machtrace.audit.scan.values import (
    ClassObject,
    Instance,
    MessageUse,
    Receiver,
    SymbolUse,
    TextUse,
    Use,
    Value,
)
from machtrace.errors import MachtraceError
from machtrace.formats.elf.contents import ElfFileContents
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.frozen import dataclass
from machtrace.model.address import ImageOffset
from machtrace.symbols.table import SymbolTable


class Certainty(Enum):
    """How sure it is that a site calls what the rule watches."""

    CERTAIN = "certain"
    """The code shows it: the symbol, or the class of the receiver."""
    LIKELY = "likely"
    """The selector, in a function that refers to the class."""
    POSSIBLE = "possible"
    """The selector alone: the receiver is unknown, and another class may have the method."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One instruction that calls or refers to something a rule watches."""

    rule: Rule
    offset: ImageOffset
    """The instruction: of a call, or of reading a constant's address."""
    return_offset: ImageOffset | None
    """The return address of the call; None for a tail call, and for what is no call."""
    function: str
    """The function's name; empty if it has none."""
    function_offset: ImageOffset
    is_call: bool
    """Whether it is a call of what is watched, rather than of a function that looks up its name,
    or a use of its address."""
    certainty: Certainty
    evidence: str
    """The reason for the certainty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageScan:
    """The watched names and sites of one image."""

    arch: str
    sites: tuple[Site, ...]
    names: Mapping[str, tuple[str, ...]]
    """By a rule's ``watch``: how the name occurs (imported, selector, method, string), whether
    code uses it or not."""
    code_size: int
    """Bytes of code that were searched."""
    problems: tuple[MachtraceError, ...]
    table: SymbolTable | None = None
    """The image's functions; None if it has no sites."""


def scan_image(contents: MachOFileContents | ElfFileContents, rules: RuleSet) -> ImageScan:
    """Search an image for what ``rules`` watch; see :func:`scan_code`."""
    return scan_code(ImageCode(contents, rules), rules)


def scan_code(code: ImageCode, rules: RuleSet) -> ImageScan:
    """Search an image's code for what ``rules`` watch.

    Errors of malformed parts are among the result's ``problems``: the rest is searched.
    """
    return _Scan(code, rules).run()


class _Scan:
    def __init__(self, code: ImageCode, rules: RuleSet) -> None:
        self._code = code
        self._rules = rules
        self._watched = code.watched

    def run(self) -> ImageScan:
        code, watched = self._code, self._watched
        _ = code.names  # they are collected before the code is searched
        sites: list[Site] = []
        size = 0
        if code.machine is not None and (watched.wanted or watched.texts_of_names):
            size = sum(len(part) for _, part in code.sections)
            sites = list(self._sites())
        sites.sort(key=lambda site: (site.offset, site.rule.watch))
        return ImageScan(
            arch=code.arch_name,
            sites=tuple(sites),
            names={
                watch: tuple(sorted(ways)) for watch, ways in sorted(watched.found_names.items())
            },
            code_size=size,
            problems=tuple(code.problems()),
            table=code.table if sites else None,
        )

    def _sites(self) -> Iterator[Site]:
        code, watched = self._code, self._watched
        sets = [watched.wanted, watched.texts_of_names, watched.look_ups]
        columns = [np.sort(np.fromiter(set_, np.uint64, len(set_))) for set_ in sets]
        references = code.references(np.unique(np.concatenate(columns)))
        wanted, named, looking = (
            code.functions_at(references.only(column).places) for column in columns
        )
        for number in np.union1d(wanted, np.intersect1d(named, looking)).tolist():
            yield from self._judged(code.uses(number), code.start(number), number)

    def _judged(self, uses: Sequence[Use], function: int, number: int) -> Iterator[Site]:
        """Yield the sites of a function: of a rule, its calls, else what else refers to it."""
        classes = {
            value.name
            for use in uses
            if isinstance(use, MessageUse) and isinstance(value := use.receiver, ClassObject)
        }
        sites: dict[tuple[str, int], Site] = {}
        called: set[str] = set()
        name = ""
        for use in uses:
            is_call = use.is_call if isinstance(use, SymbolUse) else isinstance(use, MessageUse)
            for rule, certainty, evidence in self._verdicts(use, classes):
                name = name or self._code.table.name(number)
                if is_call:
                    called.add(rule.watch)
                sites.setdefault(
                    (rule.watch, use.place),
                    Site(
                        rule=rule,
                        offset=self._code.offset_of(use.place),
                        return_offset=self._return_offset(use),
                        function=name,
                        function_offset=self._code.offset_of(function),
                        is_call=is_call,
                        certainty=certainty,
                        evidence=evidence,
                    ),
                )
        for (watch, _), site in sites.items():
            if site.is_call or watch not in called:
                yield site

    def _return_offset(self, use: Use) -> ImageOffset | None:
        match use:
            case SymbolUse(is_call=True, is_tail=False) | MessageUse(is_tail=False) | TextUse():
                return self._code.offset_of(use.after)
            case _:
                return None

    def _verdicts(self, use: Use, classes: set[str]) -> Iterator[tuple[Rule, Certainty, str]]:
        if isinstance(use, SymbolUse):
            rule = self._watched.rule_of(use.symbol)
            if rule is not None and (use.is_call or rule.kind is not RuleKind.C):
                yield rule, Certainty.CERTAIN, "symbol"
            elif rule is not None:
                yield rule, Certainty.LIKELY, "address of the function"
        elif isinstance(use, TextUse):
            yield from self._text_verdicts(use, classes)
        elif isinstance(use, MessageUse):
            for rule in self._rules.by_selector.get(use.selector, ()):
                verdict = self._message_verdict(rule, use.receiver, classes)
                if verdict is not None:
                    yield rule, *verdict

    def _text_verdicts(
        self, use: TextUse, classes: set[str]
    ) -> Iterator[tuple[Rule, Certainty, str]]:
        evidence = f"name given to {use.function.lstrip('_')}" if use.function else "path"
        methods = self._rules.by_selector.get(use.text, ())
        for rule in methods:
            verdict = self._message_verdict(rule, None, classes)
            if verdict is not None:
                yield rule, verdict[0], evidence
        named = self._watched.watched_texts.get(use.text)
        if named is not None and not methods:
            yield named, Certainty.LIKELY, evidence

    def _message_verdict(
        self, rule: Rule, receiver: Value | None, classes: set[str]
    ) -> tuple[Certainty, str] | None:
        """Return whether a message is a call of the rule's method; None if it is not."""
        method = rule.method
        if method is None:
            return None
        own = self._watched.definers.get(method.selector, frozenset())
        match receiver:
            case ClassObject(name):
                is_class = True
            case Instance(name):
                is_class = False
            case Receiver(name, is_class):
                if any(each in own for each in self._ancestry(name)):
                    return None
            case _:
                return self._unknown_verdict(rule, method.class_name, own, classes)
        if is_class is not method.is_class_method:
            return None
        return self._of_class(method.class_name, name)

    def _unknown_verdict(
        self, rule: Rule, class_name: str, own: frozenset[str], classes: set[str]
    ) -> tuple[Certainty, str] | None:
        if class_name in classes:
            return Certainty.LIKELY, f"selector, beside {class_name}"
        if not self._may_meet(rule, class_name):
            return None
        if own:
            return Certainty.POSSIBLE, f"selector, which {min(own)} of this image has, too"
        return Certainty.POSSIBLE, "selector"

    def _may_meet(self, rule: Rule, class_name: str) -> bool:
        """Return whether the image refers to a class, or to the framework that declares it."""
        return class_name in self._watched.class_names or rule.framework in self._frameworks

    @cached_property
    def _frameworks(self) -> frozenset[str]:
        return self._watched.frameworks

    def _of_class(self, wanted: str, name: str) -> tuple[Certainty, str] | None:
        ancestry = list(self._ancestry(name))
        if wanted not in ancestry:
            return None
        return Certainty.CERTAIN, "class" if name == wanted else f"class {name}"

    def _ancestry(self, name: str) -> Iterator[str]:
        seen: set[str] = set()
        while name and name not in seen:
            seen.add(name)
            yield name
            name = self._watched.superclasses.get(name, "")
