"""Names of recorded frames, and whose code they are, by the files of their images.

Names of system functions state whether they call what others registered, or what their caller
names, so that the code of the app's side behind them is the asker or is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from machtrace.audit.trail.calls import Image, ImageRole, Trail
from machtrace.audit.trail.libraries import (
    CodeMap,
    CodeRanges,
    Evidence,
    Library,
    code_ranges,
)
from machtrace.audit.trail.stacks import NO_IMAGE, CodeAddress
from machtrace.model.report import ReportedImage
from machtrace.reports.images import identifier
from machtrace.symbolizer.report_names import Calls, ReportNames

_UUID_BYTES = 16


class FrameName(NamedTuple):
    """The names at a return address."""

    name: str
    """The innermost function's, which may be inlined."""
    function: str
    """The name of the function that holds the code."""
    start: int | None
    """The function's image offset."""


_NO_NAME = FrameName("", "", None)


class RecordedCode:
    """The code that a trail's frames are in."""

    def __init__(self, trail: Trail, names: ReportNames, libraries: Iterable[Library] = ()) -> None:
        """Look up the names of all frames.

        Args:
            trail: the calls.
            names: the files of images.
            libraries: libraries whose names of classes and functions a user states.
        """
        self._trail = trail
        self._claimed = tuple(libraries)
        self._names: list[dict[int, FrameName]] = []
        tree = trail.stacks
        order = np.argsort(tree.image, kind="stable")
        bounds = np.searchsorted(tree.image[order], np.arange(len(trail.images) + 1)).tolist()
        for number, image in enumerate(trail.images):
            offsets = np.unique(tree.offset[order[bounds[number] : bounds[number + 1]]])
            # The call is before its return address.
            before = [max(0, offset - 1) for offset in offsets.tolist()]
            found = names.find(_reported(image), before) if before else {}
            self._names.append({offset + 1: _name(calls) for offset, calls in found.items()})

    def name(self, address: CodeAddress) -> str:
        """Return the name of a frame's function; empty if it is unknown."""
        return self._name_of(address).name

    def distance(self, address: CodeAddress) -> int | None:
        """Return the bytes from the function's start to the return address; None if unknown."""
        start = self._name_of(address).start
        return None if start is None else address.offset - start

    def _name_of(self, address: CodeAddress) -> FrameName:
        if address.image == NO_IMAGE:
            return _NO_NAME
        return self._names[address.image].get(address.offset, _NO_NAME)

    def map(self, ranges: Mapping[str, CodeRanges] | None = None) -> CodeMap:
        """Return whose code the frames are.

        Args:
            ranges: the functions of images, by key, with numbers of the libraries that were
                passed at the start; they precede what names state.
        """
        known = dict(ranges or {})
        for number, image in enumerate(self._trail.images):
            if image.role is ImageRole.SYSTEM and image.key not in known:
                known[image.key] = self._system_ranges(number)
        return CodeMap(self._trail.images, self._claimed, ranges=known)

    def _system_ranges(self, number: int) -> CodeRanges:
        starts: dict[int, str] = {}
        for offset, frame in self._names[number].items():
            start = offset - 1 if frame.start is None else frame.start
            starts[start] = frame.function
        return code_ranges(
            list(starts),
            [-1] * len(starts),
            evidence=Evidence.IMAGE,
            names=list(starts.values()),
        )


def _reported(image: Image) -> ReportedImage:
    is_macho = len(image.uuid) == 2 * _UUID_BYTES
    return ReportedImage(
        uuid=identifier(image.uuid, is_macho=is_macho) if image.uuid else None,
        name=image.path.rpartition("/")[2],
        path=image.path,
    )


def _name(calls: Calls) -> FrameName:
    if not calls:
        return _NO_NAME
    return FrameName(calls[0].name, calls[-1].name, calls[-1].start)
