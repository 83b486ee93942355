"""`audit run emulated:demo`: an app with two SDKs, whose calls follow a script."""

import json
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from machtrace.cli.application import app

SCHEMA = json.loads(Path("docs/audit.schema.json").read_text(encoding="utf-8"))
BEFORE = [
    ("Advertising", "+[ASIdentifierManager sharedManager]", ()),
    (
        "Advertising",
        "-[ASIdentifierManager advertisingIdentifier]",
        ("by a jump, without a frame",),
    ),
    ("Advertising", "-[UIDevice name]", ("by name, through the system",)),
    ("Analytics", "-[UIDevice identifierForVendor]", ()),
    ("Analytics", "sysctlbyname", ()),
    ("Demo", "+[UIPasteboard generalPasteboard]", ()),
    ("Demo", "-[UIPasteboard string]", ()),
]
BACKGROUND = [
    ("Advertising", "-[CLLocationManager startUpdatingLocation]", ()),
    ("Analytics", "-[UIDevice identifierForVendor]", ()),
    ("Analytics", "getifaddrs", ()),
]
pytestmark = pytest.mark.emulated


def run(*options, target="emulated:demo"):
    return CliRunner().invoke(app, ["audit", "run", target, *options], standalone_mode=False)


def findings(document, condition):
    return [
        (
            finding["library"],
            finding["subject"],
            tuple(finding["stacks"][0]["circumstances"]),
        )
        for finding in document["findings"]
        if finding["kind"] == condition
    ]


def test_each_call_has_its_library_and_consent():
    result = run("--format", "json")
    assert result.return_value == 1
    document = json.loads(result.stdout)
    jsonschema.validate(document, SCHEMA)
    assert findings(document, "before-consent") == BEFORE
    assert findings(document, "background") == BACKGROUND


def test_all_call_sites_are_reached():
    assert "coverage: 11 of 11 call sites reached" in run().stdout


def test_consent_may_be_passed():
    """Without consent all calls are before; a method of the app may give it."""
    own = json.loads(run("--format", "json").stdout)
    call = json.loads(run("--consent", "call:-[Agreement accept]", "--format", "json").stdout)
    never = json.loads(run("--consent", "never", "--format", "json").stdout)
    assert findings(call, "before-consent") == findings(own, "before-consent")
    assert len(findings(never, "before-consent")) == 10


def test_consent_by_what_is_not_defined_is_not_judged():
    result = run("--consent", "call:-[Agreement agree]")
    assert result.return_value == 2
    assert "-[Agreement agree], which gives consent, is not defined there" in result.stderr


def test_a_recording_ends_by_the_emulated_clock():
    """The app is in the background from 6 s on, and shows its map 2 s after the start."""
    document = json.loads(run("--for", "5s", "--format", "json").stdout)
    assert findings(document, "before-consent") == BEFORE
    assert not findings(document, "background")
    assert document["unwatched"] == 0
    assert "coverage: 7 of 11 call sites reached" in run("--for", "1s").stdout


@pytest.mark.parametrize("form", ["html", "sarif", "csv"])
def test_every_format_has_the_libraries(form):
    result = run("--format", form)
    assert result.return_value == 1
    assert "Advertising" in result.stdout
    assert "identifierForVendor" in result.stdout


def test_rules_that_are_not_defined_are_counted():
    """The list is printed with --all."""
    assert "rules: nothing defines it" in run().stdout
    assert "--all lists them" in run().stdout
    assert "dead: -[UIDevice model]: nothing defines it (1 process)" in run("--all").stdout


@pytest.mark.parametrize("consent", ["key", "log:x", "mark:x"])
def test_moments_that_the_app_does_not_have_are_refused(consent):
    result = run("--consent", consent)
    assert result.return_value == 2
    assert "the emulated app has no" in result.stderr


def test_other_names_are_refused():
    result = run(target="emulated:other")
    assert result.return_value == 2
    assert "pass emulated:demo" in result.stderr
