"""``machtrace warehouse`` as a user runs it: rows, files, exit statuses and errors with hints."""

from __future__ import annotations

import csv
import json
from io import StringIO

import pytest

from tests.support.command_line import run_command as machtrace
from tests.support.reports.samples import CRASH, IPS, REPORT_SAMPLES


@pytest.fixture
def folder(tmp_path):
    """A warehouse with the sample reports."""
    files = tmp_path / "reports"
    files.mkdir()
    for name, data in REPORT_SAMPLES.items():
        (files / name).write_bytes(data)
    assert machtrace("warehouse", "init", "--no-scrub", tmp_path / "w").returncode == 0
    added = machtrace("warehouse", "add", tmp_path / "w", files)
    assert added.returncode == 0, added.stderr
    assert "added" in added.stdout
    return tmp_path / "w"


def rows(folder, text: str) -> list[list[object]]:
    result = machtrace("warehouse", "query", folder, text, "--format", "json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)["rows"]


def test_queries_in_each_format(folder):
    text = "SELECT kind, count(*) AS n FROM reports GROUP BY ALL ORDER BY ALL"
    expected = rows(folder, text)
    assert len(expected) > 1
    written = machtrace("warehouse", "query", folder, text, "--format", "csv").stdout
    assert list(csv.reader(StringIO(written))) == [
        ["kind", "n"],
        *([str(cell) for cell in row] for row in expected),
    ]
    lines = machtrace("warehouse", "query", folder, text).stdout.splitlines()
    assert [line.split() for line in lines] == [
        ["kind", "n"],
        *([str(cell) for cell in row] for row in expected),
    ]


def test_issues_have_all_subjects(folder):
    result = machtrace("warehouse", "groups", folder, "--format", "json")
    issues = json.loads(result.stdout)["issues"]
    (subjects,) = rows(
        folder,
        "SELECT count(*) FROM occurrences JOIN reports USING (segment, report) "
        "WHERE role = 'subject' AND kind NOT IN ('profile', 'audit')",
    )
    own = (issue["reports"] for issue in issues if issue["kind"] != "audit")
    assert sum(own) == subjects[0]
    assert all(
        sum(variant["reports"] for variant in issue["variants"]) == issue["reports"]
        for issue in issues
    )
    crashes = machtrace("warehouse", "groups", folder, "--where", "kind = 'crash'", "--format=json")
    assert {issue["kind"] for issue in json.loads(crashes.stdout)["issues"]} == {"crash"}
    assert machtrace("warehouse", "groups", folder).stdout.endswith(" issues\n")


def test_folded_stacks_have_the_weights_of_a_query(folder):
    where = "role = 'sample'"
    result = machtrace("warehouse", "flame", folder, "--where", where)
    assert result.returncode == 0, result.stderr
    total = sum(int(line.rpartition(" ")[2]) for line in result.stdout.splitlines())
    (weight,) = rows(folder, f"SELECT sum(weight) FROM occurrences WHERE {where}")  # noqa: S608 - ours
    assert total == int(weight[0]) > 0


@pytest.mark.parametrize("form", ["speedscope", "firefox", "svg", "html"])
def test_flames_in_other_formats(folder, form):
    result = machtrace("warehouse", "flame", folder, "--format", form)
    assert result.returncode == 0
    assert len(result.stdout) > 500


def test_differences_have_shares_and_intervals(folder):
    words = ("warehouse", "diff", folder, "role = 'crashed'", "role = 'thread'")
    document = json.loads(machtrace(*words, "--all", "--format", "json").stdout)
    assert document["weight"]["before"] > 0
    for row in document["changes"]:
        low, high = row["interval"]
        assert low <= high
        assert row["is_sure"] == (low > 0 or high < 0)
    text = machtrace(*words, "--all").stdout
    assert len(text.splitlines()) == len(document["changes"]) + 2


def test_decisions_are_shown_with_their_issues(folder):
    listed = json.loads(machtrace("warehouse", "groups", folder, "--format", "json").stdout)
    issue = listed["issues"][0]["id"]
    words = ("warehouse", "decide", folder, issue, "resolved", "--note", "fixed")
    assert machtrace(*words).stdout == f"{issue} is resolved\n"
    listed = json.loads(machtrace("warehouse", "groups", folder, "--format", "json").stdout)
    assert listed["issues"][0]["state"] == "resolved"
    assert listed["issues"][0]["decisions"] == [
        {"issue": issue, "state": "resolved", "note": "fixed"}
    ]
    assert "resolved" in machtrace("warehouse", "groups", folder).stdout
    assert {each["state"] for each in listed["issues"][1:]} == {"open"}


@pytest.mark.peer
def test_several_processes_add_the_same(folder, tmp_path):
    other = tmp_path / "other"
    machtrace("warehouse", "init", "--no-scrub", other)
    added = machtrace("warehouse", "add", other, tmp_path / "reports", "--jobs", "2")
    assert added.returncode == 0, added.stderr
    text = "SELECT * EXCLUDE (segment, received, raw_offset) FROM reports ORDER BY key"
    assert rows(other, text) == rows(folder, text)
    stacks = "SELECT key FROM stacks ORDER BY ALL"
    assert rows(other, stacks) == rows(folder, stacks)


def test_check_and_compact(folder):
    checked = machtrace("warehouse", "check", folder)
    assert checked.returncode == 0
    assert checked.stdout.endswith("0 problems\n")
    assert machtrace("warehouse", "compact", folder).returncode == 0
    segment = next((folder / "segments").iterdir())
    (segment / "frames.parquet").write_bytes(b"no table")
    document = json.loads(machtrace("warehouse", "check", folder, "--format", "json").stdout)
    assert [problem["where"] for problem in document["problems"]] == [
        f"segment {int(segment.name)}"
    ]
    damaged = machtrace("warehouse", "check", folder)
    assert damaged.returncode == 1
    assert "damaged: segment" in damaged.stdout


def test_what_cannot_be_read_is_stated_and_stored(tmp_path):
    machtrace("warehouse", "init", tmp_path / "w")
    (tmp_path / "bad").write_bytes(b"nothing")
    (tmp_path / "good").write_bytes(CRASH)
    result = machtrace("warehouse", "add", tmp_path / "w", tmp_path / "bad", tmp_path / "good")
    assert result.returncode == 1
    assert result.stdout == "1 report added\n"
    assert "in quarantine: " in result.stderr
    assert "in quarantine: " in machtrace("warehouse", "check", tmp_path / "w").stdout


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["query", "{w}", "DROP VIEW reports"], "pass one SELECT statement"),
        (["query", "{w}", "SELECT * FROM nothing"], "nothing"),
        (["flame", "{w}", "--where", "no such column"], "query failed"),
        (["groups", "{w}", "--where", "1 ="], "query failed"),
        (["groups", "{w}/missing"], "not a warehouse"),
        (["diff", "{w}", "true", "what"], "query failed"),
        (["decide", "{w}", "crash-0", "open"], "no issue is called crash-0"),
        (["add", "{w}", "{w}/missing"], "no such file"),
        (["init", "{w}"], "not empty"),
        (["name", "{w}", "{w}/missing"], "missing"),
    ],
)
def test_wrong_input_is_a_fact_and_a_hint(tmp_path, words, fact):
    folder = tmp_path / "w"
    machtrace("warehouse", "init", folder)
    (tmp_path / "a.ips").write_bytes(IPS)
    machtrace("warehouse", "add", folder, tmp_path / "a.ips")
    result = machtrace("warehouse", *(word.format(w=folder) for word in words))
    assert result.returncode != 0
    assert fact in result.stderr
    assert "Traceback" not in result.stderr
    assert "hint: " in result.stderr
    assert "bug" not in result.stderr


def test_names_that_are_missing_are_listed(folder):
    text = machtrace("warehouse", "name", folder).stdout
    assert "symbols that are missing" in text
    document = json.loads(machtrace("warehouse", "name", folder, "--format", "json").stdout)
    assert document["named"] == 0
    assert all(row["frames"] > 0 for row in document["wanted"])
