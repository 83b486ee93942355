"""Which image of a report an address is in."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from machtrace.model.reported_image import ReportedImage

_OVERLAPPING = 8
"""Images that may begin below an address and not hold it, before the one that does."""


class _Ordered(NamedTuple):
    """Images by where they begin; of those that begin alike the first one comes last."""

    starts: list[int]
    indices: list[int]


class ImagePlaces:
    """The images of a report by address, and by the names that frames have for them."""

    def __init__(self, images: Sequence[ReportedImage]) -> None:
        self._images = images
        self._all = self._ordered(range(len(images)))
        self._names: dict[str, list[int]] = {}
        self._by_name: dict[str, _Ordered] = {}
        for index, image in enumerate(images):
            identifier = image.details.get("CFBundleIdentifier")
            uuid = None if image.name or image.uuid is None else str(image.uuid)
            for name in {image.name, image.path.rpartition("/")[2], identifier, uuid}:
                if isinstance(name, str):
                    self._names.setdefault(name, []).append(index)
        self._only = {
            name: (start, start + (images[indices[0]].size or 0), indices[0])
            for name, indices in self._names.items()
            if len(indices) == 1 and (start := images[indices[0]].load_address) is not None
        }

    def named(self, name: str) -> int | None:
        """The first image of this name."""
        indices = self._names.get(name)
        return None if indices is None else indices[0]

    def find(self, name: str, address: int) -> int | None:
        """The image that holds ``address`` (Avma): of that name, where several do."""
        only = self._only.get(name)
        if only is not None and only[0] <= address < only[1]:
            return only[2]
        named = self._by_name.get(name)
        if named is None:
            named = self._by_name[name] = self._ordered(self._names.get(name, ()))
        for ordered in (named, self._all):
            place = bisect_right(ordered.starts, address)
            for candidate in reversed(ordered.indices[max(0, place - _OVERLAPPING) : place]):
                if self._images[candidate].holds(address):
                    return candidate
        # An image without an end, or with a wrong one: its name and start must do.
        place = bisect_right(named.starts, address)
        if place and self._images[named.indices[place - 1]].size is None:
            return named.indices[place - 1]
        return None

    def _ordered(self, indices: Iterable[int]) -> _Ordered:
        placed = [
            (start, -index)
            for index in indices
            if (start := self._images[index].load_address) is not None
        ]
        placed.sort()
        return _Ordered([start for start, _ in placed], [-index for _, index in placed])
