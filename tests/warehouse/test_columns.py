"""Stacks that arrive as columns: as they would one by one, and refused where they do not fit."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import numpy as np
import pytest

from machtrace.errors import ArgumentError
from machtrace.model.report import ReportedImage
from machtrace.warehouse.columns import SourceFacts, StackColumns, segment_of
from machtrace.warehouse.segment import merge
from machtrace.warehouse.warehouse import Warehouse
from tests.warehouse.synthetic import FUNCTIONS, INSTRUCTIONS, SITES, stacks

FACTS = SourceFacts(key=b"k" * 16, received=7, app="org.example.columns", build="12")
IMAGES = [ReportedImage(uuid=UUID(int=9 - at), name=f"F{at}") for at in range(3)]


def columns(count: int = 300) -> StackColumns:
    made = stacks(count, "crashes")
    sites = np.arange(FUNCTIONS * SITES)
    return StackColumns(
        images=IMAGES,
        frame_image=sites % 4 - 1,
        frame_offset=sites // 4 * INSTRUCTIONS,
        frames=made.frames,
        starts=made.starts,
        weight=np.arange(count) + 1,
        time=np.arange(count) + 100,
    )


def test_every_stack_is_there_with_its_weight():
    source = columns()
    made = segment_of(source, FACTS)
    made.check()
    images = [None, *(row["uuid"] for row in made.images.to_pylist())]
    frames = [(images[row["image"] + 1], row["offset"]) for row in made.frames.to_pylist()]
    expected = []
    for number in range(300):
        rows = source.frames[source.starts[number] : source.starts[number + 1]][::-1]
        named = [
            (
                None if source.frame_image[row] < 0 else IMAGES[source.frame_image[row]].uuid.hex,
                int(source.frame_offset[row]),
            )
            for row in rows.tolist()
        ]
        expected.append((named, number + 1, number + 100))
    assert [
        ([frames[frame] for frame in made.tree.stack(row["node"])], row["weight"], row["time"])
        for row in made.occurrences.to_pylist()
    ] == expected
    used = set(made.tree.frame[1:].tolist())
    assert used == set(range(made.frames.num_rows)), "frames without a stack are left out"


def test_rows_are_canonical():
    made = segment_of(columns(), FACTS)
    again = merge([made])
    for table in ("images", "frames", "occurrences"):
        assert getattr(again, table).to_pylist() == getattr(made, table).to_pylist()
    assert again.tree.frame.tolist() == made.tree.frame.tolist()


def test_columns_are_stored_once(tmp_path):
    with Warehouse.create(tmp_path / "w") as warehouse:
        assert warehouse.add_columns(columns(), FACTS).reports == 1
        assert warehouse.add_columns(columns(), FACTS) == (0, 1, 0)
        (row,) = warehouse.query(
            "SELECT count(*) AS n, sum(weight) AS w FROM occurrences"
        ).to_pylist()
        assert (row["n"], int(row["w"])) == (300, 300 * 301 // 2)
        assert warehouse.flame().totals[0] == 300 * 301 // 2


@pytest.mark.parametrize(
    "changes",
    [
        {"starts": np.array([0, 5])},
        {"starts": np.array([], np.int64)},
        {"weight": np.zeros(2)},
        {"time": np.zeros(2)},
        {"frame_image": np.zeros(4)},
        {"frame_image": np.full(FUNCTIONS * SITES, 3)},
        {"frame_offset": np.zeros(1)},
        {"frames": np.full(len(columns().frames), FUNCTIONS * SITES)},
    ],
)
def test_columns_that_do_not_fit_are_refused(changes):
    with pytest.raises(ArgumentError):
        segment_of(replace(columns(), **changes), FACTS)
