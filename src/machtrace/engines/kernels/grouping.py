"""Grouping: the issue of each report's subject, counted by variant, build and device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from machtrace.warehouse.groups import SegmentStacks
from machtrace.warehouse.segment import Segment, numbers
from machtrace.warehouse.stack_tree import stack_keys

GROUPS = pa.schema(
    [
        ("kind", pa.string()),
        ("hash", pa.string()),  # the issue is kind-hash
        ("stack", pa.binary(16)),
        ("title", pa.string()),
        ("is_named", pa.bool_()),  # whether another build's fingerprint would be the same
        ("exception", pa.string()),
        ("build", pa.string()),
        ("device", pa.string()),
        ("reports", pa.int64()),
        ("first", pa.int64()),  # ns since 1970
        ("last", pa.int64()),
    ]
)
_PRINT = ["stack", "is_named", "hash", "title"]
_KEY = ["kind", "stack", "exception", "build", "device"]
_SUBJECT = "subject"


def groups_of(segment: Segment) -> pa.Table:
    """Return the reports of a segment that have a subject, as :data:`GROUPS`."""
    subjects = segment.occurrences.filter(
        pc.equal(segment.occurrences["role"].cast(pa.string()), _SUBJECT)
    )
    nodes = numbers(subjects, "node")
    reports = segment.reports.take(pa.array(numbers(subjects, "report")))
    stacks = SegmentStacks(segment)
    distinct, index = np.unique(nodes, return_inverse=True)
    prints = [stacks.fingerprint(node) for node in distinct.tolist()]
    keys = stack_keys(segment.tree, segment.frame_keys, distinct)
    of_stack = pa.table(
        {
            "hash": pa.array([each.hash for each in prints], pa.string()),
            "stack": pa.array([each.tobytes() for each in keys], pa.binary(16)),
            "title": pa.array([each.title for each in prints], pa.string()),
            "is_named": pa.array([not each.is_build_sensitive for each in prints], pa.bool_()),
        }
    ).take(pa.array(index.reshape(-1)))
    text = {
        name: reports[name].cast(pa.string()) for name in ("kind", "exception", "build", "device")
    }
    time = pc.coalesce(reports["time"], reports["received"])
    columns = {name: of_stack[name] for name in ("hash", "stack", "title", "is_named")}
    ones = pa.array(np.ones(len(nodes), np.int64))
    columns |= text | {"reports": ones, "first": time, "last": time}
    return merged([pa.table(columns).select(GROUPS.names).cast(GROUPS)])


def merged(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the sums of rows; of a stack's fingerprints the least that has names stays.

    A stack has another fingerprint in a segment that got its names later.
    """
    every = pa.concat_tables(tables).combine_chunks()
    prints: dict[bytes, tuple[bool, str, str]] = {}
    for row in every.group_by(_PRINT).aggregate([]).to_pylist():
        own = not row["is_named"], row["hash"], row["title"]
        prints[row["stack"]] = min(prints.get(row["stack"], own), own)
    sums = every.group_by(_KEY).aggregate([("reports", "sum"), ("first", "min"), ("last", "max")])
    sums = sums.rename_columns([*_KEY, "reports", "first", "last"])
    of_rows = [prints[stack] for stack in sums["stack"].to_pylist()]
    sums = sums.append_column("is_named", pa.array([not each[0] for each in of_rows], pa.bool_()))
    sums = sums.append_column("hash", pa.array([each[1] for each in of_rows], pa.string()))
    sums = sums.append_column("title", pa.array([each[2] for each in of_rows], pa.string()))
    order = pc.sort_indices(
        sums.set_column(
            sums.schema.get_field_index("stack"), "stack", sums["stack"].cast("binary")
        ),
        sort_keys=[(name, "ascending") for name in ("hash", *_KEY)],
    )
    return sums.take(order).select(GROUPS.names).cast(GROUPS).combine_chunks()


def finished(groups: pa.Table) -> pa.Table:
    """Return the groups with their issues instead of fingerprints."""
    issue = pc.binary_join_element_wise(groups["kind"], groups["hash"], "-")
    return groups.set_column(groups.schema.get_field_index("hash"), "issue", issue)
