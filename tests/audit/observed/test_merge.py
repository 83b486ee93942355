"""`audit merge` with spools whose calls, builds and devices are known."""

import json
import random
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner

from machtrace.audit.observed import recording as stack_union
from machtrace.audit.observed.recording import GrowingUnion
from machtrace.audit.trail.stacks import tree_of
from machtrace.cli.application import app
from tests.audit.observed import fleet
from tests.audit.observed.builds import BY_APP, BY_SDK, NEW, OLD, RULES, spool

SCHEMA = json.loads(Path("docs/audit.schema.json").read_text(encoding="utf-8"))


@pytest.fixture
def folder(tmp_path):
    """Two phones with two builds; the library is used in the new one alone."""
    (tmp_path / "rules.toml").write_text(RULES, encoding="utf-8")
    for phone in ("phone-1", "phone-2"):
        (tmp_path / "fleet" / phone / "runs").mkdir(parents=True)
    place = tmp_path / "fleet"
    (place / "phone-1" / "b.spool").write_bytes(spool(OLD, [BY_APP, BY_APP]))
    (place / "phone-2" / "runs" / "a.spool").write_bytes(spool(OLD, [BY_APP], day=1))
    (place / "phone-1" / "a.spool").write_bytes(spool(NEW, [BY_SDK], day=2))
    return tmp_path


def merge(folder, *words):
    rules = ["--rules", str(folder / "rules.toml")]
    words = ["audit", "merge", *rules, *map(str, words)]
    return CliRunner().invoke(app, words, standalone_mode=False)


def document(folder, *words):
    result = merge(folder, folder / "fleet", "--format", "json", *words)
    assert result.exception is None, result.output
    report = json.loads(result.stdout)
    jsonschema.validate(report, SCHEMA)
    return result.return_value, report


def test_findings_have_the_builds_and_devices_that_they_were_seen_in(folder):
    status, report = document(folder)
    assert status == 1
    assert [(build["id"], build["app"], build["devices"]) for build in report["builds"]] == [
        (OLD.hex(), "Demo", 2),
        (NEW.hex(), "Demo", 1),
    ]
    seen = {
        finding["library"]: (
            finding["calls"],
            finding["builds"],
            finding["devices"],
            finding["between_builds"],
        )
        for finding in report["findings"]
    }
    assert seen == {
        "Demo": (3, [OLD.hex()], ["phone-1", "phone-2"], "gone"),
        "libsdk": (1, [NEW.hex()], ["phone-1"], "new"),
    }
    text = merge(folder, folder / "fleet").stdout
    assert "    in 1 of 2 builds, on 2 of 2 devices; not in the newest build\n" in text
    assert "    in 1 of 2 builds, on 1 of 2 devices; new since the oldest build\n" in text
    page = merge(folder, folder / "fleet", "-f", "html").stdout
    assert "Seen in 1 of 2 builds, on 2 of 2 devices; not in the newest build" in page
    (run,) = json.loads(merge(folder, folder / "fleet", "-f", "sarif").stdout)["runs"]
    messages = [result["message"]["text"] for result in run["results"]]
    assert sum(message.endswith("; new since the oldest build") for message in messages) == 1


def test_a_folder_with_spools_is_a_device(folder):
    _, report = document(folder, folder / "fleet" / "phone-1")
    assert {process["device"] for process in report["processes"]} == {"phone-1", "phone-2"}
    # A spool is read once, by whichever folder came first.
    assert len(report["processes"]) == 3
    result = merge(folder, folder / "fleet" / "phone-1", "-f", "json")
    assert {process["device"] for process in json.loads(result.stdout)["processes"]} == {"phone-1"}


def test_damaged_spools_are_reported_and_others_are_read(folder):
    damaged = folder / "fleet" / "phone-2" / "damaged.spool"
    for content in (b"", b"no spool", spool(NEW, [BY_SDK])[:100]):
        damaged.write_bytes(content)
        status, report = document(folder)
        assert status == 2
        assert len(report["processes"]) == 3
        assert any(
            "damaged.spool" in problem and "left out" in problem for problem in report["problems"]
        )


def test_what_has_no_spools_cannot_be_judged(folder):
    (folder / "empty").mkdir()
    assert merge(folder, folder / "empty").return_value == 2
    assert merge(folder, folder / "none").return_value == 2
    assert merge(folder, folder / "rules.toml").return_value == 2


@pytest.mark.live
def test_processes_that_share_the_work_read_the_same(folder):
    for number in range(40):
        data = spool(NEW if number % 3 else OLD, [BY_APP, BY_SDK], day=number)
        (folder / "fleet" / f"{number}.spool").write_bytes(data)
    assert document(folder, "--jobs", 2) == document(folder, "--jobs", 1)


def test_a_union_that_grows_has_the_stacks_of_all_trees(monkeypatch):
    monkeypatch.setattr(stack_union, "_MIN_PENDING", 50)
    seed = random.Random(3)  # noqa: S311 - stacks are no secret
    union, expected = GrowingUnion(), []
    for _ in range(30):
        stacks = [
            [(seed.randrange(3), seed.randrange(4)) for _ in range(seed.randrange(6))]
            for _ in range(12)
        ]
        tree, nodes = tree_of(stacks)
        columns = {"stack": nodes}
        union.add(tree, columns)
        expected.append((stacks, columns))
    tree = union.tree()
    tree.check(3)
    for stacks, columns in expected:
        assert [tree.frames(node) for node in columns["stack"].tolist()] == stacks
    rows = np.stack((tree.parent, tree.image, tree.offset.astype(np.int32)), axis=1)
    assert len(np.unique(rows, axis=0)) == len(tree)


@pytest.mark.live
def test_a_generated_fleet_is_read_as_it_was_written(tmp_path):
    size = fleet.fleet(tmp_path, 2, 3, 40)
    words = ["audit", "merge", str(tmp_path / "phones"), "-f", "json"]
    words += ["--search", str(tmp_path / "apps")]
    report = json.loads(CliRunner().invoke(app, words, standalone_mode=False).stdout)
    jsonschema.validate(report, SCHEMA)
    calls = sum(
        row["without_consent"] + row["with_consent"] + row["unstated"] for row in report["calls"]
    )
    assert calls == size.stacks + size.repeats
    assert [(build["processes"], build["devices"]) for build in report["builds"]] == [(2, 2)] * 3
    frames = [
        frame
        for finding in report["findings"]
        for stack in finding["stacks"]
        for frame in stack["frames"]
        if frame["image"].endswith("/Demo")
    ]
    assert frames
    assert all(frame["function"].startswith("app_") for frame in frames)


def test_older_spools_of_a_process_are_read_and_have_its_consent(folder):
    place = folder / "fleet" / "phone-3"
    place.mkdir()
    # State 3: the process began another spool. The mark of consent is in the older one.
    older = spool(OLD, [BY_APP, BY_SDK], state=3, mark="agreed")
    (place / "run.spool.1").write_bytes(older)
    (place / "run.spool").write_bytes(spool(OLD, [BY_SDK], ticks=9_000_000))
    (place / "run.spool.next").write_bytes(b"")
    (place / "run.spool.gz").write_bytes(b"")
    words = ["--format", "json", "--consent", "mark:agreed"]
    report = json.loads(merge(folder, place, *words).stdout)
    assert len(report["processes"]) == 2
    rows = {call["library"]: call for call in report["calls"]}
    assert (rows["Demo"]["without_consent"], rows["Demo"]["with_consent"]) == (1, 0)
    assert (rows["libsdk"]["without_consent"], rows["libsdk"]["with_consent"]) == (0, 2)
    # A spool that ended with its process has no successor.
    (place / "run.spool.1").write_bytes(spool(OLD, [BY_APP, BY_SDK], mark="agreed"))
    report = json.loads(merge(folder, place, *words).stdout)
    rows = {call["library"]: call for call in report["calls"]}
    assert (rows["libsdk"]["without_consent"], rows["libsdk"]["with_consent"]) == (1, 1)
