"""Names of a segment's frames, from symbols that may arrive after the stacks.

A name table has the calls at each frame, the innermost inlined one first. It replaces the one
before, so that the frames themselves never change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from machtrace.model.report import NameSource, ReportedImage
from machtrace.reports.images import identifier
from machtrace.symbolizer.report_names import Calls, ReportNames
from machtrace.warehouse.schema import NAMES, FrameAdjustment, FrameKind
from machtrace.warehouse.segment import Segment, numbers

_UUID_DIGITS = 32


class Renamed(NamedTuple):
    """A segment's new names."""

    names: pa.Table
    images: int
    """Images whose files were there."""
    frames: int
    """Frames that have a name by them."""


class WantedImage(NamedTuple):
    """An image of stored frames that have no names from its symbols."""

    uuid: str
    """UUID or GNU build id, in hexadecimal."""
    name: str
    arch: str
    frames: int


def renamed(
    segment: Segment,
    names: ReportNames,
    only: Collection[str] | None = None,
    on_image: Callable[[str], object] = lambda _: None,
) -> Renamed:
    """Return the names of a segment's frames, with those that files state.

    Args:
        segment: the frames, with their present names.
        names: the files.
        only: UUIDs or build ids, in hexadecimal, of the images to look up; None: all.
        on_image: is called with the name of each image that is looked up.
    """
    rows = {name: numbers(segment.frames, name) for name in ("image", "offset")}
    is_after_call = numbers(segment.frames, "adjustment") == FrameAdjustment.RETURN
    lookup = rows["offset"] - (is_after_call & (rows["offset"] > 0))
    images, replaced = 0, []
    columns: list[list[Any]] = [[] for _ in NAMES]
    for number, image in enumerate(segment.images.to_pylist()):
        if not image["uuid"] or (only is not None and image["uuid"] not in only):
            continue
        frames = np.flatnonzero(rows["image"] == number)
        on_image(image["name"])
        calls = names.find(_reported(image), np.unique(lookup[frames]).tolist())
        if not any(calls.values()):
            continue
        images += 1
        for frame, offset in zip(frames.tolist(), lookup[frames].tolist(), strict=True):
            if calls.get(offset):
                replaced.append(frame)
                _append(columns, frame, calls[offset])
    if not replaced:
        return Renamed(segment.names, images, 0)
    is_other = ~np.isin(numbers(segment.names, "frame"), np.array(replaced))
    arrays = [pa.array(values, field.type) for values, field in zip(columns, NAMES, strict=True)]
    every = pa.concat_tables(
        [segment.names.filter(pa.array(is_other)), pa.table(arrays, schema=NAMES)]
    ).unify_dictionaries()
    order = np.lexsort((numbers(every, "place"), numbers(every, "frame")))
    return Renamed(every.take(order).combine_chunks(), images, len(replaced))


def wanted_images(segment: Segment) -> list[WantedImage]:
    """Return the images whose symbols would name more frames."""
    image = numbers(segment.frames, "image")
    is_named = np.zeros(segment.frames.num_rows, np.bool_)
    sources = np.array(segment.names["source"].to_pylist(), object)
    by_symbols = numbers(segment.names, "frame")[sources != NameSource.REPORT.value]
    is_named[by_symbols] = True
    missing = (numbers(segment.frames, "kind") == FrameKind.IMAGE) & ~is_named
    counts = np.bincount(image[missing], minlength=segment.images.num_rows)
    return [
        WantedImage(row["uuid"], row["name"], row["arch"], count)
        for row, count in zip(segment.images.to_pylist(), counts.tolist(), strict=True)
        if count and row["uuid"]
    ]


def all_wanted(segments: Iterable[Segment]) -> list[WantedImage]:
    """Return the images of all segments whose symbols would name more frames, most frames first."""
    wanted: dict[str, WantedImage] = {}
    for segment in segments:
        for image in wanted_images(segment):
            known = wanted.get(image.uuid)
            before = 0 if known is None else known.frames
            wanted[image.uuid] = image._replace(frames=image.frames + before)
    return sorted(wanted.values(), key=lambda each: (-each.frames, each.name, each.uuid))


def _append(columns: list[list[Any]], frame: int, calls: Calls) -> None:
    for place, call in enumerate(calls):
        location = call.location
        values = (
            frame,
            place,
            call.name,
            "" if location is None else location.path,
            0 if location is None else location.line or 0,
            call.source.value,
        )
        for column, value in zip(columns, values, strict=True):
            column.append(value)


def _reported(image: dict[str, str]) -> ReportedImage:
    uuid = identifier(image["uuid"], is_macho=len(image["uuid"]) == _UUID_DIGITS)
    return ReportedImage(
        uuid=uuid, name=image["name"], path=image["path"], arch=image["arch"] or None
    )
