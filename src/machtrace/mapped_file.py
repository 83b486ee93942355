"""Files mapped into memory, so that only accessed pages are read.

Python's own mappings retain a descriptor each (``dup`` in ``mmapmodule.c``; optional since 3.13).
The images of a process, or a folder of reports, are hundreds of files, and macOS limits a process
to 256 descriptors by default.
"""

from __future__ import annotations

import mmap
import os


def mapped_file(descriptor: int) -> memoryview:
    """Return all bytes of an open file, read-only; the mapping lives as long as they do.

    The caller may close the descriptor at once.

    Raises:
        OSError: it cannot be mapped.
        ValueError: it is empty.
    """
    try:
        from machtrace._native._mapping import map_file
    except ImportError:  # installed without a compiler
        return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
    return memoryview(map_file(descriptor, os.fstat(descriptor).st_size))
