"""A segment: reports with their stacks as tables that refer to each other, in a canonical order.

Images are ascending by identity, frames by image, offset, adjustment and text, and stacks are a
tree in pre-order. Reports are ascending by app, build, kind, time and key, occurrences by report.
So a union of segments has the same rows whatever their order, and equal reports are there once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from machtrace.errors import ArgumentError
from machtrace.frozen import dataclass
from machtrace.warehouse.schema import (
    FRAMES,
    IDENTITY_SIZE,
    IMAGES,
    NAMES,
    OCCURRENCES,
    REPORTS,
    STACKS,
    FrameKind,
    text_identity,
)
from machtrace.warehouse.stack_tree import (
    EMPTY_TREE,
    FRAME_KEY_SIZE,
    Nodes,
    StackTree,
    join,
    stack_keys,
)

Column = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True, eq=False)  # without slots, for its cached properties
class Segment:
    """Reports, and the stacks in them. The tables are those of ``warehouse.schema``."""

    reports: pa.Table
    images: pa.Table
    frames: pa.Table
    tree: StackTree
    occurrences: pa.Table
    names: pa.Table
    """The names that the reports themselves have."""

    def __repr__(self) -> str:
        return f"<Segment: {self.reports.num_rows} reports, {self.occurrences.num_rows} stacks>"

    @cached_property
    def frame_keys(self) -> npt.NDArray[np.uint8]:
        """By frame: its key, :data:`~machtrace.warehouse.stack_tree.FRAME_KEY_SIZE` bytes."""
        kind = numbers(self.frames, "kind")
        image = numbers(self.frames, "image")
        keys = np.zeros((len(kind), FRAME_KEY_SIZE), np.uint8)
        inside = kind == FrameKind.IMAGE
        if inside.any():
            keys[inside, :IDENTITY_SIZE] = identities(self.images)[image[inside]]
        texts = self.frames["text"]
        for row in np.flatnonzero(kind == FrameKind.TEXT).tolist():
            identity = text_identity(texts[row].as_py())
            keys[row, :IDENTITY_SIZE] = np.frombuffer(identity, np.uint8)
        offsets = numbers(self.frames, "offset").astype("<u8")
        keys[:, IDENTITY_SIZE : IDENTITY_SIZE + 8] = offsets.view(np.uint8).reshape(-1, 8)
        keys[:, IDENTITY_SIZE + 8] = numbers(self.frames, "adjustment")
        keys[:, IDENTITY_SIZE + 9] = kind
        return keys

    @cached_property
    def stacks(self) -> pa.Table:
        """The nodes that are stacks of occurrences, with their keys."""
        nodes = np.unique(numbers(self.occurrences, "node"))
        keys = stack_keys(self.tree, self.frame_keys, nodes)
        key = pa.Array.from_buffers(
            pa.binary(16), len(nodes), [None, pa.py_buffer(np.ascontiguousarray(keys))]
        )
        return pa.table([pa.array(nodes, pa.int32()), key], schema=STACKS)

    def check(self) -> None:
        """Check tables of a source that is not trusted.

        Raises:
            ArgumentError: a row refers to one that does not exist.
        """
        FrameTables(self.images, self.frames, self.names).check()
        _check_column(self.occurrences, "report", 0, self.reports.num_rows)
        _check_column(self.occurrences, "node", 0, len(self.tree))
        self.tree.check(self.frames.num_rows)


class FrameTables(NamedTuple):
    """A segment's frames, with their images and names."""

    images: pa.Table
    frames: pa.Table
    names: pa.Table

    def check(self) -> None:
        """Check tables of a source that is not trusted.

        Raises:
            ArgumentError: a row refers to one that does not exist.
        """
        _check_column(self.frames, "image", -1, self.images.num_rows)
        _check_column(self.names, "frame", 0, self.frames.num_rows)


def _check_column(table: pa.Table, column: str, least: int, end: int) -> None:
    values = numbers(table, column)
    if len(values) and not least <= int(values.min()) <= int(values.max()) < end:
        raise ArgumentError(f"segment: a {column} that is not listed")


def empty() -> Segment:
    """Return a segment without reports."""
    return Segment(
        reports=REPORTS.empty_table(),
        images=IMAGES.empty_table(),
        frames=FRAMES.empty_table(),
        tree=EMPTY_TREE,
        occurrences=OCCURRENCES.empty_table(),
        names=NAMES.empty_table(),
    )


def numbers(table: pa.Table, column: str) -> Column:
    """Return a column of numbers without nulls."""
    return np.asarray(table[column].to_numpy())


def identities(images: pa.Table) -> npt.NDArray[np.uint8]:
    """Return the identities of images, a row of bytes each."""
    joined = b"".join(images["identity"].to_pylist())
    return np.frombuffer(joined, np.uint8).reshape(-1, IDENTITY_SIZE)


def merge(segments: Iterable[Segment]) -> Segment:
    """Return the union of segments; of reports with equal keys the first one stays.

    The order of segments does not matter, except for such reports.
    """
    parts = list(segments)
    if not parts:
        return empty()
    images, image_numbers = merged_images([part.images for part in parts])
    frames, frame_numbers = merged_frames([part.frames for part in parts], image_numbers)
    trees = [
        (each.tree.depth[1:], mapping[each.tree.frame[1:]])
        for each, mapping in zip(parts, frame_numbers, strict=True)
    ]
    joined = join(*(np.concatenate(columns) for columns in zip(*trees, strict=True)))
    nodes = _split(joined.node, [len(part.tree) - 1 for part in parts])
    reports, report_numbers = _merged_reports([part.reports for part in parts])
    occurrences = [
        _moved_occurrences(each.occurrences, rows, mapping)
        for each, rows, mapping in zip(parts, report_numbers, nodes, strict=True)
    ]
    merged = Segment(
        reports=reports,
        images=images,
        frames=frames,
        tree=joined.tree,
        occurrences=_by_report(_concatenated(occurrences)),
        names=_merged_names([part.names for part in parts], frame_numbers),
    )
    is_repeated = sum(map(len, report_numbers)) != reports.num_rows
    return trimmed(merged) if is_repeated else merged


def without_reports(segment: Segment, keys: set[bytes]) -> Segment:
    """Return the segment without the reports with some keys, and what only they have."""
    stay = np.array([key not in keys for key in segment.reports["key"].to_pylist()], np.bool_)
    number = np.cumsum(stay) - 1
    report = numbers(segment.occurrences, "report")
    occurrences = segment.occurrences.filter(pa.array(stay[report]))
    return trimmed(
        replace(
            segment,
            reports=segment.reports.filter(pa.array(stay)),
            occurrences=_with(occurrences, report=number[numbers(occurrences, "report")]),
        )
    )


def trimmed(segment: Segment) -> Segment:
    """Return the segment without stacks, frames and images that no occurrence has."""
    used = np.zeros(len(segment.tree), np.bool_)
    used[numbers(segment.occurrences, "node")] = True
    totals = segment.tree.totals(used.astype(np.int64))
    rows = np.flatnonzero(totals[1:]) + 1
    frames = np.unique(segment.tree.frame[rows])
    frame_number = np.zeros(segment.frames.num_rows, np.uint32)
    frame_number[frames] = np.arange(len(frames), dtype=np.uint32)
    kept_frames = segment.frames.take(frames)
    image = numbers(kept_frames, "image")
    images = np.unique(image[image >= 0])
    image_number = np.full(segment.images.num_rows + 1, -1, np.int32)
    image_number[images] = np.arange(len(images), dtype=np.int32)
    kept_frames = _with(kept_frames, image=image_number[image])
    tree = StackTree(
        depth=np.concatenate((segment.tree.depth[:1], segment.tree.depth[rows])),
        frame=np.concatenate((segment.tree.frame[:1], frame_number[segment.tree.frame[rows]])),
    )
    node_number = np.zeros(len(segment.tree), np.int32)
    node_number[rows] = np.arange(1, len(rows) + 1, dtype=np.int32)
    names = segment.names.filter(pa.array(np.isin(numbers(segment.names, "frame"), frames)))
    return replace(
        segment,
        images=segment.images.take(images),
        frames=kept_frames,
        tree=tree,
        occurrences=_with(
            segment.occurrences, node=node_number[numbers(segment.occurrences, "node")]
        ),
        names=_with(names, frame=frame_number[numbers(names, "frame")]),
    )


def _with(table: pa.Table, **columns: Column) -> pa.Table:
    """Return the table with other columns of the same types."""
    for name, values in columns.items():
        index = table.schema.get_field_index(name)
        field = table.schema.field(index)
        table = table.set_column(index, field, pa.array(values, field.type))
    return table


def _concatenated(tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()


def _split(column: Nodes, sizes: Iterable[int]) -> list[Nodes]:
    """Return the nodes of each tree, by its own node; a root's is the root."""
    root = np.zeros(1, np.int32)
    bounds = np.cumsum([0, *sizes]).tolist()
    return [np.concatenate((root, column[begin:end])) for begin, end in pairwise(bounds)]


def merged_images(tables: Sequence[pa.Table]) -> tuple[pa.Table, list[npt.NDArray[np.int32]]]:
    """Return the images of tables in canonical order, and by image of each table its number.

    The last number of each is that of no image.
    """
    every = pa.concat_tables(tables).combine_chunks()
    keys = identities(every).view(f"S{IDENTITY_SIZE}").reshape(-1)
    # The S type ignores zeros at the end, which all identities are padded with.
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    numbered = inverse.reshape(-1).astype(np.int32)
    bounds = np.cumsum([0, *(table.num_rows for table in tables)]).tolist()
    mappings = [
        # The last entry is that of -1: no image.
        np.append(numbered[begin:end], np.int32(-1))
        for begin, end in pairwise(bounds)
    ]
    return every.take(first), mappings


def merged_frames(
    tables: Sequence[pa.Table], image_numbers: Sequence[npt.NDArray[np.int32]]
) -> tuple[pa.Table, list[npt.NDArray[np.uint32]]]:
    """Return the frames of tables in canonical order, and by frame of each table its number.

    Args:
        tables: the frames.
        image_numbers: the answer to :func:`merged_images` for the tables' images.
    """
    every = pa.concat_tables(
        _with(table, image=mapping[numbers(table, "image")])
        for table, mapping in zip(tables, image_numbers, strict=True)
    ).combine_chunks()
    size = every.num_rows
    columns = [numbers(every, name) for name in ("image", "offset", "adjustment", "kind")]
    has_text = columns[3] == FrameKind.TEXT
    text = np.zeros(size, np.int64)
    if has_text.any():
        encoded = every["text"].combine_chunks().dictionary_encode()
        place = np.empty(len(encoded.dictionary), np.int64)
        place[pc.array_sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(place))
        text = place[encoded.indices.to_numpy()]
    keys = (text, columns[3], columns[2], columns[1], columns[0])
    order = np.lexsort(keys)
    is_new = np.zeros(size, np.bool_)
    is_new[:1] = True
    for key in keys:
        is_new[1:] |= key[order][1:] != key[order][:-1]
    number = np.zeros(size, np.uint32)
    number[order] = np.cumsum(is_new) - 1
    bounds = np.cumsum([0, *(table.num_rows for table in tables)]).tolist()
    mappings = [number[begin:end] for begin, end in pairwise(bounds)]
    return every.take(order[is_new]), mappings


def _merged_reports(tables: Sequence[pa.Table]) -> tuple[pa.Table, list[npt.NDArray[np.int64]]]:
    """Return the reports, and by report of each table its number; -1 if another one stays."""
    every = _concatenated(tables)
    keys = every["key"].to_pylist()
    first: dict[bytes, int] = {}
    for row, key in enumerate(keys):
        first.setdefault(key, row)
    rows = np.fromiter(first.values(), np.int64, len(first))
    distinct = every.take(rows)
    order = pc.sort_indices(
        # Dictionaries do not compare.
        pa.table({name: distinct[name].cast(pa.string()) for name in ("app", "build", "kind")})
        .append_column("time", pc.coalesce(distinct["time"], distinct["received"]))
        .append_column("key", distinct["key"].cast(pa.binary())),
        sort_keys=[(name, "ascending") for name in ("app", "build", "kind", "time", "key")],
    ).to_numpy()
    number = np.full(len(keys), -1, np.int64)
    number[rows[order]] = np.arange(len(order))
    bounds = np.cumsum([0, *(table.num_rows for table in tables)]).tolist()
    mappings = [number[begin:end] for begin, end in pairwise(bounds)]
    return distinct.take(order), mappings


def _moved_occurrences(table: pa.Table, reports: npt.NDArray[np.int64], nodes: Nodes) -> pa.Table:
    report = reports[numbers(table, "report")]
    moved = _with(table, report=np.maximum(report, 0), node=nodes[numbers(table, "node")])
    return moved if (report >= 0).all() else moved.filter(pa.array(report >= 0))


def _by_report(table: pa.Table) -> pa.Table:
    report = numbers(table, "report")
    if (report[1:] >= report[:-1]).all():
        return table
    return table.take(np.argsort(report, kind="stable"))


def _merged_names(
    tables: Sequence[pa.Table], frame_numbers: Sequence[npt.NDArray[np.uint32]]
) -> pa.Table:
    """Return the names of frames: of several chains of a frame the least one."""
    every = _concatenated(
        [
            _with(table, frame=mapping[numbers(table, "frame")])
            for table, mapping in zip(tables, frame_numbers, strict=True)
        ]
    )
    if not every.num_rows:
        return every
    heads = np.flatnonzero(numbers(every, "place") == 0)
    frame, owner = np.unique(numbers(every, "frame")[heads], return_inverse=True)
    if len(frame) < len(heads):
        lengths = np.diff(heads, append=every.num_rows)
        keep = np.zeros(len(heads), np.bool_)
        keep[_least_chains(heads, lengths, owner, _name_ranks(every))] = True
        every = every.filter(pa.array(np.repeat(keep, lengths)))
    return every.take(np.argsort(numbers(every, "frame"), kind="stable"))


def _least_chains(
    heads: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    owner: npt.NDArray[np.int64],
    ranks: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """Return the least chain of each owner, the first one of equal ones.

    Args:
        heads: by chain: its first row.
        lengths: by chain: its rows.
        owner: by chain: a number.
        ranks: by row: its place in the order of rows.
    """
    ended = []
    chains = np.arange(len(heads))
    level = 0
    while len(chains):
        rank = ranks[heads[chains] + level]
        least = np.full(int(owner.max()) + 1, len(ranks), np.int64)
        np.minimum.at(least, owner[chains], rank)
        chains = chains[rank == least[owner[chains]]]
        level += 1
        is_over = lengths[chains] == level
        # The end of a chain precedes every row.
        least_over = np.zeros(len(least), np.bool_)
        least_over[owner[chains[is_over]]] = True
        ended.append(chains[is_over])
        chains = chains[~least_over[owner[chains]]]
    every = np.concatenate(ended)
    _, first = np.unique(owner[every], return_index=True)
    return every[first]


def _name_ranks(table: pa.Table) -> npt.NDArray[np.int64]:
    """Return the place of each name in an order that is the same in every table."""
    columns = [numbers(table, "line")]
    for name in ("source", "file", "function"):
        texts = table[name].combine_chunks()
        place = np.empty(len(texts.dictionary), np.int64)
        place[pc.array_sort_indices(texts.dictionary).to_numpy()] = np.arange(len(place))
        columns.append(place[texts.indices.to_numpy()])
    order = np.lexsort(columns)
    is_new = np.zeros(len(order), np.bool_)
    for column in columns:
        is_new[1:] |= column[order][1:] != column[order][:-1]
    rank = np.empty(len(order), np.int64)
    rank[order] = np.cumsum(is_new)
    return rank
