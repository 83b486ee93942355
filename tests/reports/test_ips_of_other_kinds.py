"""Reports of other kinds as .ips: with the keys that readers of these files require."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest

from machtrace.model.report import Report
from machtrace.reports.crash.writer import crash_text
from machtrace.reports.ips.writer import ips_text
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource
from tests.support.reports.samples import REPORT_SAMPLES


def reports(kind: str) -> tuple[Report, ...]:
    """Return the reports of a sample."""
    return read_source(ReportSource(kind, REPORT_SAMPLES[kind])).reports


def parsed(report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and body of what is written."""
    header, _, body = ips_text(report).partition("\n")
    return json.loads(header), json.loads(body)


@pytest.mark.parametrize("kind", sorted(REPORT_SAMPLES.keys() - {"ips"}))
def test_keys_that_lldb_requires_are_present(kind: str) -> None:
    """The keys that the JSON parser of lldb's ``crashlog.py`` reads unconditionally.

    Debian's lldb has no ``crashlog.py``: lldb itself was not run on these files.
    """
    for report in reports(kind):
        header, body = parsed(report)
        assert header["bug_type"] == "309"
        assert {"app_name", "app_version"} <= header.keys()
        assert isinstance(body["pid"], int)
        assert isinstance(body["procName"], str)
        assert isinstance(body["exception"]["type"], str)
        for image in body["usedImages"]:
            UUID(image["uuid"])
            assert image["base"] >= 0
            assert image["size"] >= 0
        for thread in body["threads"]:
            for frame in thread["frames"]:
                assert frame["imageOffset"] >= 0
                assert 0 <= frame["imageIndex"] < len(body["usedImages"])


@pytest.mark.parametrize("kind", ["kscrash", "plcrash", "metrickit", "crash", "lldb"])
def test_threads_read_back_with_the_same_places_and_names(kind: str) -> None:
    """Addresses, images, names, and how an address stands to its instruction."""
    for report in reports(kind):
        (again,) = read_source(ReportSource("again", ips_text(report).encode())).reports
        assert len(again.threads) == len(report.threads)
        for got, expected in zip(again.threads, report.threads, strict=True):
            assert (got.name, got.queue, got.crashed) == (
                expected.name,
                expected.queue,
                expected.crashed,
            )
            for left, right in zip(got.frames, expected.frames, strict=True):
                if right.address is not None:
                    assert left.address == right.address
                assert (left.symbol, left.is_inline) == (right.symbol, right.is_inline)
                assert left.adjustment is right.adjustment


@pytest.mark.parametrize("kind", ["sample", "spindump"])
def test_trees_are_in_files_and_in_texts(kind: str) -> None:
    """Apple has no place for them in either: both parts are ours."""
    for report in reports(kind):
        _, body = parsed(report)
        assert len(body.get("callTrees", [])) == len(report.trees)
        for entry, tree in zip(body.get("callTrees", []), report.trees, strict=True):
            assert entry["samples"] == [node.samples for node in tree.nodes]
            assert entry["parents"] == [node.parent for node in tree.nodes]
        text = crash_text(report)
        names = {
            node.frame.symbol.name
            for task in report.tasks
            for tree in task.trees
            for node in tree.nodes
            if node.frame.symbol is not None
        }
        assert names
        assert all(name in text for name in names)
        assert ("Call graph:" in text) == bool(report.trees)
        assert ("Other Processes:" in text) == bool(report.others)
