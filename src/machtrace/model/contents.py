"""Reading an image by the addresses and offsets that its own tables use."""

from __future__ import annotations

from typing import Protocol

from machtrace.model.address import FileOffset, Svma


class ImageContents(Protocol):
    """An image's bytes, whether it lies as a file or as loaded into memory."""

    @property
    def source(self) -> str:
        """What to call it in errors."""
        ...

    def read_svma(self, address: Svma, size: int, /) -> memoryview:
        """Exactly ``size`` bytes at a stated address.

        Raises:
            MemoryReadError: any of them is in no segment, or was not captured.
        """
        ...

    def read_file(self, offset: FileOffset, size: int, /) -> memoryview:
        """Exactly ``size`` bytes at a file offset (of the slice, in a fat file).

        Raises:
            MemoryReadError: any of them is beyond the file, or in no loaded segment.
        """
        ...
