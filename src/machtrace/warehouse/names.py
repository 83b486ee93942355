"""Names of a segment's frames, from symbols that may arrive after the stacks.

A name table has the calls at each frame, the innermost inlined one first. It replaces the one
before, so that the frames themselves never change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from machtrace.model.report import NameSource, ReportedImage
from machtrace.reports.images import identifier
from machtrace.symbolizer.name_columns import NameColumns
from machtrace.symbolizer.report_names import ReportNames
from machtrace.warehouse.schema import NAMES, FrameAdjustment, FrameKind
from machtrace.warehouse.segment import FrameTables, numbers

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
    segment: FrameTables,
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
    image_of, offset = (numbers(segment.frames, name) for name in ("image", "offset"))
    is_after_call = numbers(segment.frames, "adjustment") == FrameAdjustment.RETURN
    lookup = offset - (is_after_call & (offset > 0))
    by_image = np.argsort(image_of, kind="stable")
    bounds = np.searchsorted(image_of[by_image], np.arange(segment.images.num_rows + 1))
    images, tables = 0, []
    for number, image in enumerate(segment.images.to_pylist()):
        if not image["uuid"] or (only is not None and image["uuid"] not in only):
            continue
        on_image(image["name"])
        frames = by_image[bounds[number] : bounds[number + 1]]
        columns = names.columns(reported_image(image), lookup[frames])
        if columns is not None and len(columns.function):
            images += 1
            tables.append(_table(frames, columns))
    if not tables:
        return Renamed(segment.names, images, 0)
    is_replaced = np.zeros(segment.frames.num_rows, np.bool_)
    for table in tables:
        is_replaced[numbers(table, "frame")] = True
    others = segment.names.filter(pa.array(~is_replaced[numbers(segment.names, "frame")]))
    every = pa.concat_tables([others, *tables]).unify_dictionaries().combine_chunks()
    count = int(np.count_nonzero(is_replaced))
    if not others.num_rows:
        return Renamed(every, images, count)
    order = np.argsort(numbers(every, "frame"), kind="stable")
    return Renamed(every.take(order), images, count)


def _table(frames: npt.NDArray[np.int64], columns: NameColumns) -> pa.Table:
    """Return names of frames as rows."""
    sizes = np.diff(columns.first)
    arrays = {
        "frame": np.repeat(frames, sizes),
        "place": np.arange(len(columns.function)) - np.repeat(columns.first[:-1], sizes),
        "line": columns.line,
    }
    texts = {
        "function": (columns.function, columns.functions),
        "file": (columns.file, columns.files),
        "source": (columns.source, columns.sources),
    }
    return pa.table(
        [
            pa.array(arrays[field.name], field.type)
            if field.name in arrays
            else _dictionary(*texts[field.name])
            for field in NAMES
        ],
        schema=NAMES,
    )


def _dictionary(rows: npt.NDArray[np.int64], texts: list[str]) -> pa.Array:
    """Return texts, of which several may be equal, by rows of a list."""
    distinct = pa.array(texts, pa.string()).dictionary_encode()
    return pa.DictionaryArray.from_arrays(
        distinct.indices.take(pa.array(rows)), distinct.dictionary
    )


def wanted_images(segment: FrameTables) -> list[WantedImage]:
    """Return the images whose symbols would name more frames."""
    image = numbers(segment.frames, "image")
    is_named = np.zeros(segment.frames.num_rows, np.bool_)
    by_symbols = pc.not_equal(segment.names["source"].cast(pa.string()), NameSource.REPORT.value)
    is_named[numbers(segment.names.filter(by_symbols), "frame")] = True
    missing = (numbers(segment.frames, "kind") == FrameKind.IMAGE) & ~is_named
    counts = np.bincount(image[missing], minlength=segment.images.num_rows)
    return [
        WantedImage(row["uuid"], row["name"], row["arch"], count)
        for row, count in zip(segment.images.to_pylist(), counts.tolist(), strict=True)
        if count and row["uuid"]
    ]


def all_wanted(segments: Iterable[FrameTables]) -> list[WantedImage]:
    """Return the images of all segments whose symbols would name more frames, most frames first."""
    wanted: dict[str, WantedImage] = {}
    for segment in segments:
        for image in wanted_images(segment):
            known = wanted.get(image.uuid)
            before = 0 if known is None else known.frames
            wanted[image.uuid] = image._replace(frames=image.frames + before)
    return sorted(wanted.values(), key=lambda each: (-each.frames, each.name, each.uuid))


def reported_image(image: dict[str, str]) -> ReportedImage:
    """Return a row of ``images`` as reports have it."""
    uuid = identifier(image["uuid"], is_macho=len(image["uuid"]) == _UUID_DIGITS)
    return ReportedImage(
        uuid=uuid, name=image["name"], path=image["path"], arch=image["arch"] or None
    )
