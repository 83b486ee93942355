"""Policies and libraries of a rules file: what they decide, and what is refused."""

import pytest

from machtrace.audit.findings import judge
from machtrace.audit.libraries import Library
from machtrace.audit.policies import Condition, Severity, parse_policies
from machtrace.audit.rules import load_rules
from machtrace.audit.scan.app import scan_app
from machtrace.errors import RulesError
from tests.audit.apps import assemble

ALL = ("before-consent: fault", "every < 30 s: warn", "background: note", "not in list: ignore")


def rules_of(tmp_path, text):
    path = tmp_path / "rules.toml"
    path.write_text(f'schema = 1\ninclude = ["privacy"]\n{text}')
    return load_rules(path)


def test_policies_are_read_as_they_are_written():
    policies = {policy.condition: policy for policy in parse_policies(ALL, "x")}
    assert policies[Condition.BEFORE_CONSENT].severity is Severity.FAULT
    assert policies[Condition.EVERY].seconds == 30
    assert policies[Condition.BACKGROUND].severity is Severity.NOTE
    assert policies[Condition.NOT_LISTED].severity is None
    assert str(policies[Condition.EVERY]) == "every < 30 s: warning"


@pytest.mark.parametrize(
    "lines",
    [
        ("before-consent",),
        ("sometimes: fault",),
        ("undeclared: perhaps",),
        ("every < s: warn",),
        ("every: warn",),
        ("undeclared: fault", "undeclared: warn"),
    ],
)
def test_what_is_no_policy_is_refused(lines):
    with pytest.raises(RulesError):
        parse_policies(lines, "x")


@pytest.mark.parametrize(
    "text",
    [
        "policies = 3",
        "allowed = [3]",
        "libraries = 3",
        "libraries = [{}]",
        'libraries = [{ name = "A" }]',
        'libraries = [{ name = "A", classes = "B" }]',
        'libraries = [{ name = "A", classes = [""] }]',
        'libraries = [{ name = "A", prefix = ["B"] }]',
    ],
)
def test_what_is_no_table_of_libraries_is_refused(tmp_path, text):
    with pytest.raises(RulesError):
        rules_of(tmp_path, text)


@pytest.mark.peer
@pytest.mark.parametrize("word", ["fault", "warn", "note", "ignore"])
def test_a_policy_states_the_severity_of_undeclared_calls(images, tmp_path, word):
    rules = rules_of(tmp_path, f'policies = ["undeclared: {word}"]')
    app = assemble(images, tmp_path / "Demo.app")
    report = judge(scan_app(app, rules), rules)
    severities = {
        finding.severity.value for finding in report.findings if finding.kind.value == "undeclared"
    }
    assert severities == {"warn": {"warning"}, "ignore": set()}.get(word, {word})


@pytest.mark.peer
def test_a_library_that_is_not_allowed_is_found(images, tmp_path):
    rules = rules_of(tmp_path, 'allowed = ["Demo"]')
    app = assemble(images, tmp_path / "Demo.app")
    identities = {finding.identity for finding in judge(scan_app(app, rules), rules).findings}
    assert "not-listed:Lottie:File timestamps" in identities
    assert not any(identity.startswith("not-listed:Demo") for identity in identities)


@pytest.mark.parametrize(
    ("name", "prefix"),
    [("AFURL", "AF"), ("AF2", "AF"), ("AF", "AF"), ("Affine", None), ("B", None)],
)
def test_a_prefix_of_classes_ends_where_a_word_begins(name, prefix):
    assert Library(name="x", classes=("AF",)).class_prefix(name) == prefix
