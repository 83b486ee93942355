"""Where ``.dynsym`` is, found as the loader finds it: without section headers."""

from __future__ import annotations

import numpy as np

from machtrace.formats.elf.contents import ElfContents
from machtrace.formats.elf.dynamic import dynamic_address, read_dynamic
from machtrace.formats.elf.structs import DT_GNU_HASH, DT_HASH, DT_STRSZ, DT_STRTAB, DT_SYMTAB
from machtrace.errors import ElfError
from machtrace.model.address import Svma

_WORD = 4
_CHAINS_AT_ONCE = 1024
"""Words read at once of the last chain, whose end is not known."""


def dynamic_symbol_tables(
    contents: ElfContents, entry_size: int
) -> tuple[memoryview, memoryview] | None:
    """The symbols and the strings that the dynamic section names; None where it names none.

    Raises:
        ElfError: the hash table that tells the number of symbols is malformed.
        MemoryReadError: they cannot be read.
    """
    entries = read_dynamic(contents, contents.image)
    if DT_SYMTAB not in entries or DT_STRTAB not in entries:
        return None

    def address(tag: int) -> Svma:
        return dynamic_address(entries[tag], contents.image, slide=contents.slide)

    symbols, strings = address(DT_SYMTAB), address(DT_STRTAB)
    if DT_HASH in entries:
        # gABI, "Hash Table": nbucket, nchain; there is one chain entry a symbol.
        order = "<" if contents.image.layout.little_endian else ">"
        words = np.frombuffer(contents.read_svma(address(DT_HASH), 2 * _WORD), f"{order}u4")
        count = int(words[1])
    elif DT_GNU_HASH in entries:
        count = _gnu_hash_count(contents, address(DT_GNU_HASH))
    else:
        # Nothing tells; linkers put the strings right after the symbols.
        count = max(0, strings - symbols) // entry_size
    table = contents.read_svma(symbols, count * entry_size)
    return table, contents.read_svma(strings, entries.get(DT_STRSZ, 0))


def _gnu_hash_count(contents: ElfContents, address: Svma) -> int:
    """How many symbols a ``DT_GNU_HASH`` table covers.

    It holds nbuckets, symoffset, bloom_size, bloom_shift, a Bloom filter of as many pointers, the
    first symbol of each bucket, and a word for each symbol from symoffset on, whose lowest bit
    ends a bucket. So the last symbol is where the bucket that starts last ends.
    """
    layout = contents.image.layout
    word = np.dtype(f"{layout.byte_order}u4")
    head = np.frombuffer(contents.read_svma(address, 4 * _WORD), word)
    bucket_count, first, bloom_size = (int(n) for n in head[:3])
    buckets_at = address + 4 * _WORD + bloom_size * layout.pointer_size
    buckets = np.frombuffer(contents.read_svma(Svma(buckets_at), bucket_count * _WORD), word)
    last = int(buckets.max()) if bucket_count else 0
    if last < first:
        return first
    end = contents.image.loaded_end(Svma(buckets_at))
    chains_at = buckets_at + bucket_count * _WORD - first * _WORD
    while end is not None and chains_at + last * _WORD < end:
        at = chains_at + last * _WORD
        size = min(_CHAINS_AT_ONCE * _WORD, (end - at) // _WORD * _WORD)
        if not size:
            break
        ends = np.flatnonzero(np.frombuffer(contents.read_svma(Svma(at), size), word) & 1)
        if len(ends):
            return last + int(ends[0]) + 1
        last += size // _WORD
    raise ElfError("hash table without an end", source=contents.source, offset=address)
