"""The records of Objective-C's metadata, and how to go from one to the next.

Source: objc4, ``runtime/objc-runtime-new.h`` (``objc_class``, ``class_ro_t``, ``class_rw_t``,
``category_t``). All of them are read as columns: one call for all classes of an image.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from machtrace.formats.macho.contents import MachOContents, MemoryContents
from machtrace.formats.macho.columns import Addresses
from machtrace.formats.macho.fixups.pointers import Pointers
from machtrace.formats.macho.fixups.raw_pointers import inside_image
from machtrace.formats.macho.scattered_records import ScatteredRecords

_RW_REALIZED = np.uint32(1 << 31)
_RW_FIELD = 8
"""Where ``class_rw_t`` has its ``ro_or_rw_ext``, of either width."""
_PACKED_ISA_BITS = 0xFFFFFFFF8
"""Where an isa of arm64 has the class, if it holds a reference count and more besides."""
_LONGEST_NAME = 1 << 12


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where fields are, in bytes from a record's start."""

    pointer: int
    class_data: int
    ro_name: int
    ro_methods: int

    @property
    def aligned(self) -> np.uint64:
        """The bits of a record's address that are not flags in disguise."""
        return ~np.uint64(self.pointer - 1)


_LAYOUT_64 = _Layout(pointer=8, class_data=32, ro_name=24, ro_methods=32)
_LAYOUT_32 = _Layout(pointer=4, class_data=16, ro_name=16, ro_methods=20)


class ObjcRecords:
    """The image that metadata is read from."""

    __slots__ = ("contents", "is_loaded", "layout", "memory", "pointers")

    def __init__(self, contents: MachOContents, pointers: Pointers) -> None:
        self.contents = contents
        self.pointers = pointers
        self.memory = ScatteredRecords(contents)
        self.layout = _LAYOUT_64 if contents.image.header.is_64 else _LAYOUT_32
        self.is_loaded = isinstance(contents, MemoryContents)
        """Whether the runtime may have changed the records."""

    def listed(self, *sections: str) -> Addresses:
        """The places of all pointers in the sections of these names, of any segment."""
        return self.memory.elements(sections, self.layout.pointer)

    def field(self, records: Addresses, offset: int) -> Addresses:
        """Where the pointer at ``offset`` of each record leads; 0 where there is none."""
        return np.where(
            records != 0, self.pointers.addresses(records + np.uint64(offset)), np.uint64(0)
        )

    def metaclasses(self, classes: Addresses) -> Addresses:
        """The class of each class; 0 where it is not in this image."""
        image = self.contents.image
        found = self.field(classes, 0) & self.layout.aligned
        if self.is_loaded:
            packed = self.pointers.addresses(classes, _PACKED_ISA_BITS)
            found = np.where(inside_image(image, found), found, packed)
        return np.where(inside_image(image, found), found, np.uint64(0))

    def read_only_data(self, classes: Addresses) -> Addresses:
        """The ``class_ro_t`` of each class: what the compiler wrote; 0 where there is none."""
        # The low bits of the pointer say whether the class is Swift's.
        data = self.field(classes, self.layout.class_data) & self.layout.aligned
        if not self.is_loaded:
            return data
        flags, known = self.memory.read(data, "<u4")
        realized = known & ((flags & _RW_REALIZED) != 0)
        parts = self.field(np.where(realized, data, np.uint64(0)), _RW_FIELD)
        extended = (parts & np.uint64(1)) != 0
        parts &= self.layout.aligned
        read_only = np.where(extended, self.field(parts * extended, 0), parts)
        return np.where(realized, read_only, data)

    def class_names(self, classes: Addresses) -> Addresses:
        """Where the name of each class is; 0 where it has none that can be read."""
        return self.strings(self.field(self.read_only_data(classes), self.layout.ro_name))

    def strings(self, at: Addresses) -> Addresses:
        """``at``, with 0 in place of what is no string with anything in it."""
        first, known = self.memory.read(at, "u1")
        return np.where(known & (first != 0) & (at != 0), at, np.uint64(0))

    def text(self, at: int) -> str:
        r"""The string at a stated address; bytes that are no UTF-8 are shown as ``\x..``."""
        return self.memory.string(at)[:_LONGEST_NAME].decode("utf-8", "backslashreplace")


Owners = npt.NDArray[np.int64]
"""Of each method or list of methods: which class or category has it."""
