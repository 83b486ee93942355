"""Which images are a program's own, and which the system's."""

from __future__ import annotations

from collections.abc import Iterable

from machtrace.model.image import BinaryImage, ImageFormat

_ELF_FOLDERS = ("/lib/", "/lib32/", "/lib64/", "/usr/lib/", "/usr/lib32/", "/usr/lib64/")
_MACHO_FOLDERS = ("/System/", "/usr/lib/", "/Library/Apple/")
"""In the shared cache and in simulators' runtimes, too: there they follow the runtime's root."""


def is_system_image(image: BinaryImage) -> bool:
    """Whether an image is from the system's folders, or made by the kernel (``[vdso]``)."""
    path = image.path
    if image.format is ImageFormat.MACHO:
        return path.startswith(_MACHO_FOLDERS) or "/RuntimeRoot/" in path
    return path.startswith(("[", *_ELF_FOLDERS))


def program_images(images: Iterable[BinaryImage], program: str) -> frozenset[BinaryImage]:
    """Of ``images`` the executable at ``program``, and all that are not the system's."""
    return frozenset(
        image for image in images if image.path == program or not is_system_image(image)
    )
