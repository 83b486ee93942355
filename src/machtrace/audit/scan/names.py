"""The names in an image that matter to rules: imports, selectors, classes, methods, strings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

import numpy as np

from machtrace.audit.rules import Rule, RuleKind, RuleSet
from machtrace.audit.scan.flow import LOOK_UP_KEYS, LOOK_UPS, Names
from machtrace.audit.scan.values import Receiver
from machtrace.errors import MachtraceError
from machtrace.formats.macho.contents import MachOFileContents, is_encrypted
from machtrace.formats.macho.fixups.pointers import Pointers, parse_pointers
from machtrace.formats.macho.metadata.objc import ObjcMethods, ObjcRecords, parse_objc_methods
from machtrace.formats.macho.metadata.objc_stubs import parse_objc_stubs
from machtrace.formats.macho.segments import Section
from machtrace.formats.macho.tables.exports_trie import parse_exports
from machtrace.formats.macho.tables.stubs import parse_stubs
from machtrace.formats.macho.tables.symtab import parse_symbols
from machtrace.symbols.macho.linked_names import symtab_functions

_CLASS_SYMBOL = "_OBJC_CLASS_$_"
_SELECTORS = ("__objc_selrefs",)
_CLASSES = ("__objc_classrefs", "__objc_superrefs")
_SLOTS = ("__got", "__auth_got")
_CFSTRINGS = ("__cfstring",)
_CFSTRING_TEXT = 16
"""The offset of the C string in a constant NSString, of 64 bits (``CFConstantStringClassReference``
structures of clang)."""


class WatchedNames:
    """The names of one image that rules watch, and the addresses by which code refers to them.

    :meth:`names` collects them; the other attributes are filled by it.
    """

    def __init__(self, contents: MachOFileContents, rules: RuleSet) -> None:
        self._contents = contents
        self._rules = rules
        self._image = contents.image
        self.pointers: Pointers = parse_pointers(contents)
        self._records = ObjcRecords(contents, self.pointers)
        self.problems: list[MachtraceError] = []
        self.found_names: dict[str, set[str]] = {}
        """By a rule's ``watch``: how the name occurs."""
        self.wanted: set[int] = set()
        """Addresses whose use in code is a use of something watched."""
        self.texts_of_names: set[int] = set()
        """Addresses of strings that are watched names."""
        self.look_ups: set[int] = set()
        """Addresses of functions and selectors that look up names."""
        self.class_names: frozenset[str] = frozenset()
        """The classes that the image refers to."""

    def all_problems(self) -> list[MachtraceError]:
        """Return the errors of parts that could not be read."""
        late = self.pointers.problem
        return [*self.problems, *([late] if late is not None else [])]

    @property
    def names_of_image(self) -> frozenset[str]:
        """The names by which others load it."""
        name = self._image.install_name
        return frozenset({name} if name else ())

    @property
    def needed(self) -> tuple[str, ...]:
        """The names of the images that it loads."""
        return tuple(dylib.name for dylib in self._image.load_dylibs)

    @property
    def frameworks(self) -> frozenset[str]:
        """The names of the images that this one loads."""
        return frozenset(dylib.name.rpartition("/")[2] for dylib in self._image.load_dylibs)

    def exports(self) -> dict[str, int]:
        """Return the functions that other images may call: addresses (Svma), by name."""
        try:
            exports = parse_exports(self._contents)
            rows = parse_symbols(self._contents)
            named = symtab_functions(rows, self._image)
        except MachtraceError as error:
            self.problems.append(error)
            return {}
        base = self._image.header_svma
        external = np.flatnonzero(named.preferred).tolist()
        functions = {named.linkage_name(row): int(named.starts[row]) + base for row in external}
        return functions | {
            export.name: export.value + base
            for export in exports
            if not export.is_reexport and not export.is_absolute
        }

    def _note(self, rule: Rule, way: str) -> None:
        self.found_names.setdefault(rule.watch, set()).add(way)

    def names(self) -> Names:
        """Return the meaning of the image's addresses, for following its code."""
        stubs = self._stubs()
        slots = self._slots()
        selectors = self._selectors()
        message_stubs = self._message_stubs()
        self._defined_selectors()
        texts = self._texts()
        classes = self._classes()
        self.class_names = frozenset(classes.values())
        return Names(
            stubs=stubs,
            message_stubs=message_stubs,
            slots=slots,
            own_slots=self._own_slots(),
            selectors=selectors,
            classes=classes,
            text_at=texts.get,
            paths=frozenset(rule.watch for rule in self._rules.rules if rule.kind is RuleKind.FILE),
        )

    def _stubs(self) -> dict[int, str]:
        try:
            rows = parse_stubs(self._contents, parse_symbols(self._contents))
        except MachtraceError as error:
            self.problems.append(error)
            return {}
        stubs = dict(zip(rows.addresses.tolist(), rows.names, strict=True))
        for address, name in stubs.items():
            if self._watch_symbol(name):
                self.wanted.add(address)
            if name in LOOK_UPS:
                self.look_ups.add(address)
        return stubs

    def _watch_symbol(self, name: str) -> bool:
        rule = self.rule_of(name)
        if rule is not None:
            self._note(rule, "imported")
        return rule is not None

    def rule_of(self, symbol: str) -> Rule | None:
        """Return the rule for a linkage name, which may be a Swift declaration's."""
        rule = self._rules.of_symbol(symbol)
        if rule is None and symbol.startswith("_$s"):
            rule = self._demangled(symbol)
        return rule

    def rules_of(self, selector: str) -> tuple[Rule, ...]:
        """Return the rules for methods of a selector."""
        return tuple(self._rules.by_selector.get(selector, ()))

    def _demangled(self, symbol: str) -> Rule | None:
        patterns = self._patterns
        if not patterns:
            return None
        words = {word for pattern in patterns for word in pattern.partition(".")[:1]}
        if not any(word in symbol for word in words):
            return None
        from machtrace.demangler import demangle

        text = demangle(symbol)
        return next((rule for start, rule in patterns.items() if f".{start}" in text), None)

    @cached_property
    def _patterns(self) -> dict[str, Rule]:
        return {rule.demangled: rule for rule in self._rules.rules if rule.demangled}

    def _slots(self) -> dict[int, str]:
        binds = self.pointers.binds
        places, symbols = binds.places.tolist(), binds.symbols.tolist()
        watched = {number for number, name in enumerate(binds.names) if self._watch_symbol(name)}
        slots: dict[int, str] = {}
        for place, number in zip(places, symbols, strict=True):
            slots[place] = binds.names[number]
            if number in watched:
                self.wanted.add(place)
            if slots[place] in LOOK_UPS:
                self.look_ups.add(place)
        return slots

    def _own_slots(self) -> dict[int, int]:
        """Return the addresses in this image that slots of imports have: weak definitions."""
        places = self._records.listed(*_SLOTS)
        addresses = self.pointers.addresses(places)
        pairs = zip(places.tolist(), addresses.tolist(), strict=True)
        return {place: address for place, address in pairs if address}

    def _selectors(self) -> dict[int, str]:
        places = self._records.listed(*_SELECTORS)
        targets = self._records.strings(self.pointers.addresses(places))
        selectors: dict[int, str] = {}
        for place, target in zip(places.tolist(), targets.tolist(), strict=True):
            if not target:
                continue
            name = selectors[place] = self._records.text(target)
            if self._watch_selector(name, "selector"):
                self.wanted.add(place)
            if name in LOOK_UP_KEYS:
                self.look_ups.add(place)
        return selectors

    def _watch_selector(self, name: str, way: str) -> bool:
        rules = self._rules.by_selector.get(name, ())
        for rule in rules:
            self._note(rule, way)
        return bool(rules)

    def _message_stubs(self) -> dict[int, str]:
        rows = parse_objc_stubs(self._contents, self.pointers)
        selectors: dict[int, str] = {}
        for row, address in enumerate(rows.addresses.tolist()):
            name = selectors[address] = rows.selector(row)
            if self._watch_selector(name, "selector"):
                self.wanted.add(address)
            if name in LOOK_UP_KEYS:
                self.look_ups.add(address)
        return selectors

    def _classes(self) -> dict[int, str]:
        classes = {place: name[len(_CLASS_SYMBOL) :] for place, name in self._bound_classes()}
        places = self._records.listed(*_CLASSES)
        names = self._records.class_names(self.pointers.addresses(places))
        for place, name in zip(places.tolist(), names.tolist(), strict=True):
            if name:
                classes[place] = self._records.text(name)
        return classes

    def _bound_classes(self) -> Iterator[tuple[int, str]]:
        binds = self.pointers.binds
        numbers = [i for i, name in enumerate(binds.names) if name.startswith(_CLASS_SYMBOL)]
        rows = np.flatnonzero(np.isin(binds.symbols, numbers))
        for row in rows.tolist():
            yield int(binds.places[row]), binds.names[int(binds.symbols[row])]

    @cached_property
    def methods(self) -> ObjcMethods | None:
        """The methods of the image; None if they are malformed."""
        try:
            return parse_objc_methods(self._contents, self.pointers)
        except MachtraceError as error:
            self.problems.append(error)
            return None

    @cached_property
    def owners(self) -> Mapping[int, Receiver]:
        """By a method's address: the object that it is called for."""
        methods = self.methods
        if methods is None:
            return {}
        return {
            address: Receiver(methods.owner(row).class_name, bool(methods.is_class_method[row]))
            for row, address in enumerate(methods.rows.implementations.tolist())
        }

    @cached_property
    def definers(self) -> Mapping[str, frozenset[str]]:
        """By a watched selector: the image's own classes that have a method of it."""
        methods, classes = self.methods, dict[str, set[str]]()
        if methods is not None:
            watched = self._rules.by_selector
            for row in range(len(methods)):
                if (name := methods.selector(row)) in watched:
                    classes.setdefault(name, set()).add(methods.owner(row).class_name)
        return {name: frozenset(classes) for name, classes in classes.items()}

    def _defined_selectors(self) -> None:
        for name in self.definers:
            self._watch_selector(name, "own method")

    @cached_property
    def superclasses(self) -> Mapping[str, str]:
        """The superclass of each class of the image."""
        records, pointer = self._records, self._records.layout.pointer
        at = np.unique(self.pointers.addresses(records.listed("__objc_classlist")))
        at = at[at != 0]
        names = records.class_names(at)
        supers = records.class_names(records.field(at, pointer))
        bound = self.pointers.symbols(at + np.uint64(pointer))
        parents: dict[str, str] = {}
        for name, own, symbol in zip(names.tolist(), supers.tolist(), bound, strict=True):
            if name and (own or symbol.startswith(_CLASS_SYMBOL)):
                parent = records.text(own) if own else symbol[len(_CLASS_SYMBOL) :]
                parents[records.text(name)] = parent
        return parents

    def _texts(self) -> dict[int, str]:
        """By address: the strings that are names of what is watched, and NSStrings of them."""
        texts: dict[int, str] = {}
        for section in self._image.sections:
            if section.name in ("__cstring", "__objc_methname"):
                texts |= self._texts_in(section)
        objects = self._records.memory.elements(_CFSTRINGS, 32)
        targets = self._records.field(objects, _CFSTRING_TEXT)
        for place, target in zip(objects.tolist(), targets.tolist(), strict=True):
            if target in texts:
                texts[place] = texts[target]
                if target in self.texts_of_names:
                    self.texts_of_names.add(place)
        return texts

    def _texts_in(self, section: Section) -> dict[int, str]:
        if is_encrypted(self._contents, section.address, section.size):
            return {}
        try:
            data = bytes(self._contents.read_svma(section.address, section.size))
        except MachtraceError as error:
            self.problems.append(error)
            return {}
        wanted = {text.encode(): text for text in self.watched_texts}
        texts: dict[int, str] = {}
        at: int = section.address
        for string in data.split(b"\0"):
            if (text := wanted.get(string)) is not None:
                texts[at] = text
                rule = self.watched_texts[text]
                if rule is not None and section.name == "__cstring":
                    is_path = rule.kind is RuleKind.FILE
                    (self.wanted if is_path else self.texts_of_names).add(at)
                    self._note(rule, "string")
            at += len(string) + 1
        return texts

    @cached_property
    def watched_texts(self) -> dict[str, Rule | None]:
        """The names by which code may look up what is watched; None for those of classes."""
        texts: dict[str, Rule | None] = {}
        for rule in self._rules.rules:
            if (method := rule.method) is not None:
                texts.setdefault(method.class_name, None)
                texts[method.selector] = rule
            elif rule.kind in (RuleKind.C, RuleKind.DATA, RuleKind.FILE):
                texts[rule.watch] = rule
        return texts
