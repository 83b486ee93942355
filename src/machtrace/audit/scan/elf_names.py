"""The names in an ELF image that matter to rules: imports, and strings for ``dlsym``.

Names of symbols begin with an underscore, as those of Mach-O do: code of both is followed alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from machtrace.audit.rules import Rule, RuleKind, RuleSet
from machtrace.audit.scan.flow import LOOK_UPS, Names
from machtrace.audit.scan.values import Receiver
from machtrace.errors import MachtraceError
from machtrace.formats.elf.contents import ElfFileContents
from machtrace.formats.elf.dynamic import read_needed
from machtrace.formats.elf.plt import parse_stubs, relative_words, slot_symbols
from machtrace.formats.elf.structs import ElfType
from machtrace.formats.elf.symtab import parse_dynamic_symbols
from machtrace.formats.macho.metadata.objc import ObjcMethods
from machtrace.model.address import Svma

LARGE_FILE_NAMES = frozenset(
    {
        *("creat", "fopen", "freopen", "open", "openat", "readdir"),
        *("fstat", "fstatat", "fstatfs", "fstatvfs", "lstat", "stat", "statfs", "statvfs"),
    }
)
"""Functions of Linux that programs also import with the suffix 64 (lfcompile64(5))."""
OTHER_NAMES = {
    **{
        f"__{prefix}xstat{bits}": f"{prefix}stat"
        for prefix in ("", "f", "l")
        for bits in ("", "64")
    },
    **{f"__fxstatat{bits}": "fstatat" for bits in ("", "64")},
    **{f"__{name}{bits}_2": name for name in ("open", "openat") for bits in ("", "64")},
    "__gethostname_chk": "gethostname",
}
"""Names by which programs import functions of glibc: those that were built with one before 2.33, or
with checks of sizes (_FORTIFY_SOURCE)."""
_MAX_LENGTH = 64
"""Bytes of a string that may be a watched name."""
_HIGHEST = 1 << 62
"""Above any code of a user."""
_READ_ONLY = ".rodata"


def rule_of_function(rules: RuleSet, name: str) -> Rule | None:
    """Return the rule for a function by its name on Linux."""
    if rules.of_symbol(f"_{name}") is None:
        name = OTHER_NAMES.get(name, name)
    base = name.removesuffix("64")
    for each in (name, base) if base in LARGE_FILE_NAMES else (name,):
        rule = rules.of_symbol(f"_{each}")
        if rule is not None:
            return rule
    return None


class ElfNames:
    """See :class:`~machtrace.audit.scan.names.WatchedNames`; no ELF has Objective-C metadata."""

    def __init__(self, contents: ElfFileContents, rules: RuleSet) -> None:
        self._contents = contents
        self._rules = rules
        self.problems: list[MachtraceError] = []
        self.found_names: dict[str, set[str]] = {}
        self.wanted: set[int] = set()
        self.texts_of_names: set[int] = set()
        self.look_ups: set[int] = set()
        self.class_names: frozenset[str] = frozenset()
        self.methods: ObjcMethods | None = None
        self.owners: Mapping[int, Receiver] = {}
        self.definers: Mapping[str, frozenset[str]] = {}
        self.superclasses: Mapping[str, str] = {}
        self.frameworks: frozenset[str] = frozenset()

    def all_problems(self) -> list[MachtraceError]:
        """Return the errors of parts that could not be read."""
        return self.problems

    def names(self) -> Names:
        """Return the meaning of the image's addresses, for following its code."""
        stubs, slots = self._imports()
        self._find_texts()
        return Names(
            stubs=stubs,
            message_stubs={},
            slots=slots,
            own_slots=self._own_slots(),
            selectors={},
            classes={},
            text_at=self._text_at,
            paths=frozenset(rule.watch for rule in self._rules.rules if rule.kind is RuleKind.FILE),
            has_absolute=self._contents.image.type is ElfType.EXECUTABLE,
        )

    @property
    def names_of_image(self) -> frozenset[str]:
        """The names by which others load it."""
        soname = self._contents.image.soname
        return frozenset({soname} if soname else ())

    @property
    def needed(self) -> tuple[str, ...]:
        """The names of the images that it loads."""
        return read_needed(self._contents, self._contents.image)

    def rule_of(self, symbol: str) -> Rule | None:
        """Return the rule for a symbol."""
        return rule_of_function(self._rules, symbol[1:])

    def rules_of(self, selector: str) -> tuple[Rule, ...]:  # noqa: ARG002 - no methods
        """See :meth:`~machtrace.audit.scan.names.WatchedNames.rules_of`."""
        return ()

    def exports(self) -> dict[str, int]:
        """Return the functions that other images may call: addresses (Svma), by name."""
        try:
            symbols = parse_dynamic_symbols(self._contents)
        except MachtraceError as error:
            self.problems.append(error)
            return {}
        rows = (symbols.is_function & symbols.is_global).nonzero()[0].tolist()
        addresses = symbols.addresses.tolist()
        return {f"_{symbols.name(row)}": addresses[row] for row in rows}

    def _imports(self) -> tuple[dict[int, str], dict[int, str]]:
        """Return the functions of stubs, and the symbols of slots."""
        try:
            rows = parse_stubs(self._contents)
            bound = slot_symbols(self._contents)
            stubs = {at: f"_{rows.name(row)}" for row, at in enumerate(rows.addresses.tolist())}
            slots = {
                slot: f"_{rows.names.name(symbol)}"
                for slot, symbol in zip(bound.slots.tolist(), bound.symbols.tolist(), strict=True)
                if symbol < len(rows.names)
            }
        except MachtraceError as error:
            self.problems.append(error)
            return {}, {}
        for address, name in (*stubs.items(), *slots.items()):
            rule = self.rule_of(name)
            if rule is not None:
                self.found_names.setdefault(rule.watch, set()).add("imported")
                self.wanted.add(address)
            if name in LOOK_UPS:
                self.look_ups.add(address)
        return stubs, slots

    def _own_slots(self) -> dict[int, int]:
        """Return the addresses in slots of the global offset table that have no symbol."""
        own: dict[int, int] = {}
        layout = self._contents.image.layout
        try:
            relative = relative_words(self._contents)
            for section in self._contents.image.sections:
                if not section.name.startswith(".got") or not layout.is_64:
                    continue
                data = self._contents.read_section(section)
                words = np.frombuffer(data[: len(data) // 8 * 8], f"{layout.byte_order}u8").tolist()
                for number, word in enumerate(words):
                    slot = section.address + number * 8
                    own[slot] = relative.get(slot, word)
        except MachtraceError as error:
            self.problems.append(error)
        return {slot: address for slot, address in own.items() if address}

    @cached_property
    def watched_texts(self) -> dict[str, Rule | None]:
        """The names by which code may look up what is watched."""
        kinds = (RuleKind.C, RuleKind.DATA, RuleKind.FILE)
        return {rule.watch: rule for rule in self._rules.rules if rule.kind in kinds}

    @cached_property
    def _strings(self) -> list[tuple[int, memoryview]]:
        """Sections with strings, by address."""
        parts: list[tuple[int, memoryview]] = []
        for section in self._contents.image.sections:
            if section.has_bytes and section.name.startswith(_READ_ONLY) and section.address:
                try:
                    parts.append((section.address, self._contents.read_section(section)))
                except MachtraceError as error:
                    self.problems.append(error)
        return parts

    def _find_texts(self) -> None:
        """Find the strings that are watched names; linkers let one begin inside of another."""
        for start, view in self._strings:
            data = bytes(view)
            for text, rule in self.watched_texts.items():
                pattern = text.encode() + b"\0"
                at = data.find(pattern)
                while at >= 0 and rule is not None:
                    is_path = rule.kind is RuleKind.FILE
                    (self.wanted if is_path else self.texts_of_names).add(start + at)
                    if at == 0 or data[at - 1] == 0:
                        self.found_names.setdefault(rule.watch, set()).add("string")
                    at = data.find(pattern, at + 1)

    def _text_at(self, address: int) -> str | None:
        for start, data in self._strings:
            if start <= address < start + len(data):
                at = address - start
                text, end, _ = bytes(data[at : at + _MAX_LENGTH]).partition(b"\0")
                name = text.decode("utf-8", "replace") if end else ""
                return name if name in self.watched_texts else None
        return None


def code_sections(contents: ElfFileContents) -> list[tuple[int, int]]:
    """Return the start (Svma) and the size of the parts with functions: stubs are left out."""
    parts = [
        (int(section.address), int(section.size))
        for section in contents.image.sections
        if section.is_executable
        and section.has_bytes
        and section.size
        and section.end <= _HIGHEST
        and not section.name.startswith((".plt", ".iplt"))
    ]
    if parts:
        return parts
    return [
        (int(Svma(segment.address)), segment.file_size)
        for segment in contents.image.load_segments
        if segment.is_executable and segment.address + segment.file_size <= _HIGHEST
    ]
