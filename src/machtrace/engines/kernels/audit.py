"""Audit merge: the calls of many devices and builds, counted by rule and stack."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from machtrace.audit.observed.process_calls import ProcessCalls
from machtrace.audit.trail.calls import NO_TIME

CALLS = pa.schema(
    [
        ("device", pa.string()),
        ("app", pa.string()),
        ("build", pa.string()),
        ("rule", pa.string()),
        ("image", pa.string()),  # of the innermost frame
        ("role", pa.string()),  # whose code that is: app, library, system
        ("stack", pa.string()),  # image+offset, the outermost first, with ; between them
        ("calls", pa.int64()),
        ("first", pa.int64()),  # ns since 1970; null of calls that are only counted
        ("last", pa.int64()),
        ("problem", pa.string()),  # why a spool could not be read; else null
    ]
)
_SUMS = [("calls", "sum"), ("first", "min"), ("last", "max")]
_KEY = [name for name in CALLS.names if name not in dict(_SUMS)]


def calls_of(process: ProcessCalls) -> pa.Table:
    """Return the calls of a process as :data:`CALLS`."""
    columns = process.columns
    pairs = columns["rule"].astype(np.int64) << 32 | columns["stack"]
    distinct, index = np.unique(pairs, return_inverse=True)
    stacks = [_Stack(process, pair & 0xFFFF_FFFF) for pair in distinct.tolist()]
    has_time = columns["time"] != NO_TIME
    time = pa.array(columns["time"] + process.process.wall_offset, mask=~has_time)
    size, rows = len(pairs), pa.array(index.reshape(-1))
    facts = {"device": process.process.device, "app": process.process.app}
    facts["build"] = process.process.build
    table = {name: pa.repeat(pa.scalar(text, pa.string()), size) for name, text in facts.items()}
    rules = [process.rules[pair >> 32] for pair in distinct.tolist()]
    texts = {
        "rule": rules,
        "image": [stack.image for stack in stacks],
        "role": [stack.role for stack in stacks],
        "stack": [stack.text for stack in stacks],
    }
    table |= {name: pa.array(each, pa.string()).take(rows) for name, each in texts.items()}
    table |= {"calls": pa.array(columns["calls"]), "first": time, "last": time}
    table |= {"problem": pa.nulls(size, pa.string())}
    return merged([pa.table(table, schema=CALLS)])


def problem_of(device: str, text: str) -> pa.Table:
    """Return the row of a spool that could not be read."""
    return pa.Table.from_pylist([{"device": device, "calls": 0, "problem": text}], CALLS)


def merged(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the sums of rows."""
    every = pa.concat_tables(tables).group_by(_KEY).aggregate(_SUMS)
    sums = every.rename_columns([*_KEY, *dict(_SUMS)]).select(CALLS.names).cast(CALLS)
    return sums.sort_by([(name, "ascending") for name in _KEY]).combine_chunks()


class _Stack:
    """A stack as text, with the image of its innermost frame."""

    def __init__(self, process: ProcessCalls, node: int) -> None:
        frames = process.stacks.frames(node)
        images = [process.images[each.image] if each.image >= 0 else None for each in frames]
        shown = [
            f"{'' if image is None else image.key}+{frame.offset:#x}"
            for image, frame in zip(images, frames, strict=True)
        ]
        self.text = ";".join(reversed(shown))
        innermost = images[0] if images else None
        self.image = "" if innermost is None else innermost.name
        self.role = "" if innermost is None else innermost.role.value
