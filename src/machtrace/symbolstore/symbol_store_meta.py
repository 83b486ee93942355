"""What a store notes of a file beside it, as ``symsorter`` does: its name, arch and format."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from machtrace.errors import FileAccessError
from machtrace.images.open_file import open_image_file
from machtrace.symbolstore.contained_images import ImageFile, images_in
from machtrace.images.store_layout import Identifier, plain_name
from machtrace.symbolstore.atomic_write import write_new

_META_LIMIT = 1 << 16
"""Bytes of a ``meta`` file that are read; real ones have a hundred."""

_OTHER_ARCH_NAMES = {"x86": "i386"}
"""What ``symsorter`` calls architectures that have another name here."""


@dataclass(frozen=True, slots=True)
class StoredMeta:
    """What is known of a stored file besides its place."""

    name: str | None = None
    arch: str | None = None


def meta_path(path: Path) -> Path:
    """The ``meta`` beside a stored file."""
    return path.with_name(f"{path.name}.meta")


def write_meta(path: Path, image: ImageFile, name: str) -> None:
    """Note what ``image``, stored at ``path``, was called, unless that is noted already.

    Raises:
        OSError: it cannot be written.
    """
    document = {
        "name": plain_name(name) or name,
        "arch": image.arch,
        "file_format": image.format.value,
    }
    text = json.dumps(document).encode("utf-8", "backslashreplace")
    write_new(meta_path(path), memoryview(text), None)


def read_meta(path: Path) -> StoredMeta:
    """What is noted of the file at ``path``, or what its own headers say of its architecture."""
    try:
        with meta_path(path).open("rb") as file:
            document = json.loads(file.read(_META_LIMIT))
    except (OSError, ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        return StoredMeta(arch=_own_arch(path))
    name, arch = document.get("name"), document.get("arch")
    return StoredMeta(
        name if isinstance(name, str) else None,
        _OTHER_ARCH_NAMES.get(arch, arch) if isinstance(arch, str) else _own_arch(path),
    )


def identifiers_of(path: Path) -> list[Identifier]:
    """What the headers of the file at ``path`` say that it is; none where it is no image."""
    return [image.identifier for image in _images(path)]


def _own_arch(path: Path) -> str | None:
    images = _images(path)
    return images[0].arch if len(images) == 1 else None


def _images(path: Path) -> list[ImageFile]:
    try:
        return images_in(open_image_file(path), str(path))[0]
    except FileAccessError:
        return []
