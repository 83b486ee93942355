"""Manifests, call sites and recorded calls, compared: each disagreement has a witness."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jsonschema
import pytest

from machtrace.audit.rules import load_rules
from machtrace.audit.scan.app import read_declarations, scan_app
from tests.audit.apps import PREFIX, assemble, declaring
from tests.audit.observed.test_run import SCHEMA, audit
from tests.support.writers import spool as writer

pytestmark = pytest.mark.peer
BASES = {"Demo": 0x1_0000_0000, "Lottie": 0x2_0000_0000}
TIME, STAT, SPACE = "mach_absolute_time", "stat", "statfs"


@pytest.fixture
def app(images, tmp_path):
    return assemble(images, tmp_path / "Demo.app", "Later")


def scanned(app):
    return {Path(image.path).name: image for image in scan_app(app, load_rules("privacy")).images}


def spool_of(app, folder, called):
    """Return a spool with a call from the first site of each (image, function)."""
    images, nodes, calls = scanned(app), [], []
    watches = enumerate((TIME, STAT, SPACE))
    log = [(writer.RULE, writer.rule(number, watch)) for number, watch in watches]
    for number, (name, base) in enumerate(BASES.items(), 1):
        image = images[name]
        uuid = bytes.fromhex(image.uuid.replace("-", ""))
        path = f"/private/var/containers/Bundle/Application/1/{image.path}"
        log.append((writer.IMAGE, writer.image(number, base, 0x8000, path, uuid, number == 1)))
    for row, (name, watch) in enumerate(called):
        site = next(each for each in images[name].scan.sites if each.rule.watch == watch)
        node = writer.node(0, BASES[name] + site.return_offset)
        nodes.append((name, site.return_offset))
        rule = (TIME, STAT, SPACE).index(watch)
        calls.append(writer.Call(2_000_000 + row, node, rule | 1 << 9))
    order = [*BASES]
    chains = b"".join(
        writer.varints(0, 1, 0, offset << 1 | 1, 1 + order.index(name)) for name, offset in nodes
    )
    if nodes:
        log.append((writer.NODES, chains))
    path = folder / "app.spool"
    path.write_bytes(writer.spool(log, [calls]))
    return path


def judged(app, folder, called, *words):
    result = audit(spool_of(app, folder, called), "--static", app, "--format", "json", *words)
    report = json.loads(result.stdout)
    jsonschema.validate(report, SCHEMA)
    findings = {finding["id"]: finding for finding in report["findings"]}
    return {name: each for name, each in findings.items() if "before-consent" not in name}


EVERYTHING = [("Demo", TIME), ("Demo", SPACE), ("Lottie", STAT)]


def test_declarations_are_read_without_code(app):
    (app / "PrivacyInfo.xcprivacy").write_bytes(declaring("SystemBootTime"))
    declarations = read_declarations(app)
    images = scanned(app)
    rules = {rule.watch: rule for rule in load_rules("privacy").rules}
    demo, lottie = (images[name].uuid.replace("-", "").lower() for name in BASES)
    assert declarations.undeclared(demo, rules[TIME]) == ()
    assert declarations.undeclared(demo, rules[SPACE]) == ("DiskSpace",)
    assert declarations.undeclared(lottie, rules[STAT]) == ("FileTimestamp",)
    assert declarations.undeclared("0" * 32, rules[STAT]) == ()


def test_observed_calls_that_nothing_declares_have_their_stack(app, tmp_path):
    findings = judged(app, tmp_path, EVERYTHING)
    assert {name: each["severity"] for name, each in findings.items()} == {
        f"undeclared:Demo:{TIME}": "fault",
        f"undeclared:Demo:{SPACE}": "fault",
        f"undeclared:Lottie:{STAT}": "fault",
    }
    for each in findings.values():
        assert each["calls"] == 1
        assert each["stacks"]
        assert PREFIX in each["message"]


def test_declared_calls_are_no_findings(app, tmp_path):
    (app / "PrivacyInfo.xcprivacy").write_bytes(declaring("SystemBootTime", "DiskSpace"))
    framework = app / "Frameworks" / "Lottie.framework"
    (framework / "PrivacyInfo.xcprivacy").write_bytes(declaring("FileTimestamp"))
    assert judged(app, tmp_path, EVERYTHING) == {}


def test_what_was_not_reached_has_its_sites(app, tmp_path):
    (app / "PrivacyInfo.xcprivacy").write_bytes(declaring("SystemBootTime"))
    findings = judged(app, tmp_path, [])
    assert {name: (each["severity"], each["calls"]) for name, each in findings.items()} == {
        f"undeclared-unreached:Demo:{SPACE}": ("warning", 0),
        f"undeclared-unreached:Lottie:{STAT}": ("warning", 0),
        f"declared-unreached:Demo:{TIME}": ("note", 0),
    }
    for name, each in findings.items():
        watch = name.rpartition(":")[2]
        assert {place["watch"] for place in each["occurrences"]} == {watch}
    assert len(findings[f"declared-unreached:Demo:{TIME}"]["occurrences"]) == 2


def test_a_declaration_in_vain_names_its_manifest(app, tmp_path):
    everything = declaring("SystemBootTime", "DiskSpace", "FileTimestamp")
    (app / "PrivacyInfo.xcprivacy").write_bytes(everything)
    framework = app / "Frameworks" / "Lottie.framework"
    (framework / "PrivacyInfo.xcprivacy").write_bytes(declaring("FileTimestamp"))
    findings = judged(app, tmp_path, EVERYTHING)
    (only,) = findings.values()
    assert only["id"] == f"declared-in-vain:Demo:{PREFIX}FileTimestamp"
    assert only["severity"] == "note"
    assert "Demo.app/PrivacyInfo.xcprivacy" in only["message"]


def test_policies_decide_on_disagreements(app, tmp_path):
    rules = tmp_path / "rules.toml"
    policies = ["undeclared: warn", "undeclared-unreached: ignore"]
    rules.write_text(
        f'schema = 1\nname = "ours"\ninclude = ["privacy"]\npolicies = {json.dumps(policies)}\n'
    )
    findings = judged(app, tmp_path, [("Demo", TIME)], "--rules", rules)
    assert {name: each["severity"] for name, each in findings.items()} == {
        f"undeclared:Demo:{TIME}": "warning"
    }


def test_images_of_another_build_are_not_compared(app, images, tmp_path):
    spool = spool_of(app, tmp_path, EVERYTHING)
    shutil.copy(images / "App", app / "Demo")
    result = audit(spool, "--static", app, "--format", "json")
    assert result.return_value == 2
    findings = {finding["id"] for finding in json.loads(result.stdout)["findings"]}
    assert f"undeclared:Demo:{TIME}" not in findings
    assert f"undeclared:Lottie:{STAT}" in findings


@pytest.mark.parametrize("form", ["text", "html", "sarif", "csv"])
def test_every_output_has_the_disagreements(app, tmp_path, form):
    spool = spool_of(app, tmp_path, [("Demo", TIME)])
    result = audit(spool, "--static", app, "--format", form)
    assert result.exception is None
    if form != "csv":
        assert f"{PREFIX}SystemBootTime" in result.stdout
        assert f"{PREFIX}DiskSpace" in result.stdout
