"""Reading the tables that load commands point to, mostly in ``__LINKEDIT``."""

from __future__ import annotations

from machtrace.errors import MachOError, MemoryReadError
from machtrace.formats.macho.contents import FileContents, MachOContents
from machtrace.model.address import FileOffset


def read_table(contents: MachOContents, offset: int, size: int, what: str) -> memoryview:
    """The ``size`` bytes of a table that a load command puts at file offset ``offset``.

    Args:
        contents: the image.
        offset: where the command says that the table is, a :data:`FileOffset`.
        size: in bytes.
        what: the table, as an error should name it.

    Raises:
        MachOError: the table is not wholly in the file, or in no segment of a loaded image.
        MemoryReadError: it is in a loaded segment that cannot be read.
    """
    try:
        return contents.read_file(FileOffset(offset), size)
    except MemoryReadError:
        if isinstance(contents, FileContents):
            where = f"the file ends at {len(contents.data):#x}"
        elif any(
            segment.fileoff <= offset and offset + size <= segment.fileoff + segment.filesize
            for segment in contents.image.segments
        ):
            raise
        else:
            where = "no segment holds all of that"
        raise MachOError(
            f"{what} should be {size} bytes, up to {offset + size:#x}, but {where}",
            source=contents.source,
            offset=offset,
            remedy="copy or build the file again; it was cut short or its load commands altered",
        ) from None
