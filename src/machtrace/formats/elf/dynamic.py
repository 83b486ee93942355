"""The dynamic section, the loader's table of contents (gABI, chapter 5)."""

from __future__ import annotations

from collections.abc import Mapping
from struct import unpack
from types import MappingProxyType
from typing import TYPE_CHECKING

from machtrace.errors import ElfError, MemoryReadError
from machtrace.formats.elf.image import ElfImage
from machtrace.formats.elf.structs import (
    DF_1_PIE,
    DT_FLAGS_1,
    DT_GNU_HASH,
    DT_HASH,
    DT_NEEDED,
    DT_NULL,
    DT_SONAME,
    DT_STRSZ,
    DT_STRTAB,
    DT_SYMTAB,
    PT_DYNAMIC,
    PT_INTERP,
    ElfType,
)
from machtrace.model.address import Svma
from machtrace.model.memory import ImageContents

if TYPE_CHECKING:
    from machtrace.formats.elf.contents import ElfContents

ENTRY_LIMIT = 4096
"""Entries read; real tables have tens."""

_WORD = 4
_CHAINS_AT_ONCE = 1024
"""Words read at once of the last chain, whose end is unknown."""
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


def read_needed(contents: ImageContents, image: ElfImage) -> tuple[str, ...]:
    """Return the names of the libraries that the loader loads for an image in a file (DT_NEEDED).

    Those that cannot be read are left out. Raises nothing.
    """
    segment, layout = image.segment(PT_DYNAMIC), image.layout.dynamic
    names: list[str] = []
    try:
        entries = read_dynamic(contents, image)
        if segment is None or DT_STRTAB not in entries:
            return ()
        count = min(segment.file_size // layout.size, ENTRY_LIMIT)
        data = contents.read_svma(segment.address, count * layout.size)
        for tag, value in layout.iter_unpack(data):
            if tag == DT_NULL:
                break
            size = min(entries.get(DT_STRSZ, 0) - value, _NAME_LIMIT)
            name = None
            if tag == DT_NEEDED:
                name = _c_string(contents, Svma(entries[DT_STRTAB] + value), size)
            if name:
                names.append(name)
    except MemoryReadError:
        pass
    return tuple(names)


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


def dynamic_symbol_tables(
    contents: ElfContents, entry_size: int
) -> tuple[memoryview, memoryview] | None:
    """Return the symbols and the strings that the dynamic section names; None if it names none.

    Raises:
        ElfError: the hash table, which determines the number of symbols, is malformed.
        MemoryReadError: they cannot be read.
    """
    entries = read_dynamic(contents, contents.image)
    if DT_SYMTAB not in entries or DT_STRTAB not in entries:
        return None

    def address(tag: int) -> Svma:
        return dynamic_address(entries[tag], contents.image, slide=contents.slide)

    symbols, strings = address(DT_SYMTAB), address(DT_STRTAB)
    if DT_HASH in entries:
        # gABI, "Hash Table": nbucket, nchain; there is one chain entry per symbol.
        count = _words(contents, address(DT_HASH), 2)[1]
    elif DT_GNU_HASH in entries:
        count = _gnu_hash_count(contents, address(DT_GNU_HASH))
    else:
        # The count is not stated; linkers put the strings right after the symbols.
        count = max(0, strings - symbols) // entry_size
    table = contents.read_svma(symbols, count * entry_size)
    return table, contents.read_svma(strings, entries.get(DT_STRSZ, 0))


def _gnu_hash_count(contents: ElfContents, address: Svma) -> int:
    """Return how many symbols a ``DT_GNU_HASH`` table covers.

    It has nbuckets, symoffset, bloom_size, bloom_shift, a Bloom filter of that many pointers, the
    first symbol of each bucket, and a word for each symbol from symoffset on, whose lowest bit ends
    a bucket. So the last symbol is the end of the bucket that starts last.
    """
    bucket_count, first, bloom_size, _ = _words(contents, address, 4)
    buckets_at = address + 4 * _WORD + bloom_size * contents.image.layout.pointer_size
    last = max(_words(contents, Svma(buckets_at), bucket_count), default=0)
    if last < first:
        return first
    end = contents.image.loaded_end(Svma(buckets_at))
    chains_at = buckets_at + bucket_count * _WORD - first * _WORD
    while end is not None and chains_at + last * _WORD < end:
        at = chains_at + last * _WORD
        size = min(_CHAINS_AT_ONCE * _WORD, (end - at) // _WORD * _WORD)
        if not size:
            break
        for index, word in enumerate(_words(contents, Svma(at), size // _WORD)):
            if word & 1:
                return last + index + 1
        last += size // _WORD
    raise ElfError("hash table without an end", source=contents.source, offset=address)


def _words(contents: ElfContents, address: Svma, count: int) -> tuple[int, ...]:
    """Read words of 32 bits."""
    data = contents.read_svma(address, count * _WORD)
    return unpack(f"{contents.image.layout.byte_order}{count}I", data)
