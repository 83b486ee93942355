"""`audit run` with spools of a program whose calls are known: two SDKs, threads, before main."""

import json
import os
import re
import subprocess
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from machtrace.audit.observed.consent import ConsentMarker, MarkerKind, parse_consent
from machtrace.audit.observed.process_calls import role_of_path
from machtrace.audit.trail.calls import Image, ImageRole
from machtrace.cli.application import app
from machtrace.errors import RulesError
from tests.agent.build import compiler, library
from tests.audit.observed.two_sdks import build_app

SCHEMA = json.loads(Path("docs/audit.schema.json").read_text(encoding="utf-8"))
THREADS, CALLS = 16, 200
AFTER = THREADS * CALLS
RULES = """
schema = 1
name = "test"
policies = ["before-consent: fault", {policies}]
{allowed}
[[rules]]
watch = "observed"
category = "Contacts"
[[rules]]
watch = "not_there"
category = "Contacts"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("observed")


@pytest.fixture(scope="module")
def spool(folder):
    """The spool of a run: libone calls libtwo, and so does a constructor of the program."""
    build_app(folder)
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library(folder)),
        "MACHTRACE_WATCH": "observed,not_there",
        "MACHTRACE_CONSENT": "agree",
        "MACHTRACE_SPOOL": str(folder / "app.spool"),
    }
    words = [str(folder / "app"), str(THREADS), str(CALLS)]
    subprocess.run(words, env=environment, check=True, timeout=60)
    return folder / "app.spool"


def rules_file(tmp_path, policies="", allowed=""):
    path = tmp_path / "rules.toml"
    path.write_text(RULES.format(policies=policies, allowed=allowed), encoding="utf-8")
    return str(path)


def audit(*words):
    return CliRunner().invoke(app, ["audit", "run", *map(str, words)], standalone_mode=False)


def document(*words):
    result = audit("--format", "json", *words)
    assert result.exception is None, result.output
    report = json.loads(result.stdout)
    jsonschema.validate(report, SCHEMA)
    return result.return_value, report


def by_library(report):
    return {
        (row["library"], row["owner"]): (row["without_consent"], row["with_consent"])
        for row in report["calls"]
    }


@pytest.mark.live
def test_every_call_has_its_library_and_its_consent(spool, tmp_path):
    status, report = document(spool, "--rules", rules_file(tmp_path))
    assert by_library(report) == {
        ("app", "app"): (1, AFTER),
        ("libone", "libone"): (2, AFTER),
        ("libtwo", "libone"): (2, AFTER),
        ("libtwo", "libtwo"): (3, 0),
    }
    assert status == 1
    assert [(finding["id"], finding["calls"]) for finding in report["findings"]] == [
        ("before-consent:app:observed", 1),
        ("before-consent:libone:observed", 2),
        ("before-consent:libtwo:observed", 5),
    ]
    assert [(each["watch"], each["reason"]) for each in report["dead"]] == [
        ("not_there", "nothing defines it")
    ]


@pytest.mark.live
def test_a_library_that_is_not_listed_is_reported(spool, tmp_path):
    rules = rules_file(tmp_path, "", 'allowed = ["app", "libone"]')
    _, report = document(spool, "--rules", rules)
    calls = {finding["id"]: finding["calls"] for finding in report["findings"]}
    assert calls["not in list:libtwo:observed"] == AFTER + 5
    assert not any(call.startswith("not in list:libone") for call in calls)


@pytest.mark.live
def test_calls_that_are_repeated_too_soon_are_counted(spool, tmp_path):
    _, report = document(spool, "--rules", rules_file(tmp_path, '"every < 60 s: warn"'))
    calls = {finding["id"]: finding["calls"] for finding in report["findings"]}
    # All but the first of a library.
    assert calls["every:app:observed"] == AFTER
    assert calls["every:libtwo:observed"] == AFTER + 4


@pytest.mark.live
def test_a_moment_of_consent_replaces_the_recorded_one(spool, tmp_path):
    rules = rules_file(tmp_path)
    _, never = document(spool, "--rules", rules, "--consent", "never")
    assert by_library(never)["app", "app"] == (AFTER + 1, 0)
    status, late = document(spool, "--rules", rules, "--consent", "mark:no such mark")
    assert by_library(late) == by_library(never)
    assert status == 1


@pytest.mark.live
def test_a_folder_of_spools_is_one_audit(spool, tmp_path):
    for number in range(2):
        (tmp_path / f"{number}.spool").write_bytes(spool.read_bytes())
    _, report = document(tmp_path, "--rules", rules_file(tmp_path))
    assert by_library(report)["libtwo", "libtwo"] == (6, 0)
    assert len(report["processes"]) == 2


@pytest.mark.live
def test_text_has_the_verdict_the_matrix_and_the_stacks(spool, tmp_path):
    text = audit(spool, "--rules", rules_file(tmp_path)).stdout
    total = 3 * AFTER + 8
    assert text.startswith(f"3 faults in {total:,} calls of 1 process\n")
    assert "fault: libtwo called observed (Contacts) 5 times without consent\n" in text
    assert "dead: not_there: nothing defines it (1 process)\n" in text


@pytest.mark.live
def test_an_earlier_report_leaves_what_is_new(spool, tmp_path):
    rules = rules_file(tmp_path)
    last = tmp_path / "last.json"
    last.write_text(audit(spool, "--rules", rules, "-f", "json").stdout, encoding="utf-8")
    status, report = document(spool, "--rules", rules, "--baseline", last)
    assert status == 0
    assert {finding["change"] for finding in report["findings"]} == {"repeated"}
    stricter = rules_file(tmp_path, "", 'allowed = ["app", "libone"]')
    status, report = document(spool, "--rules", stricter, "--baseline", last)
    assert status == 1
    changes = {finding["id"]: finding["change"] for finding in report["findings"]}
    assert changes["not in list:libtwo:observed"] == "new"
    words = ("--rules", rules_file(tmp_path), "--consent", "at:0s", "--baseline", last)
    status, report = document(spool, *words)
    assert (status, report["findings"]) == (0, [])
    assert len(report["gone"]) == 3
    assert "gone: libone called observed" in audit(spool, *words).stdout


@pytest.mark.live
def test_sarif_has_each_finding_with_its_stacks(spool, tmp_path):
    result = audit(spool, "--rules", rules_file(tmp_path), "-f", "sarif")
    (run_of_tool,) = json.loads(result.stdout)["runs"]
    results = {
        each["partialFingerprints"]["machtraceFinding/v1"]: each for each in run_of_tool["results"]
    }
    from_libone = results["before-consent:libone:observed"]
    assert (from_libone["level"], from_libone["occurrenceCount"]) == ("error", 2)
    assert from_libone["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] == "first"
    names = [frame["location"]["message"]["text"] for frame in from_libone["stacks"][0]["frames"]]
    assert names[0].startswith("libone.so  first + ")
    rule = run_of_tool["tool"]["driver"]["rules"][from_libone["ruleIndex"]]
    assert rule["id"] == from_libone["ruleId"] == "before-consent"


@pytest.mark.live
def test_the_page_needs_nothing_from_elsewhere(spool, tmp_path):
    page = audit(spool, "--rules", rules_file(tmp_path), "-f", "html").stdout
    assert "<title>Audit of app</title>" in page
    assert 'href="#cell-1-0"' in page
    assert 'id="cell-1-0"' in page
    assert "2 before" in page
    assert '<svg class="graph"' in page
    assert not re.search(r'(?:src|href)="(?!#)', page)
    assert "http:" not in page
    assert "https:" not in page


@pytest.fixture(scope="module")
def started(spool):
    """Options and words that start the program with the agent."""
    folder = spool.parent
    return ["--agent", library(folder)], [folder / "app", THREADS, CALLS]


@pytest.mark.live
def test_a_started_program_is_observed_from_its_first_initialiser(started, tmp_path):
    options, words = started
    rules = rules_file(tmp_path)
    status, report = document("--rules", rules, "--consent", "call:agree", *options, "--", *words)
    assert status == 1
    assert by_library(report)["libone", "libone"] == (2, AFTER)
    assert by_library(report)["libtwo", "libtwo"] == (3, 0)
    assert [process["from_start"] for process in report["processes"]] == [True]


@pytest.mark.live
def test_a_line_of_the_output_is_consent_in_all_processes_of_the_program(started, tmp_path):
    options, (app, *_) = started
    # The second run begins after the line was read: the program waits for it.
    script = f"{app} 1 1; echo the user agreed; sleep 0.5; {app} 1 1"
    rules = rules_file(tmp_path)
    words = ["--rules", rules, "--consent", "log:user agreed", *options, "--", "sh", "-c", script]
    _, report = document(*words)
    assert by_library(report)["libone", "libone"] == (3, 3)


@pytest.mark.live
def test_spools_of_a_started_program_stay_in_a_folder(started, tmp_path):
    options, words = started
    rules = rules_file(tmp_path)
    spools = tmp_path / "spools"
    audit("--rules", rules, "--spools", spools, *options, "--", *words)
    _, report = document(spools, "--rules", rules, "--consent", "never")
    assert by_library(report)["libone", "libone"] == (AFTER + 2, 0)


@pytest.mark.live
def test_a_program_that_cannot_load_the_agent_is_not_judged(started, folder, tmp_path):
    (options, _), output = started, folder / "static"
    source = tmp_path / "static.c"
    source.write_text("int main(void) { return 0; }")
    subprocess.run([compiler(), "-static", str(source), "-o", str(output)], check=True)
    result = audit("--rules", rules_file(tmp_path), *options, "--", output)
    assert result.return_value == 2
    assert "did not load the agent" in result.stderr


def test_spools_or_a_program_are_required(tmp_path):
    for words in ([], ["--"], [tmp_path, "--", "true"]):
        result = CliRunner().invoke(app, ["audit", "run", *map(str, words)])
        assert result.exit_code == 2
        assert "Usage" in result.stderr


@pytest.mark.parametrize("content", [None, b"", b"no spool"])
def test_what_is_no_spool_cannot_be_judged(tmp_path, content):
    path = tmp_path / "a.spool"
    if content is not None:
        path.write_bytes(content)
    assert audit(path).return_value == 2


@pytest.mark.parametrize(
    ("path", "role"),
    [
        ("/usr/lib/x86_64-linux-gnu/libc.so.6", ImageRole.SYSTEM),
        ("/System/Library/Frameworks/UIKit.framework/UIKit", ImageRole.SYSTEM),
        ("/opt/machtrace/libmachtrace.so", ImageRole.SYSTEM),
        ("/opt/app/libsdk.so.1.2", ImageRole.LIBRARY),
    ],
)
def test_images_of_the_system_are_known_by_their_path(path, role):
    assert role_of_path(path) is role
    assert role_of_path(path, is_program=True) is ImageRole.APP


@pytest.mark.parametrize(
    "path", ["/opt/libsdk.so.2", "/opt/libsdk.so", "/opt/libsdk.1.2.dylib", "/a/libsdk.dylib"]
)
def test_a_library_has_the_same_name_in_its_next_version(path):
    assert Image(path=path).name == "libsdk"


def test_moments_of_consent_are_parsed():
    assert parse_consent("at:12.5s") == ConsentMarker(MarkerKind.AT, seconds=12.5)
    assert parse_consent("mark:step 3") == ConsentMarker(MarkerKind.MARK, "step 3")
    call = "call:-[Agreement accept:now:]"
    assert parse_consent(call) == ConsentMarker(MarkerKind.CALL, call.removeprefix("call:"))
    assert parse_consent("key").mark == "consent"
    for text in ("at:soon", "at", "mark:", "never:", "key:x", "", "later"):
        with pytest.raises(RulesError):
            parse_consent(text)
