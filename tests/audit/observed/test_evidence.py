"""Evidence of an audit: what it has, that it is whole, and that changed files are refused."""

import io
import json
import random
import zipfile
from hashlib import sha256

import numpy as np
import pytest
from click.testing import CliRunner

from machtrace.audit.baseline import compare
from machtrace.audit.evidence import MANIFEST, REPORT, report_of_evidence
from machtrace.cli.application import app
from machtrace.errors import FormatError, MachtraceError
from tests.audit.observed.builds import BY_APP, BY_SDK, NEW, OLD, RULES, spool
from tests.support.writers import spool as writer


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "rules.toml").write_text(RULES, encoding="utf-8")
    (tmp_path / "phone").mkdir()
    (tmp_path / "phone" / "old.spool").write_bytes(spool(OLD, [BY_APP, BY_APP]))
    (tmp_path / "phone" / "new.spool").write_bytes(spool(NEW, [BY_SDK, BY_APP], day=1))
    return tmp_path


def audit(folder, command, *words):
    rules = ["--rules", str(folder / "rules.toml")]
    words = ["audit", command, *rules, str(folder / "phone"), *map(str, words)]
    return CliRunner().invoke(app, words, standalone_mode=False)


def evidence(folder, command="run"):
    """Return the members of an audit's evidence."""
    path = folder / f"{command}.audit"
    result = audit(folder, command, "-o", path)
    assert (result.exception, result.return_value) == (None, 1), result.output
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def column(members, name):
    return np.load(io.BytesIO(members[f"{name}.npy"]), allow_pickle=False)


@pytest.mark.parametrize("command", ["run", "merge"])
def test_the_manifest_has_the_hash_of_every_member(folder, command):
    members = evidence(folder, command)
    *others, last = members
    assert last == MANIFEST
    manifest = json.loads(members[MANIFEST])
    assert manifest["members"] == {
        name: {"size": len(members[name]), "sha256": sha256(members[name]).hexdigest()}
        for name in others
    }
    assert manifest["machtrace"]


def test_the_report_is_the_one_in_json(folder):
    report = json.loads(evidence(folder)[REPORT])
    assert report == json.loads(audit(folder, "run", "-f", "json").stdout)


def test_columns_have_every_call_with_its_stack_library_and_time(folder):
    members = evidence(folder)
    tables = json.loads(members["tables.json"])
    stack, library = column(members, "calls/stack"), column(members, "calls/library")
    parent, image = column(members, "stacks/parent"), column(members, "stacks/image")
    offset = column(members, "stacks/offset")
    process = column(members, "calls/process")
    calls = []
    for row in range(len(stack)):
        frames = []
        node = stack[row]
        while node:
            frames.append((tables["images"][image[node]]["id"], int(offset[node])))
            node = parent[node]
        calls.append((tables["processes"][process[row]]["build"], frames))
        assert tables["rules"][column(members, "calls/rule")[row]] == "observed"
    by_app, by_sdk = (0x1A0,), (0x40,)
    assert sorted(calls) == [
        (NEW.hex(), [(NEW.hex(), *by_app)]),
        (NEW.hex(), [((b"s" * 16).hex(), *by_sdk)]),
        (OLD.hex(), [(OLD.hex(), *by_app)]),
        (OLD.hex(), [(OLD.hex(), *by_app)]),
    ]
    names = [tables["libraries"][number] for number in library.tolist()]
    assert sorted(names) == ["Demo", "Demo", "Demo", "libsdk"]
    offsets = np.array([each["wall_offset"] for each in tables["processes"]])
    times = column(members, "calls/time") + offsets[process]
    assert times.min() == writer.STARTED + 1_000_000
    assert all(each["wall_error"] > 0 for each in tables["processes"])
    assert set(column(members, "calls/judged_consent").tolist()) == {tables["consent"]["before"]}


def test_the_rules_are_those_that_were_used(folder):
    members = evidence(folder)
    assert members["rules/0-rules.toml"] == (folder / "rules.toml").read_bytes()
    (row,) = json.loads(members["tables.json"])["rule_files"]
    digest = sha256(members["rules/0-rules.toml"]).hexdigest()
    assert row["sha256"] == digest == json.loads(members[REPORT])["rules"]["sha256"]


def test_equal_audits_have_equal_files(folder):
    contents = []
    for _ in range(2):
        evidence(folder)
        contents.append((folder / "run.audit").read_bytes())
    assert contents[0] == contents[1]


def test_evidence_is_a_baseline(folder):
    evidence(folder)
    last = folder / "last.json"
    last.write_text(audit(folder, "run", "-f", "json").stdout, encoding="utf-8")
    (folder / "phone" / "old.spool").unlink()
    (folder / "phone" / "new.spool").write_bytes(spool(NEW, [BY_SDK]))
    by_evidence = audit(folder, "run", "--baseline", folder / "run.audit")
    by_json = audit(folder, "run", "--baseline", last)
    assert by_evidence.stdout == by_json.stdout
    assert by_evidence.return_value == by_json.return_value == 0
    assert "gone: Demo called observed" in by_evidence.stdout


def test_what_cannot_be_written_is_an_error_and_leaves_nothing(folder):
    result = audit(folder, "run", "-o", folder / "none" / "run.audit")
    assert result.return_value == 2
    assert "run.audit" in result.stderr
    (folder / "run.audit").mkdir()
    assert audit(folder, "run", "-o", folder / "run.audit").return_value == 2
    assert not any((folder / "run.audit").iterdir())


def archive(*members, method=zipfile.ZIP_DEFLATED):
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", method) as file:
        for name, data in members:
            file.writestr(name, data)
    return sink.getvalue()


def manifest(report, **changes):
    entry = {"size": len(report), "sha256": sha256(report).hexdigest()}
    document = {"schema": 1, "kind": "audit-evidence", "members": {REPORT: entry}} | changes
    return MANIFEST, json.dumps(document)


EMPTY = b'{"findings": []}'
WHOLE = archive((REPORT, EMPTY), manifest(EMPTY))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (archive((REPORT, b'{"findings": [1]}'), manifest(EMPTY)), "not the one"),
        (archive((REPORT, EMPTY)), "0 members are named manifest.json"),
        (archive((f"../{REPORT}", EMPTY), manifest(EMPTY)), "0 members are named report.json"),
        (archive((REPORT, EMPTY), manifest(EMPTY, kind="other")), "another kind"),
        (archive((REPORT, EMPTY), (MANIFEST, "[" * 100_000)), "manifest is damaged"),
        (archive((REPORT, EMPTY), (MANIFEST, "[]")), "manifest is damaged"),
        (archive((REPORT, b" " * 10_000_000), manifest(EMPTY)), "10,000,000 bytes"),
        (archive((REPORT, EMPTY), manifest(EMPTY), method=zipfile.ZIP_LZMA), "method 14"),
        (WHOLE[:-40], "not evidence"),
    ],
)
def test_changed_evidence_is_refused(data, reason, tmp_path):
    with pytest.raises(FormatError, match=reason):
        report_of_evidence(memoryview(data), "last.audit", 1_000_000)
    path = tmp_path / "last.audit"
    path.write_bytes(data)
    with pytest.raises(MachtraceError):
        compare([], path)
    assert list(tmp_path.iterdir()) == [path]


def test_two_reports_are_refused():
    with pytest.warns(UserWarning, match="Duplicate"):
        data = archive((REPORT, EMPTY), (REPORT, EMPTY), manifest(EMPTY))
    with pytest.raises(FormatError, match="2 members"):
        report_of_evidence(memoryview(data), "last.audit", 1_000_000)


def test_a_report_that_unpacks_to_more_than_it_states_is_refused():
    bomb = b"0" * 20_000_000
    data = archive((REPORT, bomb), manifest(bomb))
    stated = data.replace(len(bomb).to_bytes(4, "little"), (1000).to_bytes(4, "little"))
    assert stated != data
    with pytest.raises(FormatError, match="more than the 1,000 bytes"):
        report_of_evidence(memoryview(stated), "last.audit", 1_000_000)


def test_any_changed_byte_gives_the_report_or_an_error():
    seed = random.Random(11)  # noqa: S311 - damage is no secret
    for _ in range(400):
        data = bytearray(WHOLE)
        for _ in range(seed.choice((1, 2, 8))):
            data[seed.randrange(len(data))] = seed.randrange(256)
        try:
            assert report_of_evidence(memoryview(bytes(data)), "last.audit", 1000) == EMPTY
        except MachtraceError:
            continue
