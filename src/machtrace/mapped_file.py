"""Files mapped into memory, so that only what is looked at is read.

Python's own mappings keep a descriptor each (``dup`` in ``mmapmodule.c``; 3.13 has a choice). What
opens the images of a process, or of a folder of reports, maps hundreds of files, and macOS gives a
process 256 descriptors unless it asks for more.
"""

from __future__ import annotations

import mmap
import os


def mapped_file(descriptor: int) -> memoryview:
    """All bytes of an open file, read-only; the mapping lives as long as they do.

    The descriptor is the caller's, and may be closed at once.

    Raises:
        OSError: it cannot be mapped.
        ValueError: it is empty.
    """
    try:
        from machtrace._native._mapping import map_file
    except ImportError:  # installed without a compiler
        return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
    return memoryview(map_file(descriptor, os.fstat(descriptor).st_size))
