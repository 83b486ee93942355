"""Differences of two sets of stacks: shares that add up, and intervals over devices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from machtrace.warehouse.columns import SourceFacts, StackColumns
from machtrace.warehouse.warehouse import Warehouse
from tests.warehouse.test_columns import IMAGES

SITES = 8


def stacks(counts: list[int]) -> StackColumns:
    """Return stacks main → child, with a number of stacks for each child; main is site 0."""
    children = np.repeat(np.arange(1, len(counts) + 1), counts)
    frames = np.zeros(2 * len(children), np.int64)
    frames[1::2] = children
    return StackColumns(
        images=IMAGES,
        frame_image=np.zeros(SITES, np.int32),
        frame_offset=np.arange(SITES) * 16,
        frames=frames,
        starts=np.arange(0, len(frames) + 1, 2),
        weight=np.ones(len(children), np.int64),
        time=np.zeros(len(children), np.int64),
    )


@pytest.fixture
def warehouse(tmp_path):
    """Builds 1 and 2 on 40 devices: the third child has twice its share in build 2."""
    with Warehouse.create(tmp_path / "w") as made:
        for device in range(40):
            for build, counts in (("1", [50, 40, 10]), ("2", [50, 30, 20])):
                facts = SourceFacts(
                    key=f"{build}-{device}".encode().ljust(16),
                    received=1,
                    build=build,
                    device=f"device {device}",
                )
                made.add_columns(stacks(counts), facts)
        made.compact()
        yield made


def changes(warehouse, before="build = '1'", after="build = '2'"):
    return {change.function.name: change for change in warehouse.diff(before, after).changes()}


def test_shares_are_those_of_the_sides(warehouse):
    by_name = changes(warehouse)
    assert {name: (each.before, each.after) for name, each in by_name.items()} == {
        "0x20": (0.4, 0.3),
        "0x30": (0.1, 0.2),
    }


def test_a_change_on_all_devices_is_sure(warehouse):
    for change in changes(warehouse).values():
        assert change.is_sure
        assert change.least <= change.difference <= change.most


def test_a_change_on_one_device_may_be_chance(warehouse):
    facts = SourceFacts(key=b"x" * 16, received=1, build="3", device="device 1")
    warehouse.add_columns(stacks([0, 0, 0, 100]), facts)
    for device in range(8):
        facts = replace(facts, key=f"3-{device}".encode().ljust(16), device=f"device {device}")
        warehouse.add_columns(stacks([50, 40, 10]), facts)
    by_name = changes(warehouse, after="build = '3'")
    assert by_name["0x40"].after > 0.05
    assert not by_name["0x40"].is_sure


def test_a_side_without_stacks_has_no_shares(warehouse):
    for change in changes(warehouse, after="build = 'none'").values():
        assert change.after == 0


def test_the_same_question_has_the_same_answer(warehouse):
    first, second = (warehouse.diff("build = '1'", "build = '2'") for _ in range(2))
    assert first.least.tolist() == second.least.tolist()
    assert first.most.tolist() == second.most.tolist()
