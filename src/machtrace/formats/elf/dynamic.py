"""The dynamic section, the loader's table of contents (gABI, chapter 5)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from machtrace.errors import MemoryReadError
from machtrace.formats.elf.image import ElfImage
from machtrace.formats.elf.structs import (
    DF_1_PIE,
    DT_FLAGS_1,
    DT_NULL,
    DT_SONAME,
    DT_STRSZ,
    DT_STRTAB,
    PT_DYNAMIC,
    PT_INTERP,
    ElfType,
)
from machtrace.model.address import Svma
from machtrace.model.memory import ImageContents

ENTRY_LIMIT = 4096
"""Entries read; real tables have tens."""

_NAME_LIMIT = 4096
_STEP = 64

_NOTHING: Mapping[int, int] = MappingProxyType({})


def read_dynamic(contents: ImageContents, image: ElfImage) -> Mapping[int, int]:
    """Return the first value of each ``DT_`` number; empty without a dynamic section.

    Raises:
        MemoryReadError: it is in no segment, or could not be read.
    """
    segment = image.segment(PT_DYNAMIC)
    if segment is None:
        return _NOTHING
    layout = image.layout.dynamic
    count = min(segment.file_size // layout.size, ENTRY_LIMIT)
    entries: dict[int, int] = {}
    if not count:
        return entries
    for tag, value in layout.iter_unpack(contents.read_svma(segment.address, count * layout.size)):
        if tag == DT_NULL:
            break
        entries.setdefault(tag, value)
    return entries


def dynamic_address(value: int, image: ElfImage, *, slide: int = 0) -> Svma:
    """Return the stated address in a ``d_ptr``.

    In memory, glibc's loader adds the slide to these, musl's does not, and nothing changes the
    vdso's; so in a loaded image (``slide`` not 0) the one inside the image is the right one.
    """
    if slide and image.file_offset_of(Svma(value)) is None:
        unslid = Svma(value - slide)
        if image.file_offset_of(unslid) is not None:
            return unslid
    return Svma(value)


def read_soname(contents: ImageContents, image: ElfImage, *, slide: int = 0) -> str | None:
    """Return ``DT_SONAME``; None if it is missing or cannot be read. Raises nothing."""
    try:
        entries = read_dynamic(contents, image)
        name, strings = entries.get(DT_SONAME), entries.get(DT_STRTAB)
        if name is None or strings is None:
            return None
        table = dynamic_address(strings, image, slide=slide)
        size = min(entries.get(DT_STRSZ, 0) - name, _NAME_LIMIT)
        return _c_string(contents, Svma(table + name), size)
    except MemoryReadError:
        return None


def is_pie(contents: ImageContents, image: ElfImage) -> bool:
    """Whether the image is a position-independent executable. Raises nothing.

    Linkers before 2015 do not set ``DF_1_PIE``; a program without a soname that names its
    interpreter is one, too. The C library, which can be run, has a soname.
    """
    if image.type is not ElfType.SHARED:
        return False
    try:
        flags = read_dynamic(contents, image).get(DT_FLAGS_1, 0)
    except MemoryReadError:
        flags = 0
    return bool(flags & DF_1_PIE) or (image.soname is None and image.segment(PT_INTERP) is not None)


def _c_string(contents: ImageContents, address: Svma, limit: int) -> str | None:
    """Return the string at ``address``, read in small steps, because memory may be remote."""
    text = bytearray()
    while len(text) < limit:
        part = bytes(contents.read_svma(Svma(address + len(text)), min(_STEP, limit - len(text))))
        head, end, _ = part.partition(b"\0")
        text += head
        if end:
            return text.decode("utf-8", "replace")
    return None
