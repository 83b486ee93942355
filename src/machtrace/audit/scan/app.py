"""An app as its files show it: the calls of each image, and what each bundle declares."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from machtrace.audit.rules import Rule, RuleSet
from machtrace.audit.scan.attribution import Attribution, Attributor
from machtrace.audit.scan.bundles import BUNDLES, Part, PartKind, bundle_of, read_parts
from machtrace.audit.scan.image import ImageScan, Site, scan_image
from machtrace.audit.scan.link_map import LinkMap
from machtrace.audit.scan.manifest import Manifest, parse_manifest, parse_property_list
from machtrace.audit.scan.objects import archive_for, linked_members, linked_object
from machtrace.audit.scan.sources import SourcePaths
from machtrace.errors import FormatError, MachtraceError
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.header import FileType
from machtrace.formats.macho.load_commands import LC_CODE_SIGNATURE
from machtrace.formats.object_file import ObjectSlice, sniff
from machtrace.frozen import dataclass
from machtrace.model.arch import Arch
from machtrace.model.image import ImageFormat

_RESOURCES = ".bundle"
_PREFERRED = (Arch.ARM64, Arch.ARM64E, Arch.X86_64)
"""The slice of a fat file that is searched: all have the same sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedImage:
    """One image of the app."""

    path: str
    bundle: str
    """The path of its bundle; empty if it is in none."""
    uuid: str
    is_signed: bool
    scan: ImageScan
    libraries: Mapping[int, Attribution]
    """By a function's offset: the library that it belongs to."""

    @property
    def unit(self) -> str:
        """The path of what a manifest declares for: the bundle, or a file of its own."""
        return self.bundle or self.path.partition("(")[0]

    @property
    def library(self) -> str:
        """The name of the library that the image is: its bundle's, or the file's."""
        return _library_name(self.unit, self.bundle)

    def attribution(self, site: Site) -> Attribution:
        """Return the library of a site of this image."""
        return self.libraries[site.function_offset]


def _library_name(path: str, bundle: str) -> str:
    name = (bundle or path).rpartition("/")[2]
    return name.rpartition(".")[0] or name


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A folder that declares something for the images in it."""

    path: str
    identifier: str
    """``CFBundleIdentifier``; empty if it is unknown."""
    information: Mapping[str, Any]
    manifests: tuple[Manifest, ...]
    """Its own, and those of resource bundles in it, which static libraries bring."""

    @property
    def name(self) -> str:
        """The folder's name, without its ending."""
        name = self.path.rpartition("/")[2]
        return name.rpartition(".")[0] or name


@dataclass(frozen=True, slots=True, kw_only=True)
class AppScan:
    """A scanned app."""

    path: str
    images: tuple[ScannedImage, ...]
    bundles: Mapping[str, Bundle]
    """By path."""
    problems: tuple[MachtraceError, ...]

    def bundle_of(self, image: ScannedImage) -> Bundle | None:
        """Return the bundle of an image."""
        return self.bundles.get(image.bundle)


@dataclass(frozen=True, slots=True, kw_only=True)
class Declarations:
    """The required-reason categories that the bundles of an app declare."""

    units: Mapping[str, str]
    """By an image's UUID, in hexadecimal: the bundle or file that a manifest declares for."""
    declared: Mapping[str, Mapping[str, str]]
    """By bundle or file, and category: the path of the manifest."""
    problems: tuple[str, ...] = ()
    """Parts that could not be read, one line each."""

    def unit(self, uuid: str) -> str:
        """Return what a manifest declares for, of an image; empty if the app does not have it."""
        return self.units.get(uuid, "")

    def undeclared(self, uuid: str, rule: Rule) -> tuple[str, ...]:
        """Return the categories of a rule if none is declared for an image.

        Empty for images that the app does not have. One of several categories suffices.
        """
        if uuid not in self.units or not rule.required:
            return ()
        declared = self.declared.get(self.units[uuid], {})
        return () if any(each in declared for each in rule.required) else rule.required


def read_declarations(path: Path) -> Declarations:
    """Read what an app, an archive of one, a folder or an image declares; no code is read.

    Raises:
        FileAccessError, FormatError: see :func:`~machtrace.audit.scan.bundles.read_parts`.
    """
    problems: list[MachtraceError] = []
    units: dict[str, str] = {}
    declared: dict[str, dict[str, str]] = defaultdict(dict)
    for part in read_parts(path):
        if isinstance(part, MachtraceError):
            problems.append(part)
        elif part.kind is PartKind.MANIFEST:
            manifest = parse_manifest(bytes(part.data), part.path)
            unit = _declared_for(bundle_of(part.path))
            for category in manifest.reasons:
                declared[unit].setdefault(category, part.path)
        elif part.kind is PartKind.IMAGE:
            bundle = bundle_of(part.path)
            for contents in part_images(part, problems):
                uuid = contents.image.identifier
                if uuid is not None:
                    units[uuid.hex] = bundle or contents.source.partition("(")[0]
    return Declarations(units=units, declared=dict(declared), problems=tuple(map(str, problems)))


def scan_app(
    path: Path,
    rules: RuleSet,
    *,
    link_map: LinkMap | None = None,
    search: Sequence[str] = (),
    on_image: Callable[[str], object] = lambda _: None,
) -> AppScan:
    """Scan an app, an archive of one, a folder or an image.

    Args:
        path: an app, an archive of one, a folder or a Mach-O file.
        rules: what to search for.
        link_map: the linker's map of one of the images.
        search: files and folders with debug information; those of an ``.xcarchive`` are its own.
        on_image: is called with the path of each image before it is searched.

    Raises:
        FileAccessError, FormatError: see :func:`~machtrace.audit.scan.bundles.read_parts`.
    """
    return _AppScan(path, rules, link_map, search).run(on_image)


class _AppScan:
    def __init__(
        self, path: Path, rules: RuleSet, link_map: LinkMap | None, search: Sequence[str]
    ) -> None:
        self._path = path
        self._rules = rules
        self._link_map = link_map
        symbols = path / "dSYMs"
        self._sources = SourcePaths([*search, *([str(symbols)] if symbols.is_dir() else [])])
        self._images: list[ScannedImage] = []
        self._problems: list[MachtraceError] = []
        self._information: dict[str, dict[str, Any]] = {}
        self._manifests: dict[str, list[Manifest]] = defaultdict(list)

    def run(self, on_image: Callable[[str], object]) -> AppScan:
        for part in read_parts(self._path):
            if isinstance(part, MachtraceError):
                self._problems.append(part)
            elif part.kind in (PartKind.IMAGE, PartKind.STATIC_LIBRARY):
                on_image(part.path)
                self._scan(part)
            else:
                self._declare(part)
        bundles = {image.bundle for image in self._images}
        paths = sorted({*bundles, *self._information, *self._manifests} - {""})
        return AppScan(
            path=str(self._path),
            images=tuple(self._images),
            bundles={
                path: _bundle(path, self._information.get(path, {}), self._manifests.get(path, ()))
                for path in paths
            },
            problems=tuple(self._problems),
        )

    def _declare(self, part: Part) -> None:
        bundle = bundle_of(part.path)
        if part.kind is PartKind.MANIFEST:
            manifest = parse_manifest(bytes(part.data), part.path)
            self._manifests[_declared_for(bundle)].append(manifest)
        elif bundle.lower().endswith(BUNDLES):
            try:
                root = parse_property_list(bytes(part.data))
            except ValueError as error:
                self._problems.append(FormatError(str(error), source=part.path, offset=0))
                return
            # The outermost list is the bundle's own: others are in folders of languages.
            self._information.setdefault(bundle, root)

    def _scan(self, part: Part) -> None:
        for contents in part_images(part, self._problems):
            try:
                scan = scan_image(contents, self._rules)
                self._images.append(self._scanned(part, contents, scan))
            except MachtraceError as error:
                self._problems.append(error)

    def _scanned(self, part: Part, contents: MachOFileContents, scan: ImageScan) -> ScannedImage:
        bundle = bundle_of(part.path)
        identifier = contents.image.identifier
        libraries: dict[int, Attribution] = {}
        if scan.table is not None:
            kind = contents.image.header.filetype
            attributor = Attributor(
                contents,
                scan.table,
                name=_library_name(part.path, bundle).removeprefix("lib"),
                is_library=kind is not FileType.EXECUTE,
                libraries=self._rules.libraries,
                link_map=self._link_map,
                source_of=self._sources.of(contents),
            )
            functions = {site.function_offset for site in scan.sites}
            libraries = {function: attributor.library(function) for function in sorted(functions)}
            self._problems.extend(attributor.problems)
        self._problems.extend(scan.problems)
        return ScannedImage(
            path=contents.source,
            bundle=bundle,
            uuid="" if identifier is None else str(identifier).upper(),
            is_signed=any(True for _ in contents.image.commands_of(LC_CODE_SIGNATURE)),
            scan=replace(scan, table=None),
            libraries=libraries,
        )


def open_images(
    path: Path, problems: list[MachtraceError]
) -> Iterator[tuple[str, MachOFileContents]]:
    """Yield the images of an app, an archive of one, a folder or an image, with their paths.

    Raises:
        FileAccessError, FormatError: see :func:`~machtrace.audit.scan.bundles.read_parts`.
    """
    for part in read_parts(path):
        if isinstance(part, MachtraceError):
            problems.append(part)
        elif part.kind in (PartKind.IMAGE, PartKind.STATIC_LIBRARY):
            for contents in part_images(part, problems):
                yield part.path, contents


def part_images(part: Part, problems: list[MachtraceError]) -> Iterator[MachOFileContents]:
    """Yield the image of a file, in one slice; of a static library, one for each object file."""
    try:
        archive = archive_for(part.data, _PREFERRED, part.path)
        if archive is not None:
            yield from linked_members(archive, part.path, problems)
            return
        slices = [each for each in sniff(part.data, part.path) if each.format is ImageFormat.MACHO]
        contents = _preferred(slices)
        if contents is not None:
            contents = linked_object(contents)
    except MachtraceError as error:
        problems.append(error)
        return
    if contents is not None:
        yield contents


def _declared_for(bundle: str) -> str:
    """Return the bundle that a manifest declares for: of a resource bundle, the one around it."""
    while bundle.lower().endswith(_RESOURCES):
        outer = bundle_of(bundle)
        if not outer:
            return bundle
        bundle = outer
    return bundle


def _preferred(slices: Iterable[ObjectSlice]) -> MachOFileContents | None:
    opened = [slice_.open() for slice_ in slices]
    images = [one for one in opened if isinstance(one, MachOFileContents) and one.image.has_code]

    def order(contents: MachOFileContents) -> int:
        arch = contents.image.header.arch
        return _PREFERRED.index(arch) if arch in _PREFERRED else len(_PREFERRED)

    return min(images, key=order, default=None)


def _bundle(path: str, information: Mapping[str, Any], manifests: Iterable[Manifest]) -> Bundle:
    identifier = information.get("CFBundleIdentifier", "")
    return Bundle(
        path=path,
        identifier=identifier if isinstance(identifier, str) else "",
        information=information,
        manifests=tuple(manifests),
    )
