"""Incidents as reports, files and lines of JSON."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import jsonschema
import pytest

import machtrace as mt
from machtrace.errors import FileAccessError, FormatError
from machtrace.model.incident.facts import Culprit, WaitsFor, WatchFacts
from machtrace.model.report import Report
from machtrace.reports.analysis.fingerprint import wait_kind
from machtrace.reports.analysis.groups import report_groups
from machtrace.reports.analysis.subject_stack import subject_stack
from machtrace.reports.machtrace_json import reports_json
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource
from machtrace.reports.stacks.incidents import report_of_incident, sample_times
from machtrace.reports.stacks.profiles import profile_of
from machtrace.reports.writers import FORMATS, write_reports
from machtrace.watching.jsonl import incident_line, incident_object
from machtrace.watching.reports import report_name, write_incident
from tests.support.reports.incidents import (
    BLOCKED,
    DEADLOCK,
    ENDED,
    EVERY_KIND,
    HANG,
    MEMORY,
    MILLISECOND,
    SEEN,
    stack,
)

SCHEMA = json.loads(Path("docs/report.schema.json").read_text(encoding="utf-8"))


def read_back(report: Report) -> Report:
    source = ReportSource("hang.json", write_reports([report], "json"))
    (read,) = read_source(source).reports
    return read


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_report_is_read_back_equal(kind: str) -> None:
    report = report_of_incident(EVERY_KIND[kind])
    assert read_back(report) == report


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_no_fact_of_an_incident_is_lost(kind: str) -> None:
    incident = EVERY_KIND[kind]
    watch = read_back(report_of_incident(incident)).watch
    assert watch is not None
    for field in fields(WatchFacts):
        assert getattr(watch, field.name) == getattr(incident, field.name), field.name


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_report_conforms_to_the_published_schema(kind: str) -> None:
    document = json.loads(reports_json([report_of_incident(EVERY_KIND[kind])]))
    jsonschema.validate(document, SCHEMA)


def test_all_samples_have_their_times_and_weights() -> None:
    report = read_back(report_of_incident(HANG))
    assert sample_times(report) == tuple((one.at_ns, one.weight_ns) for one in HANG.stacks)
    (tree,) = report.trees
    assert (tree.is_attributed, tree.root_samples) == (True, 240)
    samples = profile_of(report).samples
    assert [*samples.times_ns] == [160 * MILLISECOND, 200 * MILLISECOND, 240 * MILLISECOND]
    assert [*samples.weights] == [160, 40, 40]


def test_the_representative_stack_is_the_subject() -> None:
    report = report_of_incident(
        replace(HANG, stacks=HANG.stacks[1:2] + HANG.stacks[:1], representative=1)
    )
    subject = subject_stack(report)
    assert subject is not None
    names = [frame.symbol and frame.symbol.name for frame in subject.frames]
    assert names == [*BLOCKED]
    assert [thread.id for thread in report.threads] == [4711, 4712]


def test_a_thread_that_is_not_in_the_capture_is_added() -> None:
    report = report_of_incident(MEMORY)
    assert [(thread.id, len(thread.frames)) for thread in report.threads] == [(4711, 4)]
    assert report.process.pid == 4711


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_every_format_takes_an_incident(kind: str, form: str) -> None:
    assert write_reports([report_of_incident(EVERY_KIND[kind])], form)


def test_an_incident_saves_itself(tmp_path: Path) -> None:
    HANG.save(tmp_path / "hang.json")
    assert mt.read_report(tmp_path / "hang.json") == report_of_incident(HANG)


def test_hangs_of_one_culprit_are_one_group_whatever_their_leaves() -> None:
    leaves = ("parse", "lex", "clock_nanosleep", "__futex_wait")
    reports = [
        report_of_incident(
            replace(
                HANG,
                id=str(number),
                stacks=(HANG.stacks[0]._replace(stack=stack((leaf, "handle", "main"))),),
                waits_for=WaitsFor(f"socket to 10.0.0.{number}:5432"),
            )
        )
        for number, leaf in enumerate(leaves * 5)
    ]
    (group,) = report_groups(reports)
    assert group.count == len(reports)
    assert group.fingerprint.title == "handle (server)"


def test_a_python_culprit_is_grouped_by_its_file_not_by_the_interpreter() -> None:
    culprit = Culprit("load", "libpython3.11.so.1.0", "/srv/server.py", 10, 1.0, "acquire")
    moved = culprit._replace(image="libpython3.12.so.1.0", file="/opt/server.py", line=12)
    reports = [report_of_incident(replace(HANG, culprit=one)) for one in (culprit, moved)]
    (group,) = report_groups(reports)
    assert group.fingerprint.title == "load (server.py)"


def test_other_culprits_and_other_waits_are_other_groups() -> None:
    others = (
        HANG,
        replace(HANG, culprit=Culprit("parse", "server")),
        replace(HANG, waits_for=WaitsFor("GIL")),
        replace(HANG, waits_for=None),
    )
    assert len(report_groups([report_of_incident(other) for other in others])) == len(others)


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        ("mutex", "mutex"),
        ("socket to 10.0.0.1:5432", "socket"),
        ("process 4711", "process"),
        ("file '/tmp/a'", "file"),
        ("the end of a process", "the end"),
        ("4711", "4711"),
        ("", ""),
    ],
)
def test_a_wait_s_kind_has_no_number(what: str, kind: str) -> None:
    assert wait_kind(what) == kind


def test_a_share_that_is_no_number_is_refused() -> None:
    text = reports_json([report_of_incident(HANG)])
    for value in ('"most"', "true", "NaN"):
        broken = text.replace('"share":0.98', f'"share":{value}').replace(
            '"share": 0.98', f'"share": {value}'
        )
        assert broken != text
        with pytest.raises(FormatError):
            read_source(ReportSource("hang.json", broken.encode()))


def test_a_line_has_every_key_of_the_contract() -> None:
    line = incident_line(HANG, "incidents/hang.json")
    assert line.endswith("\n")
    assert line.count("\n") == 1
    entry = json.loads(line)
    assert entry == incident_object(HANG, "incidents/hang.json")
    assert entry["schema"] == 1
    assert (entry["phase"], entry["ended_ns"]) == ("seen", None)
    assert (entry["kind"], entry["verdict"], entry["certainty"]) == ("hang", "blocked", "certain")
    assert entry["thread"] == {"id": 4711, "name": "server", "is_main": True}
    assert entry["began_ns"] == SEEN - 260 * MILLISECOND
    assert entry["culprit"]["function"] == "handle"
    assert entry["waits_for"]["owner"] == {"pid": 4711, "thread": 4712, "recorded": True}
    assert (entry["samples"], entry["report"]) == (3, "incidents/hang.json")


def test_a_line_of_an_end_has_the_time_of_it() -> None:
    entry = incident_object(ENDED)
    assert entry["phase"] == "ended"
    assert entry["ended_ns"] == SEEN + 2_950 * MILLISECOND
    assert set(entry) == set(incident_object(DEADLOCK))


def test_a_file_is_named_by_kind_and_time_and_replaced_at_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "incidents" / "today"
    path = write_incident(HANG, folder)
    assert Path(path).name == "hang-20261123T043012.340Z-4711-4711-1.json"
    assert write_incident(ENDED, folder) == path
    assert [one.name for one in folder.iterdir()] == [Path(path).name]
    report = mt.read_report(path)
    assert report == report_of_incident(ENDED)


def test_a_name_has_nothing_of_an_identifier_that_leads_elsewhere() -> None:
    name = report_name(replace(HANG, id="../../etc/passwd"))
    assert "/" not in name
    assert ".." not in name


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileAccessError) as caught:
        write_incident(HANG, tmp_path / "file" / "folder")
    assert "folder" in (caught.value.remedy or "")
