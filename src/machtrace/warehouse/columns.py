"""Stacks that are columns already, such as a profiler's, to the rows of a segment.

Nothing is done in Python for a stack or a frame: a million stacks take about a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from machtrace.errors import ArgumentError
from machtrace.frozen import dataclass
from machtrace.model.report import ReportedImage
from machtrace.warehouse.schema import (
    FRAMES,
    IMAGES,
    NAMES,
    OCCURRENCES,
    REPORTS,
    FrameAdjustment,
    FrameKind,
    image_identity,
)
from machtrace.warehouse.segment import Segment, merged_frames, merged_images
from machtrace.warehouse.stack_tree import join_stacks

Column = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StackColumns:
    """Stacks of one source, as columns."""

    images: Sequence[ReportedImage]
    frame_image: Column
    """By frame: the index of its image; -1: none."""
    frame_offset: Column
    """By frame: an ImageOffset; an AVMA without an image."""
    frames: Column
    """The frames of all stacks, each from the outermost inwards."""
    starts: Column
    """The first row in ``frames`` of each stack, and the end of the last."""
    weight: Column
    """By stack."""
    time: Column
    """By stack: ns since 1970."""
    adjustment: FrameAdjustment = FrameAdjustment.RETURN
    """That of all frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """The report that stacks are of."""

    key: bytes
    """16 bytes that identify it; columns with the key of a stored report are not stored."""
    received: int
    """In ns since 1970."""
    kind: str = "profile"
    app: str = ""
    version: str = ""
    build: str = ""
    os: str = ""
    model: str = ""
    device: str = ""
    unit: str = "samples"
    """The noun for what weights count."""


def segment_of(columns: StackColumns, facts: SourceFacts) -> Segment:
    """Return the rows of stacks.

    Raises:
        ArgumentError: columns of different lengths, or a frame that is not listed.
    """
    _check(columns)
    starts = np.asarray(columns.starts, np.int64)
    is_used = np.zeros(len(columns.frame_image), np.bool_)
    is_used[columns.frames] = True
    image = np.asarray(columns.frame_image, np.int32)[is_used]
    listed, row = np.unique(image[image >= 0], return_inverse=True)
    image[image >= 0] = row
    used_images = [columns.images[each] for each in listed.tolist()]
    images, (image_number,) = merged_images([_images(used_images)])
    table = _frames(image, np.asarray(columns.frame_offset)[is_used], columns.adjustment)
    frames, (used_number,) = merged_frames([table], [image_number])
    frame_number = np.zeros(len(is_used), np.uint32)
    frame_number[is_used] = used_number
    joined = join_stacks(frame_number[columns.frames], starts)
    ends = starts[1:] - 1
    node = np.where(ends >= starts[:-1], joined.node[np.maximum(ends, 0)], 0)
    size = len(node)
    texts = {name: getattr(facts, name) for name in ("kind", "app", "version", "build", "os")}
    texts |= {"model": facts.model, "device": facts.device, "format": "columns"}
    report = {"key": facts.key, "received": facts.received, "exception": "", **texts}
    occurrences = {
        "report": pa.array(np.zeros(size, np.uint32)),
        "node": pa.array(node.astype(np.int32)),
        "weight": pa.array(np.asarray(columns.weight, np.int64)),
        "time": pa.array(np.asarray(columns.time, np.int64)),
        "thread": _same(-1, size, pa.int32()),
        "role": _word("sample", size),
        "unit": _word(facts.unit, size),
        "name": _word("", size),
    }
    return Segment(
        reports=pa.Table.from_pylist([report], schema=REPORTS),
        images=images,
        frames=frames,
        tree=joined.tree,
        occurrences=pa.table(occurrences, schema=OCCURRENCES),
        names=NAMES.empty_table(),
    )


def _images(images: Sequence[ReportedImage]) -> pa.Table:
    rows = [
        {
            "identity": image_identity(image),
            "uuid": "" if image.uuid is None else image.uuid.hex,
            "name": image.name or image.path.rpartition("/")[2],
            "path": image.path,
            "arch": image.arch or "",
            "owner": "unknown",
        }
        for image in images
    ]
    return pa.Table.from_pylist(rows, schema=IMAGES)


def _frames(image: Column, offset: Column, adjustment: FrameAdjustment) -> pa.Table:
    kind = np.where(image >= 0, FrameKind.IMAGE, FrameKind.ADDRESS).astype(np.uint8)
    table = {
        "image": pa.array(image),
        "offset": pa.array(offset.astype(np.uint64)),
        "adjustment": _same(int(adjustment), len(kind), pa.uint8()),
        "kind": pa.array(kind),
        "text": _same("", len(kind), pa.string()),
    }
    return pa.table(table, schema=FRAMES)


def _check(columns: StackColumns) -> None:
    starts = np.asarray(columns.starts)
    if len(starts) == 0 or starts[0] != 0 or starts[-1] != len(columns.frames):
        raise ArgumentError("stacks: starts that do not end where the frames do")
    if (np.diff(starts) < 0).any():
        raise ArgumentError("stacks: starts that are not ascending")
    if not len(starts) - 1 == len(columns.weight) == len(columns.time):
        raise ArgumentError("stacks: columns of different lengths")
    if len(columns.frame_image) != len(columns.frame_offset):
        raise ArgumentError("frames: columns of different lengths")
    image = np.asarray(columns.frame_image)
    if len(image) and not -1 <= image.min() <= image.max() < len(columns.images):
        raise ArgumentError("frames: an image that is not listed")
    frames = np.asarray(columns.frames)
    if len(frames) and not 0 <= frames.min() <= frames.max() < len(image):
        raise ArgumentError("stacks: a frame that is not listed")


def _same(value: object, size: int, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), size)


def _word(word: str, size: int) -> pa.Array:
    indices = pa.array(np.zeros(size, np.int32))
    return pa.DictionaryArray.from_arrays(indices, pa.array([word]))
