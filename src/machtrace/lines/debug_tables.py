"""What an index of debug information consists of, whatever it is read from."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt


class DebugTables(Protocol):
    """Ranges of code, their source locations, and the calls that those are inlined into.

    See :class:`~machtrace.lines.symcache.SymCache`, which is one file's.
    """

    @property
    def source(self) -> str:
        """What to call it in errors."""
        ...

    @property
    def range_starts(self) -> npt.NDArray[np.uint32]:
        """Where each range begins, an :data:`ImageOffset`; ascending."""
        ...

    @property
    def range_locations(self) -> npt.NDArray[np.int32]:
        """For each range its source location; -1 where nothing is known."""
        ...

    @property
    def location_file(self) -> npt.NDArray[np.int32]:
        """For each source location its file; -1 where that is not known."""
        ...

    @property
    def location_line(self) -> npt.NDArray[np.uint32]:
        """1-based; 0 where it is not known."""
        ...

    @property
    def location_function(self) -> npt.NDArray[np.int32]:
        """For each source location its function; -1 where that is not known."""
        ...

    @property
    def location_parent(self) -> npt.NDArray[np.int32]:
        """The location of the call that this one is inlined into; -1 where it is not."""
        ...

    @property
    def function_entry(self) -> npt.NDArray[np.uint32]:
        """Where each function begins; 2**32 - 1 where that is not known."""
        ...

    def function_name(self, number: int) -> str:
        """A function's linkage name, else its plain one; may be empty."""
        ...

    def file_path(self, number: int) -> str:
        """A file's path, as it was recorded."""
        ...
