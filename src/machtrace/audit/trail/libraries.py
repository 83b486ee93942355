"""Whose code an address has: libraries, the functions of each image, what system functions do.

Static libraries have no image of their own, so that an image's functions are listed with their
libraries: from a link map, debug information, Swift modules or class prefixes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from machtrace.audit.trail.calls import Image, ImageRole
from machtrace.audit.trail.stacks import NO_IMAGE
from machtrace.errors import ArgumentError
from machtrace.frozen import dataclass


class Evidence(IntEnum):
    """The basis of an answer, the strongest first."""

    IMAGE = 1
    """The library is an image of its own."""
    LINK_MAP = 2
    DEBUG_INFORMATION = 3
    """The path of the DWARF unit or of the object file."""
    SWIFT_MODULE = 4
    CLASS_PREFIX = 5
    NEIGHBOURS = 6
    """Functions of one library on both sides."""
    NONE = 7


class CodeRole(IntEnum):
    """A function's part between the frames around it."""

    ORDINARY = 0
    FORWARDER = 1
    """It calls what its caller names: ``performSelector:``, ``valueForKey:``, ``NSInvocation``."""
    DISPATCHER = 2
    """It runs what others registered: run loops, queues, threads, notifications."""
    UNNAMED = 3
    """A system function whose name is unknown, so that it may be any of these."""


_FORWARDER = re.compile(
    r"""
    [-+]\[\w+(?:\(\w+\))?\ (?:performSelector|makeObjectsPerformSelector)[\w:]*\]
    | [-+]\[\w+(?:\(\w+\))?\ (?:valueForKey|valueForKeyPath|valueForUndefinedKey)[\w:]*\]
    | -\[\w+(?:\(\w+\))?\ setValue:forKey(?:Path)?:\]
    | -\[NSInvocation\ \w+:?\]
    | _NSGetUsingKeyValueGetter | _NSSetUsingKeyValueSetter | _NSGet\w+ValueWithMethod
    | _*invoking_*(?:\.\w+)? | _*forwarding_*(?:\.\w+)? | _*CF_forwarding_prep_\w+
    | _*objc_msgForward\w* | _*objc_msgSend\w* | _*objc_retainAutorelease\w*
    """,
    re.VERBOSE,
)
_DISPATCHER = re.compile(
    r"""
    _*CFRUNLOOP_IS_\w+ | _*CFRunLoop(?:Run|DoBlocks|DoSource|DoTimer|DoObservers)\w*
    | -\[NSRunLoop(?:\(\w+\))?\ \w*[rR]un\w*:?[\w:]*\] | _*NSFireDelayedPerform | _*NSFireTimer
    | _*NSThreadPerformPerform | _*NSThread__start__
    | _*dispatch_(?:call_block_and_release|client_callout\w*|block_async_invoke\w*|main|source_\w+
        |lane_\w+|root_queue_\w+|worker_thread\w*|once_callout|apply_\w+|workloop_\w+|mach_\w+)
    | _*(?:pthread_(?:start|body|wqthread)|thread_start|start_wqthread|start_thread|clone3?)
    | _*(?:UI|NS|WK)ApplicationMain | GSEventRun\w* | UIApplicationMain
    | -\[(?:UI|NS)(?:Application|Window)\ sendEvent:\] | -\[UIApplication\ _run\]
    | _*CFXNotificationPost | _*CFNOTIFICATIONCENTER_IS_\w+
    | -\[NSNotificationCenter\ postNotification[\w:]*\]
    | _*swift_(?:job_run\w*|task_\w+) | completeTask\w* | _*libc_start\w+ | start
    | -\[NSBlockOperation\ main\] | -\[NSOperation\ start\] | _*NSOPERATION\w+
    """,
    re.VERBOSE,
)


def role_of(name: str) -> CodeRole:
    """Return what a system function does, by its name; an empty name is unknown."""
    if not name:
        return CodeRole.UNNAMED
    if _FORWARDER.fullmatch(name):
        return CodeRole.FORWARDER
    return CodeRole.DISPATCHER if _DISPATCHER.fullmatch(name) else CodeRole.ORDINARY


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """Code of one origin."""

    name: str
    role: ImageRole = ImageRole.LIBRARY
    passes_through: bool = False
    """Whether it only wraps system functions for its callers: networking, storage, bridges."""
    runs_callbacks: bool = False
    """Whether it calls others' functions as a queue does, so that it is not their cause."""


class Function(NamedTuple):
    """A function, in every process that has its image."""

    image: str
    """:attr:`machtrace.audit.trail.calls.Image.key`."""
    offset: int
    """The first instruction's."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CodeRanges:
    """The code of one image, in ranges that begin at ``starts`` and end where the next begins."""

    starts: npt.NDArray[np.uint64]
    """Ascending."""
    library: npt.NDArray[np.int32]
    """Indices of libraries; -1 if it is unknown."""
    evidence: npt.NDArray[np.uint8]
    role: npt.NDArray[np.uint8]
    """:class:`CodeRole`."""
    within: npt.NDArray[np.int32]
    """The library of the function that the code was inlined into; otherwise -1."""


def code_ranges(
    starts: Sequence[int],
    library: Sequence[int],
    *,
    evidence: Evidence | Sequence[int] = Evidence.LINK_MAP,
    names: Sequence[str] | None = None,
    within: Sequence[int] | None = None,
) -> CodeRanges:
    """Return an image's ranges, sorted.

    Args:
        starts: the offset of each range.
        library: the library of each, or -1.
        evidence: how each library is known.
        names: the functions' names, for the roles of system functions.
        within: see :class:`CodeRanges`.

    Raises:
        ArgumentError: the sequences differ in length.
    """
    size = len(starts)
    columns = [library, names, within, None if isinstance(evidence, Evidence) else evidence]
    if any(column is not None and len(column) != size for column in columns):
        raise ArgumentError("ranges of code: columns of different lengths")
    order = np.argsort(np.asarray(starts, np.uint64), kind="stable")
    roles = [CodeRole.ORDINARY] * size if names is None else [role_of(name) for name in names]
    proofs = [evidence] * size if isinstance(evidence, Evidence) else evidence
    outer = [-1] * size if within is None else within
    return CodeRanges(
        starts=np.asarray(starts, np.uint64)[order],
        library=np.asarray(library, np.int32)[order],
        evidence=np.asarray(proofs, np.uint8)[order],
        role=np.asarray(roles, np.uint8)[order],
        within=np.asarray(outer, np.int32)[order],
    )


def with_neighbours(ranges: CodeRanges) -> CodeRanges:
    """Return the ranges with unknown libraries filled where both neighbours have the same one.

    Linkers place the functions of an archive consecutively, so that a run of unknown functions
    between two of one library belongs to it.
    """
    known = ranges.library >= 0
    numbers = np.arange(len(known))
    before = np.maximum.accumulate(np.where(known, numbers, -1))
    after = np.minimum.accumulate(np.where(known, numbers, len(known))[::-1])[::-1]
    inside = ~known & (before >= 0) & (after < len(known))
    left = ranges.library[np.where(inside, before, 0)]
    right = ranges.library[np.where(inside, after, 0)]
    filled = inside & (left == right)
    return CodeRanges(
        starts=ranges.starts,
        library=np.where(filled, left, ranges.library),
        evidence=np.where(filled, np.uint8(Evidence.NEIGHBOURS), ranges.evidence),
        role=ranges.role,
        within=ranges.within,
    )


class Located(NamedTuple):
    """Code addresses' libraries, as columns."""

    library: npt.NDArray[np.int32]
    evidence: npt.NDArray[np.uint8]
    role: npt.NDArray[np.uint8]
    within: npt.NDArray[np.int32]
    function: npt.NDArray[np.int64]
    """The start of the range; -1 if the image's functions are not listed."""


class CodeMap:
    """The libraries of all images.

    An image without ranges is one library: that of its name, or ``of_image``'s.
    """

    def __init__(
        self,
        images: Sequence[Image],
        libraries: Iterable[Library] = (),
        *,
        ranges: Mapping[str, CodeRanges] | None = None,
        of_image: Mapping[str, int] | None = None,
    ) -> None:
        """Create a map.

        Args:
            images: those of a trail.
            libraries: what ``ranges`` and ``of_image`` refer to; images add theirs.
            ranges: the functions of images, by key.
            of_image: the library of images, by key.
        """
        self.images = tuple(images)
        listed = list(libraries)
        numbers = {library.name: number for number, library in enumerate(listed)}
        self._ranges = dict(ranges or {})
        self._of_image = np.full(len(self.images), -1, np.int32)
        for index, image in enumerate(self.images):
            number = (of_image or {}).get(image.key, numbers.get(image.name))
            if number is None:
                number = numbers[image.name] = len(listed)
                listed.append(Library(name=image.name, role=image.role))
            self._of_image[index] = number
        self.libraries = tuple(listed)
        self._indices = {image.key: index for index, image in enumerate(self.images)}
        for key, each in self._ranges.items():
            if len(each.library) and max(each.library.max(), each.within.max()) >= len(listed):
                raise ArgumentError(f"ranges of code: {key} has a library that is not listed")

    def locate(self, image: npt.NDArray[np.int32], address: npt.NDArray[np.uint64]) -> Located:
        """Return the libraries of return addresses: the call is before each."""
        return self._locate(image, np.where(address > 0, address - np.uint64(1), address))

    def library_of(self, function: Function) -> int:
        """Return the library of a function; -1 if it is unknown."""
        index = self._indices.get(function.image)
        if index is None:
            return -1
        where = np.array([index], np.int32), np.array([function.offset], np.uint64)
        return int(self._locate(*where).library[0])

    def index_of(self, key: str) -> int:
        """Return the index of an image; :data:`NO_IMAGE` if it is not listed."""
        return self._indices.get(key, NO_IMAGE)

    def _locate(self, image: npt.NDArray[np.int32], address: npt.NDArray[np.uint64]) -> Located:
        size = len(image)
        inside = image >= 0
        library = np.full(size, -1, np.int32)
        library[inside] = self._of_image[image[inside]]
        evidence = np.where(inside, np.uint8(Evidence.IMAGE), np.uint8(Evidence.NONE))
        role = np.zeros(size, np.uint8)
        within = np.full(size, -1, np.int32)
        function = np.full(size, -1, np.int64)
        order = np.argsort(image, kind="stable")
        bounds = np.searchsorted(image[order], np.arange(len(self.images) + 1))
        for index in range(len(self.images)):
            rows = order[bounds[index] : bounds[index + 1]]
            if not len(rows):
                continue
            ranges = self._ranges.get(self.images[index].key)
            is_system = self.images[index].role is ImageRole.SYSTEM
            if ranges is None or not len(ranges.starts):
                role[rows] = CodeRole.UNNAMED if is_system else CodeRole.ORDINARY
                continue
            at = np.searchsorted(ranges.starts, address[rows], side="right") - 1
            outside = at < 0
            role[rows] = np.where(outside, CodeRole.UNNAMED * is_system, ranges.role[at])
            function[rows] = np.where(outside, -1, ranges.starts[at].astype(np.int64))
            if not is_system:  # the image's name is what is reported of the system
                library[rows] = np.where(outside, -1, ranges.library[at])
                within[rows] = np.where(outside, -1, ranges.within[at])
                proof = np.where(outside, np.uint8(Evidence.NONE), ranges.evidence[at])
                evidence[rows] = np.where(library[rows] < 0, np.uint8(Evidence.NONE), proof)
        return Located(library, evidence, role, within, function)
