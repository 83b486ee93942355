"""Naming: the distinct offsets of stored frames by image, and the calls at each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from machtrace.symbolizer.report_names import ReportNames
from machtrace.warehouse.names import reported_image
from machtrace.warehouse.schema import IDENTITY_SIZE, FrameAdjustment, FrameKind
from machtrace.warehouse.segment import Segment, numbers

OFFSETS = pa.schema(
    [
        ("identity", pa.binary(IDENTITY_SIZE)),
        ("uuid", pa.string()),
        ("name", pa.string()),
        ("path", pa.string()),
        ("arch", pa.string()),
        ("offsets", pa.list_(pa.uint64())),
    ]
)
"""A row for each image with an identifier. Offsets ascend; those after calls are in the calls."""
CALLS = pa.schema(
    [
        ("uuid", pa.string()),
        ("image", pa.string()),
        ("offset", pa.uint64()),
        ("place", pa.uint16()),  # 0: the innermost inlined call
        ("function", pa.string()),
        ("file", pa.string()),
        ("line", pa.int32()),  # 0: unknown
        ("source", pa.string()),
    ]
)
_FACTS = ("identity", "uuid", "name", "path", "arch")


def offsets_of(segment: Segment) -> pa.Table:
    """Return the offsets of a segment's frames as :data:`OFFSETS`."""
    frames = segment.frames
    image, offset = numbers(frames, "image"), numbers(frames, "offset")
    is_after_call = numbers(frames, "adjustment") == FrameAdjustment.RETURN
    lookup = offset - (is_after_call & (offset > 0))
    is_inside = numbers(frames, "kind") == FrameKind.IMAGE
    rows = [
        {name: row[name] for name in _FACTS}
        | {"offsets": np.unique(lookup[is_inside & (image == number)])}
        for number, row in enumerate(segment.images.to_pylist())
        if row["uuid"]
    ]
    return pa.Table.from_pylist(rows, OFFSETS)


def merged_offsets(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the offsets of all tables; of images that differ in other facts, the least ones."""
    facts: dict[bytes, tuple[Any, ...]] = {}
    offsets: dict[bytes, list[Any]] = {}
    for table in tables:
        columns = [table[name].to_pylist() for name in _FACTS]
        lists = table["offsets"].combine_chunks()
        for number, row in enumerate(zip(*columns, strict=True)):
            facts[row[0]] = min(facts.get(row[0], row), row)
            offsets.setdefault(row[0], []).append(lists[number].values.to_numpy())
    rows = [
        dict(zip(_FACTS, facts[key], strict=True))
        | {"offsets": np.unique(np.concatenate(offsets[key]))}
        for key in sorted(facts)
    ]
    return pa.Table.from_pylist(rows, OFFSETS)


def calls_at(images: pa.Table, names: ReportNames) -> pa.Table:
    """Return the calls at offsets, as far as files have names, as :data:`CALLS`.

    Args:
        images: rows of :data:`OFFSETS`.
        names: the files.
    """
    columns: list[list[Any]] = [[] for _ in CALLS]
    for row in images.to_pylist():
        named = names.find(reported_image(row), row["offsets"])
        for offset, calls in sorted(named.items()):
            for place, call in enumerate(calls):
                location = call.location
                values = (
                    row["uuid"],
                    row["name"],
                    offset,
                    place,
                    call.name,
                    "" if location is None else location.path,
                    0 if location is None else location.line or 0,
                    call.source.value,
                )
                for column, value in zip(columns, values, strict=True):
                    column.append(value)
    return pa.table(
        [pa.array(each, field.type) for each, field in zip(columns, CALLS, strict=True)],
        schema=CALLS,
    )


def merged_calls(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the calls of different images, in the order of these."""
    every = pa.concat_tables(tables)
    return every.sort_by([(name, "ascending") for name in ("uuid", "image", "offset", "place")])
