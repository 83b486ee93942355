"""The functions of a live process that rules watch: addresses, and why others have none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from machtrace.audit.observed.process_calls import DeadWatch, watched_functions
from machtrace.audit.rules import Method, RuleKind, RuleSet, method_of
from machtrace.errors import MachtraceError
from machtrace.formats.elf.contents import ElfContents
from machtrace.formats.elf.symtab import SymbolRows, parse_dynamic_symbols, parse_symbols
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.object_file import ObjectContents, in_memory
from machtrace.images.resolver import ImageResolver
from machtrace.model.address import Avma
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.memory import MemoryReader
from machtrace.model.symbol import FrameStatus
from machtrace.model.text import counted

_ABSENT = "nothing defines it"
_NO_FUNCTION = "it is no function: calls that take it are watched by other rules"
_VDSO = "vdso"
_KINDS = {
    ImageFormat.ELF: frozenset({RuleKind.C}),
    ImageFormat.MACHO: frozenset(RuleKind),
}
"""The rules that can match in images of a format."""


class WatchedAddresses(NamedTuple):
    """The first instructions of watched functions, and the rules without any."""

    watches: dict[Avma, str]
    """By AVMA: what is watched there."""
    dead: tuple[DeadWatch, ...]


class _Definition(NamedTuple):
    watch: str
    address: Avma
    is_indirect: bool = False


class AddressFinder:
    """Finds what rules watch in the images of one process; each image is searched once.

    Args:
        rules: what is of interest.
        files: finds the images' files.
        more: C functions and methods to find besides, such as the one that gives consent.
    """

    def __init__(self, rules: RuleSet, files: ImageResolver, more: Iterable[str] = ()) -> None:
        self._rules = rules
        self._files = files
        others = {name: method_of(name) for name in more}
        self._symbols = {name: name for name, method in others.items() if method is None}
        for name in watched_functions(rules):
            rule = rules.of_symbol(f"_{name}") or rules.of_symbol(f"_{name.removesuffix('64')}")
            if rule is not None:
                self._symbols[name] = rule.watch
        methods = {**others, **{rule.watch: rule.method for rule in rules.rules}}
        self._methods = {method: watch for watch, method in methods.items() if method is not None}
        self._selectors = {method.selector for method in self._methods}
        self._known: dict[tuple[str, int], tuple[_Definition, ...] | None] = {}

    def find(
        self, images: Iterable[BinaryImage], memory: MemoryReader | None = None
    ) -> WatchedAddresses:
        """Return the addresses of what is watched. Raises nothing.

        Args:
            images: those of the process.
            memory: the process's; it is read where an ELF image has no file.
        """
        formats = {RuleKind.C}
        unread = 0
        watches: dict[Avma, str] = {}
        dead: list[DeadWatch] = []
        live: set[str] = set()
        for image in images:
            formats |= _KINDS[image.format]
            definitions = self._definitions(image, memory)
            unread += definitions is None
            for watch, address, is_indirect in definitions or ():
                first = watch if is_indirect else watches.setdefault(address, watch)
                if is_indirect:
                    reason = f"{image.name} chooses its code when it is loaded (indirect function)"
                    dead.append(DeadWatch(watch, reason, is_blind=True))
                elif first != watch:
                    dead.append(DeadWatch(watch, f"it has the code of {first}", is_blind=False))
                live.add(watch)
        dead += self._absent(live, formats, unread)
        return WatchedAddresses(watches, tuple(dict.fromkeys(dead)))

    def _absent(self, live: set[str], kinds: set[RuleKind], unread: int) -> Iterator[DeadWatch]:
        images = counted(unread, "image")
        unknown = f"{_ABSENT} as far as is known: {images} could not be read"
        for rule in self._rules.rules:
            if rule.watch in live or rule.kind not in kinds:
                continue
            if rule.kind in (RuleKind.DATA, RuleKind.FILE):
                yield DeadWatch(rule.watch, _NO_FUNCTION, is_blind=False)
            else:
                yield DeadWatch(rule.watch, unknown if unread else _ABSENT, is_blind=unread > 0)

    def _definitions(
        self, image: BinaryImage, memory: MemoryReader | None
    ) -> tuple[_Definition, ...] | None:
        """Return what an image defines; None if it cannot be read."""
        key = image.identifier or image.path, image.load_address
        if self._known.get(key) is None:
            contents: ObjectContents | FrameStatus = self._files.binary(image)
            if isinstance(contents, FrameStatus) and image.format is ImageFormat.ELF:
                contents = FrameStatus.MISSING_FILE if memory is None else in_memory(image, memory)
            if isinstance(contents, FrameStatus):
                return () if _VDSO in image.path else None
            try:
                self._known[key] = tuple(self._of(image, contents))
            except MachtraceError:
                return None
        return self._known[key]

    def _of(self, image: BinaryImage, contents: ObjectContents) -> Iterator[_Definition]:
        if contents.format is ImageFormat.ELF:
            yield from self._elf_functions(image, contents)
        elif not contents.is_loaded:
            yield from self._macho_functions(image, contents)
            yield from self._objc_methods(image, contents)

    def _elf_functions(self, image: BinaryImage, contents: ElfContents) -> Iterator[_Definition]:
        tables: list[SymbolRows] = [parse_dynamic_symbols(contents)]
        if not contents.is_loaded:
            tables.append(parse_symbols(contents))
        for table in tables:
            rows = np.flatnonzero(table.is_function & table.is_global)
            indirect = table.is_indirect[rows].tolist()
            addresses = table.addresses[rows].tolist()
            for row, name in enumerate(table.names(rows.tolist())):
                watch = self._symbols.get(name)
                if watch is not None:
                    yield _Definition(watch, Avma(addresses[row] + image.slide), indirect[row])

    def _macho_functions(
        self, image: BinaryImage, contents: MachOFileContents
    ) -> Iterator[_Definition]:
        from machtrace.formats.macho.tables.symtab import parse_symbols as parse_macho_symbols

        table = parse_macho_symbols(contents)
        rows = np.flatnonzero(table.is_in_section & table.is_external & ~table.is_stab)
        addresses = table.n_value[rows].tolist()
        for name, address in zip(table.names(rows.tolist()), addresses, strict=True):
            rule = self._rules.of_symbol(name)
            watch = self._symbols.get(name.removeprefix("_")) if rule is None else rule.watch
            if watch is not None and (rule is None or rule.kind is not RuleKind.DATA):
                yield _Definition(watch, Avma(address + image.slide))

    def _objc_methods(
        self, image: BinaryImage, contents: MachOFileContents
    ) -> Iterator[_Definition]:
        from machtrace.formats.macho.fixups.pointers import parse_pointers
        from machtrace.formats.macho.metadata.objc import parse_objc_methods

        methods = parse_objc_methods(contents, parse_pointers(contents))
        for row, address in enumerate(methods.rows.implementations.tolist()):
            selector = methods.selector(row)
            if selector not in self._selectors:
                continue
            is_class = bool(methods.is_class_method[row])
            watch = self._methods.get(Method(is_class, methods.owner(row).class_name, selector))
            if watch is not None and address:
                yield _Definition(watch, Avma(address + image.slide))
