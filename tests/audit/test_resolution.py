"""Every rule is answered for a target, with the evidence or with what is missing."""

import json
from collections import Counter

import pytest
from click.testing import CliRunner

from machtrace.audit.resolution import Resolution, resolve_rules
from machtrace.audit.rules import load_rules
from machtrace.cli.audit.commands import audit
from tests.audit.apps import LLD

SYSTEM = """
@interface NSObject @end
@implementation NSObject @end
@interface Base : NSObject @end
@implementation Base
- (id)identifierForVendor { return 0; }
@end
@interface UIDevice : Base @end
@implementation UIDevice
- (id)name { return self; }
- (id)model { return self; }
- (int)batteryLevel { return 7; }
@end
int stat(void) { return 1; }
__asm__(".globl _lstat\\n.set _lstat, _stat");
int getattrlist(void) { return 2; }
"""
"""A system framework: a method of a superclass, methods with the same code, functions at one
address."""
RULES = """
schema = 1
rules = [
  {watch = "-[UIDevice identifierForVendor]", category = "x"},
  {watch = "-[UIDevice name]", category = "x"},
  {watch = "-[UIDevice batteryLevel]", category = "x"},
  {watch = "+[UIDevice batteryLevel]", category = "x"},
  {watch = "-[UIDevice orientation]", category = "x"},
  {watch = "stat", category = "x"},
  {watch = "lstat", category = "x"},
  {watch = "getattrlist", category = "x"},
  {watch = "statfs", category = "x"},
  {watch = "/etc/hosts", category = "x"},
]
"""


@pytest.fixture
def rules(tmp_path):
    (tmp_path / "rules.toml").write_text(RULES)
    return load_rules(tmp_path / "rules.toml")


@pytest.mark.peer
def test_a_target_that_defines_what_is_watched(zig, llvm, tmp_path, rules):
    unit = zig("system.o", SYSTEM, "arm64-apple-ios15.0", "-c", "-w", "-x", "objective-c", "-O1")
    library = tmp_path / "UIKitCore"
    llvm("ld64.lld", "-arch", "arm64", *LLD, "-dylib", "--icf=all", "-o", library, unit)
    answers = {answer.rule.watch: answer for answer in resolve_rules(library, rules).answers}
    states = {watch: each.resolution.value for watch, each in answers.items()}
    assert states == {
        "-[UIDevice identifierForVendor]": "inherited",
        "-[UIDevice name]": "shared",
        "-[UIDevice batteryLevel]": "resolved",
        "+[UIDevice batteryLevel]": "absent",
        "-[UIDevice orientation]": "absent",
        "stat": "shared",
        "lstat": "shared",
        "getattrlist": "resolved",
        "statfs": "absent",
        "/etc/hosts": "absent",
    }
    assert answers["-[UIDevice identifierForVendor]"].others == ("-[Base identifierForVendor]",)
    assert "-[UIDevice model]" in answers["-[UIDevice name]"].others
    assert answers["stat"].others == ("lstat",)


@pytest.mark.peer
def test_a_target_that_refers_to_what_is_watched(images):
    answers = resolve_rules(images / "App", load_rules())
    assert not answers.problems
    resolved = {
        answer.rule.watch: answer.reason
        for answer in answers.answers
        if answer.resolution is not Resolution.ABSENT
    }
    assert resolved == {
        "ABAddressBookCopyArrayOfAllPeople": "App imports it",
        "mach_absolute_time": "App imports it",
    }
    assert len(answers.answers) == len(load_rules())


@pytest.mark.peer
def test_every_rule_is_answered_with_a_reason(images):
    done = CliRunner().invoke(
        audit, ["rules", str(images), "--format", "json"], standalone_mode=False
    )
    document = json.loads(done.output)
    assert done.return_value == 0
    assert all(row["reason"] for row in document["rules"])
    assert Counter(row["watch"] for row in document["rules"]) == Counter(
        rule.watch for rule in load_rules().rules
    )


@pytest.mark.peer
def test_the_command_counts_the_answers(images):
    done = CliRunner().invoke(audit, ["rules", str(images / "App")], standalone_mode=False)
    last = done.output.splitlines()[-1]
    assert last == "371 rules: 2 resolved, 0 inherited, 0 shared, 369 absent, in 1 image"


def test_a_missing_target_cannot_be_judged(tmp_path):
    done = CliRunner().invoke(audit, ["rules", str(tmp_path / "no.app")], standalone_mode=False)
    assert done.return_value == 2
