"""The images of a report, a core or a process, and which of their files a symbol store has."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from machtrace.errors import FileAccessError
from machtrace.formats.object_file import signature
from machtrace.frozen import dataclass
from machtrace.images.open_file import open_image_file
from machtrace.images.store_layout import FileKind, Identifier
from machtrace.reports.image_lists import listed_images
from machtrace.symbolstore.store import SymbolStore

_SYSTEM = re.compile(
    r"^/(?:System|usr/lib|usr/libexec|Library/Apple|lib|lib64)/"
    r"|/RuntimeRoot/|/iOS DeviceSupport/|^\[.*\]$|^linux-(?:vdso|gate)"
)
"""Paths of images that come with an operating system."""
_TEXT_LIMIT = 256 << 20
"""Bytes of a report that are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededImage:
    """An image that a report, core or process lists."""

    identifier: Identifier | None
    arch: str | None
    name: str
    path: str
    kinds: frozenset[FileKind]
    """The kinds of its files that the store has or, for a target's image, this machine."""

    @property
    def has_debug_file(self) -> bool:
        """Whether the file with its debug information is available."""
        return FileKind.DEBUGINFO in self.kinds

    @property
    def is_system(self) -> bool:
        """Whether it belongs to the operating system, judged by its path."""
        return _SYSTEM.search(self.path) is not None


def needed_images(spec: str, store: SymbolStore) -> Iterator[NeededImage]:
    """Yield the images of ``spec``: a report's path, a target, or ``-`` for stdin.

    Raises:
        MachtraceError: it cannot be read, or lists no images.
    """
    text = _report_text(spec)
    if text is None:
        yield from _of_target(spec, store)
        return
    for image in listed_images(text, "standard input" if spec == "-" else spec):
        yield NeededImage(
            identifier=image.uuid,
            arch=image.arch,
            name=image.name,
            path=image.path,
            kinds=_kinds(store, image.uuid),
        )


def _of_target(spec: str, store: SymbolStore) -> Iterator[NeededImage]:
    """Yield a target's images; files at the paths that the target reports count as well."""
    from machtrace.images.resolver import ImageResolver
    from machtrace.model.symbol import FrameStatus
    from machtrace.pipeline.backtraces import snapshot

    resolver = ImageResolver()
    for image in snapshot(spec).images:
        files = resolver.files(image)
        kinds = set() if image.uuid is None else set(_kinds(store, image.uuid))
        if not isinstance(files.binary, FrameStatus):
            kinds.add(FileKind.EXECUTABLE)
        if not isinstance(files.lines, FrameStatus):
            kinds.add(FileKind.DEBUGINFO)
        yield NeededImage(
            identifier=image.uuid,
            arch=image.arch.value,
            name=image.name,
            path=image.path,
            kinds=frozenset(kinds),
        )


def _kinds(store: SymbolStore, identifier: Identifier) -> frozenset[FileKind]:
    # Reports are not sure of architectures (arm64 for arm64e); UUIDs are.
    return frozenset(kind for kind in FileKind if store.find(identifier, None, kind))


def _report_text(spec: str) -> str | None:
    """Return the text of the report ``spec``, or None if it names a target."""
    if spec == "-":
        return sys.stdin.buffer.read(_TEXT_LIMIT).decode("utf-8", "replace")
    if spec.isdigit() or spec.startswith("emulated:") or not Path(spec).exists():
        return None
    data = open_image_file(spec)
    kind = signature(data)
    if kind is not None and kind.has_images:
        return None
    if len(data) > _TEXT_LIMIT:
        raise FileAccessError(spec, f"a report of {len(data):,} bytes is not read")
    return bytes(data).decode("utf-8", "replace")
