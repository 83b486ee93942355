"""Grouping: the issue of each report's subject, counted by variant, build and device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from machtrace.warehouse.grouping.segment_groups import issue_facts, members_of
from machtrace.warehouse.grouping.segment_stacks import SegmentStacks
from machtrace.warehouse.segment import Segment
from machtrace.warehouse.stack_tree import stack_keys

GROUPS = pa.schema(
    [
        ("kind", pa.string()),
        ("hash", pa.string()),  # the issue is kind-hash
        ("stack", pa.binary(16)),
        ("cause", pa.string()),  # the kind of what a hang waited for
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
_VARIANT = ["kind", "stack", "cause"]
_PRINT = [*_VARIANT, "is_named", "hash", "title"]
_KEY = [*_VARIANT, "exception", "build", "device"]


def groups_of(segment: Segment) -> pa.Table:
    """Return the reports of a segment that have a subject, as :data:`GROUPS`."""
    members = members_of(segment.reports, segment.occurrences)
    reports = segment.reports.take(pa.array(members.report))
    stacks = SegmentStacks(segment)
    variants = zip(members.kind, members.node, members.cause, strict=True)
    prints = [stacks.fingerprint(node, kind, waits) for kind, node, waits in variants]
    titles = (issue_facts("", print_).title for print_ in prints)
    keys = stack_keys(segment.tree, segment.frame_keys, np.array(members.node, np.int64))
    of_stack = pa.table(
        {
            "hash": pa.array([print_.hash for print_ in prints], pa.string()),
            "stack": pa.array([key.tobytes() for key in keys], pa.binary(16)),
            "cause": pa.array(members.cause, pa.string()),
            "title": pa.array(titles, pa.string()),
            "is_named": pa.array([not print_.is_build_sensitive for print_ in prints], pa.bool_()),
        }
    ).take(pa.array(members.variant))
    text = {
        name: reports[name].cast(pa.string()) for name in ("kind", "exception", "build", "device")
    }
    time = pc.coalesce(reports["time"], reports["received"])
    columns = {name: of_stack[name] for name in of_stack.column_names}
    ones = pa.array(np.ones(len(members.report), np.int64))
    columns |= text | {"reports": ones, "first": time, "last": time}
    return merged([pa.table(columns).select(GROUPS.names).cast(GROUPS)])


def merged(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the sums of rows; of a variant's fingerprints the least that has names stays.

    A stack has another fingerprint in a segment that got its names later.
    """
    every = pa.concat_tables(tables).combine_chunks()
    prints: dict[tuple[str, ...], tuple[bool, str, str]] = {}
    for row in every.group_by(_PRINT).aggregate([]).to_pylist():
        own = not row["is_named"], row["hash"], row["title"]
        key = tuple(row[name] for name in _VARIANT)
        prints[key] = min(prints.get(key, own), own)
    sums = every.group_by(_KEY).aggregate([("reports", "sum"), ("first", "min"), ("last", "max")])
    sums = sums.rename_columns([*_KEY, "reports", "first", "last"])
    variants = zip(*(sums[name].to_pylist() for name in _VARIANT), strict=True)
    of_rows = [prints[variant] for variant in variants]
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
