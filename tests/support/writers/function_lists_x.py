"""Opening a Mach-O file with a list of functions of our choice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from machtrace.formats.macho.contents import FileContents
from machtrace.formats.macho.image import LinkeditData
from machtrace.model.address import FileOffset
from tests.support.writers.exports_trie_writer import uleb


def with_listed_functions(data: bytes, starts: Iterable[int]) -> FileContents:
    """The file's contents as if its LC_FUNCTION_STARTS had ``starts`` (ImageOffset), and no others.

    Behind ``data`` there is the table; load commands stay as they are.
    """
    deltas = (after - before for before, after in pairwise([0, *sorted(set(starts))]))
    table = b"".join(map(uleb, deltas)) + b"\0"
    contents = FileContents(data + table, "with listed functions")
    place = LinkeditData(FileOffset(len(data)), len(table))
    contents.image = replace(contents.image, function_starts=place)
    return contents
