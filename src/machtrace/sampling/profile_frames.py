"""The distinct frames of sampled stacks: numbered while they are met, named at the end."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace

from machtrace.model.address import Avma
from machtrace.model.image import BinaryImage, ImageList
from machtrace.model.profile import MissingFrames, ProfileFrame
from machtrace.model.snapshot import Snapshot
from machtrace.model.stack import AddressKind, FrameAddress
from machtrace.model.symbol import Frame, FrameStatus
from machtrace.unwinder.frame_codes import KIND_COUNT, KINDS, TRUSTS

Namer = Callable[[FrameAddress, Snapshot], Frame]
"""Gives an address of a snapshot's process its image and its name."""

_MOST_CACHED = 1 << 18


class ProfileFrames:
    """Numbers frames: one that has another image at its address is another frame.

    Of a snapshot nothing is kept but what names are made of, and that once for each image.
    """

    __slots__ = ("_cached", "_frames", "_images", "_numbers", "_sources")

    def __init__(self) -> None:
        self._images: ImageList | None = None
        self._cached: dict[tuple[int, int], int] = {}
        """Numbers by address and code, for the images of the last snapshot."""
        self._numbers: dict[Hashable, int] = {}
        self._frames: list[tuple[FrameAddress, BinaryImage | None] | ProfileFrame] = []
        self._sources: dict[BinaryImage, Snapshot] = {}

    def __len__(self) -> int:
        return len(self._frames)

    def number(self, address: int, code: int, snapshot: Snapshot) -> int:
        """Of an address on a stack of ``snapshot``.

        Args:
            address: as it was found (Avma), never adjusted.
            code: its trust and kind; see :mod:`machtrace.unwinder.frame_codes`.
            snapshot: which images were where.
        """
        images = snapshot.images
        if images is not self._images or len(self._cached) >= _MOST_CACHED:
            if self._images is None or tuple(images) != tuple(self._images):
                self._cached = {}
            self._images = images
        found = self._cached.get((address, code))
        if found is None:
            found = self._cached[address, code] = self._new(address, code, snapshot)
        return found

    def of_frame(self, frame: ProfileFrame) -> int:
        """The number of a frame that has its name already, or that stands for others."""
        found = self._numbers.get(frame)
        if found is None:
            found = self._numbers[frame] = len(self._frames)
            self._frames.append(frame)
        return found

    def frames(self, name: Namer) -> tuple[ProfileFrame, ...]:
        """All, by number. Those of one image are named one after the other."""
        named: list[ProfileFrame] = [MissingFrames.LEFT_OUT] * len(self._frames)
        waiting: dict[BinaryImage, list[tuple[int, FrameAddress]]] = {}
        for number, frame in enumerate(self._frames):
            if not isinstance(frame, tuple):
                named[number] = frame
                continue
            address, image = frame
            if image is None:
                named[number] = Frame(address=address, status=FrameStatus.UNKNOWN_IMAGE)
            else:
                waiting.setdefault(image, []).append((number, address))
        for image, addresses in waiting.items():
            source = self._sources[image]
            for number, address in addresses:
                named[number] = name(address, source)
        return tuple(named)

    def _new(self, address: int, code: int, snapshot: Snapshot) -> int:
        trust, kind = TRUSTS[code // KIND_COUNT], KINDS[code % KIND_COUNT]
        frame = FrameAddress(Avma(address), trust, kind)
        image = snapshot.images.find(frame.lookup)
        key = _key(image, frame.address, kind)
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self._frames)
            self._frames.append((frame, image))
            if image is not None and image not in self._sources:
                self._sources[image] = replace(snapshot, threads=(), problems=())
        return found


def _key(image: BinaryImage | None, address: Avma, kind: AddressKind) -> Hashable:
    return image, address, kind
