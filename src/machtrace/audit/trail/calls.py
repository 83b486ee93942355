"""Recorded calls as columns, with the images, stacks and processes that they refer to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum, IntEnum, IntFlag
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from machtrace.audit.trail.stacks import Mask, StackTree
from machtrace.errors import ArgumentError
from machtrace.frozen import dataclass

Times: TypeAlias = npt.NDArray[np.int64]
_SUFFIX = re.compile(r"(?:\.so(?:\.\d+)*|(?:\.\d+)*\.dylib)\Z")
NO_TIME = int(np.iinfo(np.int64).min)
"""The time of calls that are only counted."""
NONE = -1
"""In columns of indices and of sequence numbers: unknown."""
SECOND = 1_000_000_000


class CallFlag(IntFlag):
    """Facts that a source records with a call."""

    MAIN_THREAD = 1
    OUTER_MISSING = 2
    """Outer frames are missing."""
    INNER_MISSING = 4
    """Inner frames are missing, so that the caller is unknown."""
    NESTED = 8
    """A watched function called: the call is a consequence of another one."""
    BACKGROUND = 16
    FOREGROUND = 32
    """Without it and :attr:`BACKGROUND` the app's state is unknown."""


class Consent(IntEnum):
    """The person's decision when a call was made."""

    UNKNOWN = 0
    BEFORE = 1
    """No decision yet."""
    GRANTED = 2
    REFUSED = 3
    """Refused or withdrawn."""


class ImageRole(Enum):
    """Whose code an image has."""

    APP = "app"
    """The app's own; it may have static libraries, too."""
    LIBRARY = "library"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """One image that frames are in."""

    path: str
    uuid: str = ""
    """UUID or GNU build id, in hexadecimal; empty if it is unknown."""
    role: ImageRole = ImageRole.LIBRARY

    @property
    def key(self) -> str:
        """The identity of the same code in other processes."""
        return self.uuid or self.path

    @property
    def name(self) -> str:
        """The file's name without a version; of a framework, its name."""
        folder, _, name = self.path.rpartition("/")
        if folder.endswith(".framework"):
            name = folder.rpartition("/")[2].removesuffix(".framework")
        return _SUFFIX.sub("", name) or self.path


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One run of one process.

    A call's time is in ns of ``clock``. ``wall_offset`` is added to it for ns since 1970.
    """

    run: str
    """An identifier that no other run has."""
    pid: int = 0
    app: str = ""
    """The bundle identifier."""
    device: str = ""
    build: str = ""
    installation: str = ""
    """The app's data on a device: a decision holds in it. Empty: in this run alone."""
    clock: str = ""
    """The clock of the times, such as a boot of a device. Empty: of this run alone."""
    wall_offset: int = 0
    wall_error: int = SECOND
    """By how much ``wall_offset`` may be wrong, in ns."""
    resolution: int = 1000
    """By how much a time may be wrong, in ns. Calls of one thread are in order all the same."""
    started: int = NO_TIME
    """The first watched time."""
    ended: int = NO_TIME
    from_start: bool = False
    """Whether calls are recorded from the first initialiser on."""
    attached_late: bool = False
    """Whether the process had run before it was observed: what happened then is unknown."""
    is_fresh: bool = False
    """Whether the app's data was new, so that no decision can precede the run."""
    lost: int = 0
    """Calls that the source counts as lost."""


_COLUMNS: Mapping[str, tuple[type[Any], int]] = {
    "time": (np.int64, NO_TIME),
    "process": (np.int32, 0),
    "thread": (np.int64, NONE),
    "rule": (np.int32, 0),
    "stack": (np.int32, 0),
    "flags": (np.uint16, 0),
    "consent": (np.uint8, Consent.UNKNOWN),
    "calls": (np.int64, 1),
    "sequence": (np.int64, NONE),
    "argument": (np.int32, NONE),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calls:
    """Calls, as columns of equal length. Rows of one thread are in the order of the calls."""

    time: Times
    process: npt.NDArray[np.int32]
    thread: npt.NDArray[np.int64]
    """Equal for the calls of a thread, within a process; :data:`NONE` if unknown."""
    rule: npt.NDArray[np.int32]
    stack: npt.NDArray[np.int32]
    flags: npt.NDArray[np.uint16]
    consent: npt.NDArray[np.uint8]
    """As the source recorded it; see :func:`machtrace.audit.trail.consent.classify`."""
    calls: npt.NDArray[np.int64]
    """How many calls a row stands for; they began at ``time`` at the earliest."""
    sequence: npt.NDArray[np.int64]
    """The order of entry in a process, where the source has one; otherwise :data:`NONE`."""
    argument: npt.NDArray[np.int32]
    """The index of the argument's text: a key, a path."""

    def __len__(self) -> int:
        return len(self.time)

    def has(self, flag: CallFlag) -> Mask:
        """Return which rows have a flag."""
        return np.asarray((self.flags & np.uint16(flag)) != 0)

    def select(self, rows: npt.NDArray[Any]) -> Calls:
        """Return some rows, by a mask or by numbers."""
        return Calls(**{name: getattr(self, name)[rows] for name in _COLUMNS})

    def replace(self, **columns: npt.NDArray[Any]) -> Calls:
        """Return the calls with other columns."""
        return Calls(**({name: getattr(self, name) for name in _COLUMNS} | columns))


def calls_of(**columns: npt.ArrayLike) -> Calls:
    """Return calls; columns that are left out have the value for unknown.

    Raises:
        ArgumentError: the columns differ in length.
    """
    unknown = sorted(set(columns) - set(_COLUMNS))
    if unknown:
        raise ArgumentError(f"calls have no column {unknown[0]!r}")
    arrays = {name: np.asarray(values) for name, values in columns.items()}
    sizes = {array.shape for array in arrays.values()}
    if len(sizes) > 1 or any(len(size) != 1 for size in sizes):
        raise ArgumentError("calls: columns of different lengths")
    size = next(iter(sizes), (0,))[0]
    return Calls(
        **{
            name: arrays[name].astype(kind, copy=False)
            if name in arrays
            else np.full(size, default, kind)
            for name, (kind, default) in _COLUMNS.items()
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trail:
    """Recorded calls of one or several processes."""

    images: tuple[Image, ...]
    stacks: StackTree
    rules: tuple[str, ...]
    """By number: what was watched (:attr:`machtrace.audit.rules.Rule.watch`)."""
    processes: tuple[Process, ...]
    calls: Calls
    texts: tuple[str, ...] = ()
    """Arguments."""

    def check(self) -> None:
        """Check a trail of a source that is not trusted.

        Raises:
            ArgumentError: a column refers to what does not exist.
        """
        self.stacks.check(len(self.images))
        sizes = {
            "process": len(self.processes),
            "rule": len(self.rules),
            "stack": len(self.stacks),
            "argument": len(self.texts),
        }
        for name, size in sizes.items():
            values = getattr(self.calls, name)
            lowest = NONE if name == "argument" else 0
            if ((values < lowest) | (values >= size)).any():
                raise ArgumentError(f"calls: a {name} that is not listed")
        if (self.calls.calls < 0).any() or (self.calls.consent > max(Consent)).any():
            raise ArgumentError("calls: a count or a consent state out of range")

    def wall_times(self) -> tuple[Times, Times]:
        """Return the calls' times in ns since 1970, and by how much each may be wrong.

        Calls without a time have :data:`NO_TIME`.
        """
        offsets = np.array([process.wall_offset for process in self.processes] or [0], np.int64)
        errors = np.array(
            [process.wall_error + process.resolution for process in self.processes] or [0], np.int64
        )
        times = self.calls.time + offsets[self.calls.process]
        times[self.calls.time == NO_TIME] = NO_TIME
        return times, errors[self.calls.process]
