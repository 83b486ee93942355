"""Conditions over stacks: the same stacks by ranges of files as by the whole view."""

from __future__ import annotations

import numpy as np
import pytest

from machtrace.errors import ArgumentError
from machtrace.warehouse.columns import SourceFacts
from machtrace.warehouse.warehouse import Warehouse
from tests.warehouse.test_difference import stacks


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory):
    """Two segments: one of four reports, one of one."""
    with Warehouse.create(tmp_path_factory.mktemp("selection") / "w") as made:
        for number in range(5):
            if number == 4:
                made.compact()
            facts = SourceFacts(
                key=bytes([number]) * 16,
                received=1 + number,
                build=str(number % 2),
                device=f"device {number % 3}",
            )
            made.add_columns(stacks([number + 1, 3, 2 * number]), facts)
        yield made


@pytest.mark.parametrize(
    "where",
    [
        "true",
        "build = '1'",
        "device = 'device 1' OR received = 5",
        "report IN (SELECT report FROM reports WHERE build = '0')",
        "stacks_of_reports.build = '0' AND time >= 0",
        "role = 'sample' AND build = '1'",
        "role = 'crashed'",
        "image = 'F' OR stack IS NOT NULL",
        "build = '0' AND weight > 1",
    ],
)
def test_weights_are_those_of_a_query(warehouse, where):
    text = "SELECT sum(weight) FROM stacks_of_reports WHERE "
    rows = warehouse.query(text + where)
    assert int(warehouse.flame(where).totals[0]) == int(rows.column(0)[0].as_py() or 0)


def test_weights_of_functions_are_those_of_a_query(warehouse):
    tree = warehouse.flame("build = '0'")
    below = {
        tree.functions[int(tree.tree.frame[node])].name: int(tree.own[node])
        for node in np.flatnonzero(tree.own)
    }
    rows = warehouse.query(
        'SELECT t."offset", sum(weight)::BIGINT AS weight FROM stacks_of_reports '
        "JOIN stack_tops t USING (segment, node) WHERE build = '0' GROUP BY ALL"
    ).to_pylist()
    assert below == {f"{row['offset']:#x}": row["weight"] for row in rows}


def test_a_function_of_each_row_is_called_for_each_stack(warehouse):
    total = int(warehouse.flame().totals[0])
    assert 0 < int(warehouse.flame("random() < 0.5").totals[0]) < total


@pytest.mark.parametrize(
    "where", ["nothing = 1", "build = ", "true) UNION SELECT (1", "1; SELECT 1"]
)
def test_an_invalid_condition_is_refused(warehouse, where):
    with pytest.raises(ArgumentError):
        warehouse.flame(where)
