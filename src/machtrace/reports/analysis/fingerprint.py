"""What tells one problem from another: the app's own frames in a stack, whatever the build.

The hash is of the names that are left when numbers, clones and generics are taken from them, with
the names of their images; recursion counts once. Addresses are in it only where there is no name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from typing import NamedTuple

from machtrace.reports.analysis.frame_owner import NOWHERE, FrameOwner, OwnerReason, Owners, Ownership
from machtrace.reports.analysis.grouping_name import grouping_name, is_name
from machtrace.reports.analysis.recursion import folds
from machtrace.model.report import ReportedTask
from machtrace.model.reported_frame import ReportedFrame

MOST_FRAMES = 16
"""Of a fingerprint: those innermost."""
_LEAST_REPEATS = 2


class FingerprintBasis(Enum):
    """What a fingerprint is of."""

    APP_FRAMES = "the app's frames"
    OTHER_FRAMES = "all frames, since none is known to be the app's"
    NOTHING = "nothing: there are no frames"


class FingerprintFrame(NamedTuple):
    """A frame that counted."""

    place: int
    """In the stack, from 0, innermost first."""
    image: str
    name: str
    """As it counted: see :func:`~machtrace.reports.analysis.grouping_name.grouping_name`; where there is no
    name, the offset in the image."""
    is_named: bool
    """Whether it does: an offset is another one in the next build."""
    reason: OwnerReason
    """Why the frame is the app's, or is not."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A stack's."""

    hash: str
    """16 hexadecimal digits."""
    basis: FingerprintBasis
    frames: tuple[FingerprintFrame, ...]
    """Those that it is of, innermost first."""

    @property
    def is_build_sensitive(self) -> bool:
        """Whether another build of the same source would have another one: names are missing."""
        return not all(frame.is_named for frame in self.frames)

    @property
    def title(self) -> str:
        """The innermost frame that counted, as people read it."""
        if not self.frames:
            return "no frames"
        first = self.frames[0]
        return f"{first.name} ({first.image})" if first.image else first.name


def owners_of(task: ReportedTask) -> tuple[Ownership, ...]:
    """Of each of the task's images whose it is."""
    process = task.process
    name = process.name or (process.identifier or "").rpartition(".")[2]
    owners = Owners(process.path or "", name)
    return tuple(owners.owner(image.path, image.name) for image in task.images)


def fingerprint(
    frames: Sequence[ReportedFrame], task: ReportedTask, owners: Sequence[Ownership] | None = None
) -> Fingerprint:
    """The fingerprint of a stack.

    Args:
        frames: innermost first.
        task: whose they are.
        owners: of its images, if they are known already: see :func:`owners_of`.
    """
    owners = owners_of(task) if owners is None else owners
    whose = [NOWHERE if frame.image is None else owners[frame.image] for frame in frames]
    places = [at for at, one in enumerate(whose) if one.owner is FrameOwner.APP]
    basis = FingerprintBasis.APP_FRAMES
    if not places:
        places = list(range(len(frames)))
        basis = FingerprintBasis.OTHER_FRAMES if places else FingerprintBasis.NOTHING
    counted = [_counted(at, frames[at], whose[at], task) for at in places]
    kept = _without_recursion(counted)[:MOST_FRAMES]
    digest = blake2b(basis.name.encode(), digest_size=8)
    for one in kept:
        digest.update(f"\0{one.image}\1{one.name}".encode("utf-8", "surrogatepass"))
    return Fingerprint(digest.hexdigest(), basis, tuple(kept))


def _counted(
    place: int, frame: ReportedFrame, whose: Ownership, task: ReportedTask
) -> FingerprintFrame:
    image = None if frame.image is None else task.images[frame.image]
    image_name = "" if image is None else image.name or image.path.rpartition("/")[2]
    if frame.symbol is not None and is_name(frame.symbol.name):
        name = grouping_name(frame.symbol.name)
        return FingerprintFrame(place, image_name, name, True, whose.reason)  # noqa: FBT003 - a row
    where = frame.offset if frame.offset is not None else frame.address
    name = "???" if where is None else f"{where:#x}"
    return FingerprintFrame(place, image_name, name, False, whose.reason)  # noqa: FBT003 - a row


def _without_recursion(frames: list[FingerprintFrame]) -> list[FingerprintFrame]:
    same = [(one.image, one.name) for one in frames]
    kept: list[FingerprintFrame] = []
    for fold in folds(same, least_times=_LEAST_REPEATS):
        kept += frames[fold.first : fold.first + fold.period]
    return kept
