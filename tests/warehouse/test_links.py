"""From identifiers that people have to what they name: issues, stacks, received bytes."""

from __future__ import annotations

import pytest

from machtrace.errors import ArgumentError
from machtrace.warehouse.triage import State
from machtrace.warehouse.warehouse import Warehouse
from tests.support.reports.samples import IPS


@pytest.fixture
def warehouse(tmp_path):
    with Warehouse.create(tmp_path / "w") as warehouse:
        warehouse.receive([("crash.ips", IPS)])
        warehouse.flush()
        warehouse.regroup()
        yield warehouse


def test_a_stack_leads_to_its_issue(warehouse):
    (issue,) = warehouse.issues()
    assert warehouse.issues_of_stack(issue.variants[0].stack) == [issue.id]
    assert warehouse.issues_of_stack(b"0" * 16) == []
    assert warehouse.present_issue(issue.id) == issue.id
    assert warehouse.earlier_issues(issue.id) == []


def test_a_record_leads_to_the_bytes_that_were_received(warehouse):
    (row,) = warehouse.query("SELECT raw, raw_offset FROM reports").to_pylist()
    body = warehouse.received(f"{row['raw'].removesuffix('.log')}-{row['raw_offset']}")
    assert body is not None
    assert (body.name, body.data) == ("crash.ips", IPS)
    assert warehouse.received("00000001-1") is None
    assert warehouse.received("../manifest-0") is None


def test_decisions_are_stored_while_another_one_writes(warehouse):
    (issue,) = warehouse.issues()
    with Warehouse(warehouse.folder) as beside:
        beside.decide(issue.id, State.IGNORED, "by design")
    assert warehouse.decisions()[issue.id][0].note == "by design"


def test_no_query_begins_after_an_interruption(warehouse):
    """A page has several: the time may be over between two of them."""
    assert warehouse.query("FROM reports").num_rows == 1
    warehouse.interrupt()
    with pytest.raises(ArgumentError, match="interrupted"):
        warehouse.query("FROM reports")
