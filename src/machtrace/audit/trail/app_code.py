"""The app's files as the evidence for recorded calls: whose code, which calls, which call sites.

A file counts if its UUID or build id is that of a recorded image. Linkers of ELF may write none:
then the name must be equal, and each recorded return address must follow a call.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import numpy as np

from machtrace.audit.rules import Rule, RuleSet
from machtrace.audit.scan import attribution as scanned
from machtrace.audit.scan.attribution import Attributor
from machtrace.audit.scan.bundles import PartKind, read_parts
from machtrace.audit.scan.code import ImageCode
from machtrace.audit.scan.elf_names import ElfNames
from machtrace.audit.scan.image import Site, scan_code
from machtrace.audit.scan.link_map import LinkMap
from machtrace.audit.scan.machines import X86
from machtrace.audit.scan.sources import SourcePaths
from machtrace.audit.scan.values import (
    ClassObject,
    CodeUse,
    Instance,
    MessageUse,
    SymbolUse,
    Use,
)
from machtrace.audit.trail.calls import Image, ImageRole, Trail
from machtrace.audit.trail.code_facts import NO_FACTS, UNKNOWN_CALLEE, Callee, CodeFacts, is_method
from machtrace.audit.trail.libraries import CodeRanges, Evidence, Function, Library, code_ranges
from machtrace.audit.trail.stacks import ROOT
from machtrace.errors import FormatError, MachtraceError
from machtrace.formats.elf.structs import PT_INTERP
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.header import FileType
from machtrace.formats.object_file import ObjectFile, sniff
from machtrace.frozen import dataclass
from machtrace.model.address import LAST_OFFSET
from machtrace.model.image import BuildId

# --- Facts of the app's code, by decoding the functions that recorded stacks lead to ---
#
# Only what the stacks refer to is decoded: the functions with recorded return addresses, those
# that they call and that end with jumps, and where a call leads to an address in a register, the
# functions that end with a jump to what it led to.

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
        self._images = {image.key: image for image in images}
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


# --- Whose code an address is, and what it calls ---

UNKNOWN = -1
_NO_INDEX = -2
_SYSTEM = re.compile(
    r"(?:/usr/lib/|/System/)"
    r"|(?:ld-linux[\w-]*|ld-musl[\w-]*|libc\.musl[\w-]*|lib(?:c|m|dl|rt|pthread|util|resolv|anl|nsl"
    r"|crypt|atomic|gomp|gcc_s|stdc\+\+|c\+\+|c\+\+abi|log|android))\.so(?:\.\d+)*\Z"
)
"""Names by which images load those of the system."""
_EVIDENCE = {
    scanned.Evidence.IMAGE: Evidence.IMAGE,
    scanned.Evidence.LINK_MAP: Evidence.LINK_MAP,
    scanned.Evidence.DEBUG_MAP: Evidence.DEBUG_INFORMATION,
    scanned.Evidence.DWARF: Evidence.DEBUG_INFORMATION,
    scanned.Evidence.SWIFT_MODULE: Evidence.SWIFT_MODULE,
    scanned.Evidence.PREFIX: Evidence.CLASS_PREFIX,
    scanned.Evidence.NEIGHBOURS: Evidence.NEIGHBOURS,
    scanned.Evidence.NONE: Evidence.NONE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AppSite:
    """A site of an image, with the library that its function belongs to."""

    image: Image
    site: Site
    library: str
    """Empty if it is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AppCode:
    """The evidence that an app's files have for a trail."""

    libraries: tuple[Library, ...] = ()
    ranges: Mapping[str, CodeRanges]
    """The functions of images, by key; libraries are indices of :attr:`libraries`."""
    facts: CodeFacts = NO_FACTS
    images: tuple[Image, ...] = ()
    """Images without frames that may have made calls; they are added to the trail's."""
    sites: tuple[AppSite, ...] = ()
    problems: tuple[str, ...] = ()
    """Parts that could not be judged, one line each."""


def read_app_code(
    path: Path,
    trail: Trail,
    rules: RuleSet,
    *,
    link_map: LinkMap | None = None,
    search: Sequence[str] = (),
) -> AppCode:
    """Read the files of recorded images in an app.

    Args:
        path: an app, an archive of one, a folder, or an image.
        trail: the calls.
        rules: what is watched, and names of libraries.
        link_map: the linker's map of one of the images.
        search: files and folders with debug information.

    Raises:
        FileAccessError, FormatError: see :func:`~machtrace.audit.scan.bundles.read_parts`.
    """
    symbols = path / "dSYMs"
    sources = SourcePaths([*search, *([str(symbols)] if symbols.is_dir() else [])])
    return _Reader(path, trail, rules, link_map, sources).read()


class _Reader:
    def __init__(
        self,
        path: Path,
        trail: Trail,
        rules: RuleSet,
        link_map: LinkMap | None,
        sources: SourcePaths,
    ) -> None:
        self._path, self._trail, self._rules = path, trail, rules
        self._link_map, self._sources = link_map, sources
        self._problems: list[str] = []
        self._opened: dict[str, AppImage] = {}
        self._others: list[tuple[str, ObjectFile]] = []
        self._libraries: dict[str, Library] = {}
        self._numbers: dict[str, int] = {}

    def read(self) -> AppCode:
        self._open()
        self._report_missing()
        self._add_loaded()
        facts = code_facts(tuple(self._opened.values()), self._trail)
        ranges: dict[str, CodeRanges] = {}
        sites: list[AppSite] = []
        wanted = _functions(facts)
        is_mapped = self._link_map is None
        map_problems: list[str] = []
        for opened in self._opened.values():
            scan = scan_code(opened.code, self._rules)
            attributor = self._attributor(opened)
            starts = {int(site.function_offset) for site in scan.sites}
            starts |= {each.offset for each in wanted if each.image == opened.image.key}
            named = self._named(opened, attributor, starts)
            ranges[opened.image.key] = self._ranges(opened, named)
            sites += [
                AppSite(image=opened.image, site=site, library=named[int(site.function_offset)][0])
                for site in scan.sites
            ]
            is_mapped |= attributor.uses_link_map
            map_problems += map(str, attributor.problems)
            self._problems += map(str, opened.code.problems())
        if not is_mapped:
            self._problems += map_problems or ["the link map is of no recorded image"]
        return AppCode(
            libraries=tuple(self._libraries.values()),
            ranges=ranges,
            facts=facts,
            sites=tuple(sites),
            images=self._unrecorded(facts),
            problems=tuple(dict.fromkeys(self._problems)),
        )

    # --- files ---

    def _open(self) -> None:
        own = [each for each in self._trail.images if each.role is not ImageRole.SYSTEM]
        by_key = {each.key.lower(): each for each in own}
        by_name = {each.path.rpartition("/")[2]: each for each in own if not each.uuid}
        for path, contents in self._files():
            identifier = contents.image.identifier
            if identifier is None:
                image = by_name.get(path.rpartition("/")[2])
            else:
                image = by_key.get(_digits(identifier))
            if image is None:
                self._others.append((path, contents))
            if image is None or image.key in self._opened:
                continue
            code = ImageCode(contents, self._rules)
            if not self._is_usable(code):
                continue
            if identifier is None and not self._follows_calls(image, code):
                self._problems.append(f"{image.path}: {path} is another build of it")
            else:
                self._opened[image.key] = AppImage(image, code)

    def _files(self) -> Iterator[tuple[str, ObjectFile]]:
        for part in read_parts(self._path, with_elf=True):
            if isinstance(part, MachtraceError):
                self._problems.append(str(part))
            elif part.kind is PartKind.IMAGE:
                try:
                    opened = [each.open() for each in sniff(part.data, part.path)]
                except FormatError as error:
                    self._problems.append(str(error))
                    continue
                yield from ((part.path, each) for each in opened if each.image.has_code)

    def _add_loaded(self) -> None:
        """Open the images without frames that others load: their functions may end with jumps.

        If any image loads others at run time, these may be all that are in the app.
        """
        names: dict[str, list[tuple[str, ObjectFile]]] = defaultdict(list)
        arches = {each.code.contents.image.arch for each in self._opened.values()}
        for path, contents in self._others:
            if contents.image.arch in arches:
                names[path.rpartition("/")[2]].append((path, contents))
        waiting = list(self._opened.values())
        while waiting:
            for name in map(_file_name, waiting.pop().code.watched.needed):
                for path, contents in names.pop(name, ()):
                    waiting += self._add(path, contents, is_linked=True)
        symbols = [each.code.names for each in self._opened.values()]
        if any("_dlopen" in (*symbol.stubs.values(), *symbol.slots.values()) for symbol in symbols):
            for path, contents in [file for files in names.values() for file in files]:
                if not _is_program(contents):
                    self._add(path, contents, is_linked=False)
        known = {_file_name(image.path) for image in self._trail.images} | {
            _file_name(each)
            for opened in self._opened.values()
            for each in (opened.image.path, *opened.code.watched.names_of_image)
        }
        closed = {
            _file_name(image.path)
            for image in self._trail.images
            if image.role is not ImageRole.SYSTEM and image.key not in self._opened
        }
        for key, opened in self._opened.items():
            others = [
                name
                for name in opened.code.watched.needed
                if not _SYSTEM.match(name) and _file_name(name) not in known - closed
            ]
            self._opened[key] = opened._replace(is_complete=not others)

    def _add(self, path: str, contents: ObjectFile, *, is_linked: bool) -> list[AppImage]:
        """Open an image that was not recorded, and return it unless it cannot be read."""
        identifier = contents.image.identifier
        image = Image(path=path, uuid="" if identifier is None else _digits(identifier))
        added = AppImage(image, ImageCode(contents, self._rules), is_linked)
        if image.key in self._opened or not self._is_usable(added.code):
            return []
        self._opened[image.key] = added
        return [added]

    def _is_usable(self, code: ImageCode) -> bool:
        """Return whether an image's functions and names can be read."""
        try:
            return len(code.table) > 0 and code.names is not None
        except MachtraceError as error:
            self._problems.append(str(error))
            return False

    def _unrecorded(self, facts: CodeFacts) -> tuple[Image, ...]:
        used = {function.image for function in _functions(facts)}
        recorded = {image.key for image in self._trail.images}
        images = [each.image for each in self._opened.values()]
        return tuple(each for each in images if each.key in used - recorded)

    def _report_missing(self) -> None:
        used = np.unique(self._trail.stacks.image)
        for index in used[used >= 0].tolist():
            image = self._trail.images[index]
            if image.role is ImageRole.APP and image.key not in self._opened:
                self._problems.append(
                    f"{image.path}: {self._path} has no such image, or another build of it: "
                    "its instructions and call sites were not read"
                )

    def _follows_calls(self, image: Image, code: ImageCode) -> bool:
        """Return whether each recorded return address of an image is after a call."""
        tree = self._trail.stacks
        offsets = np.unique(tree.offset[tree.image == self._trail.images.index(image)])
        numbers = np.intersect1d(code.table.ids(offsets, back=1), code.functions)
        places = {
            use.after - code.base for number in numbers for use in code.uses(number, every=True)
        }
        return places.issuperset(offsets.tolist())

    # --- libraries ---

    def _attributor(self, opened: AppImage) -> Attributor:
        contents = opened.code.contents
        return Attributor(
            contents,
            opened.code.table,
            name=opened.image.name,
            is_library=opened.image.role is ImageRole.LIBRARY,
            libraries=self._rules.libraries,
            link_map=self._link_map,
            source_of=self._sources.of(contents),
        )

    def _named(
        self, opened: AppImage, attributor: Attributor, starts: set[int]
    ) -> dict[int, tuple[str, Evidence]]:
        """Return the library of functions, by offset, and the evidence.

        If some functions of an image are of libraries, or should be by its map, one without a name
        may be any library's.
        """
        table, image = opened.code.table, opened.image
        index = next((i for i, each in enumerate(self._trail.images) if each is image), _NO_INDEX)
        tree = self._trail.stacks
        numbers = table.ids(tree.offset[tree.image == index], back=1)
        starts = starts | set(table.starts[np.unique(numbers[numbers >= 0])].tolist())
        named: dict[int, tuple[str, Evidence]] = {}
        for start in sorted(starts):
            answer = attributor.library(start)  # type: ignore[arg-type]
            named[start] = answer.library, _EVIDENCE[answer.evidence]
        is_divided = any(library != image.name for library, _ in named.values())
        if is_divided or attributor.uses_link_map:
            for start, (_, evidence) in named.items():
                number = int(table.starts.searchsorted(np.uint64(start)))
                if evidence is Evidence.NONE and not table.is_named[number]:
                    named[start] = "", evidence
        return named

    def _ranges(self, opened: AppImage, named: Mapping[int, tuple[str, Evidence]]) -> CodeRanges:
        starts = opened.code.table.starts[opened.code.functions].tolist()
        answers = [named.get(start, ("", Evidence.NONE)) for start in starts]
        return code_ranges(
            starts,
            [self._number(name, opened.image) for name, _ in answers],
            evidence=[evidence for _, evidence in answers],
        )

    def _number(self, name: str, image: Image) -> int:
        if not name:
            return UNKNOWN
        if name not in self._numbers:
            role = image.role if name == image.name else ImageRole.LIBRARY
            self._libraries[name] = Library(name=name, role=role)
            self._numbers[name] = len(self._numbers)
        return self._numbers[name]


def _is_program(contents: ObjectFile) -> bool:
    if isinstance(contents, MachOFileContents):
        return contents.image.header.filetype is FileType.EXECUTE
    return contents.image.segment(PT_INTERP) is not None


def _file_name(path: str) -> str:
    return path.rpartition("/")[2]


def _digits(identifier: UUID | BuildId) -> str:
    return identifier.hex if isinstance(identifier, UUID) else identifier.value.hex()


def _functions(facts: CodeFacts) -> set[Function]:
    """Return the functions that may have no frame in a stack."""
    called = {callee.function for callee in facts.calls.values() if callee.function is not None}
    return called | set(facts.jumps)
