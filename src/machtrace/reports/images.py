"""Images of texts that list some, and whose frames name images."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from machtrace.model.address import Avma
from machtrace.model.json_value import JsonValue
from machtrace.model.reported_image import ReportedImage
from machtrace.reports.image_ranges import ImageRanges

LABEL = "label"
"""Where an image keeps what the list calls it, when its file is called otherwise."""


def named_by_path(image: ReportedImage) -> ReportedImage:
    """The image with its file's name, which frames have; lists have bundle identifiers too."""
    name = image.path.rpartition("/")[2]
    if not name or name == image.name:
        return image
    details: dict[str, JsonValue] = {**image.details, LABEL: image.name}
    return replace(image, name=name, details=details)


class ListedImages:
    """The images of a list, and those that only frames name."""

    def __init__(self, images: Iterable[ReportedImage]) -> None:
        self._found = list(images)
        self._ranges = ImageRanges(self._found)
        self._by_name: dict[str, int] = {}
        for index, image in enumerate(self._found):
            self._by_name.setdefault(image.name, index)
            label = image.details.get(LABEL)
            if isinstance(label, str):
                self._by_name.setdefault(label, index)

    def find(self, name: str, address: int | None) -> int:
        """The image that a frame names; where several are called so, the one that holds it.

        One that is not listed is added.
        """
        index = self._by_name.get(name)
        if index is not None and (address is None or self._found[index].holds(address)):
            return index
        by_address = None if address is None else self._ranges.find(address)
        if by_address is not None and (index is None or self._found[by_address].name == name):
            self._by_name.setdefault(name, by_address)
            return by_address
        if index is None:
            index = self._by_name[name] = len(self._found)
            self._found.append(ReportedImage(name=name))
        return index

    def base(self, index: int) -> Avma | None:
        """Where the image is loaded (Avma)."""
        return self._found[index].load_address

    def set_base(self, index: int, base: Avma) -> None:
        """Where an image is that the list does not have, or not with its address."""
        self._found[index] = replace(self._found[index], load_address=base)

    def all(self) -> tuple[ReportedImage, ...]:
        """All of them, those of the list first and in its order."""
        return tuple(self._found)
