"""Fingerprints with grouping rules, and why frames count."""

from dataclasses import replace

import pytest

from machtrace.model.report import LanguageException, ReportedException
from machtrace.reports.analysis.explanation import FrameUse, explained
from machtrace.reports.analysis.fingerprint import FingerprintBasis, fingerprint
from machtrace.reports.analysis.frame_owner import OwnerReason
from machtrace.reports.analysis.grouping_rules import (
    Raised,
    builtin_rules,
    parse_rules,
    raised_of,
)
from machtrace.reports.analysis.grouping_rules.of_reports import without_parameters
from tests.support.reports.models import made_report, made_thread

CRASH = ("system:abort", "kit:fail.cold.1", "specialized run()", "system:start")
HASHES = {
    (): "a9f55b2d3accc7be",
    CRASH: "4261abda50ecaced",
    ("system:abort", "system:start"): "fae72ae2c59a4d0f",
    ("", "run"): "5d88cd5b82e0678f",
    ("a", "a", "b", "a", "b", *(f"f{at}x" for at in range(30))): "4031e5087259e6d7",
    ("-[A b]", "café"): "ac339f08358d58b7",
}
"""Stacks with their hashes before there were rules: stored groups have them."""


def ruled(text, *names, raised=None):
    """Return the fingerprint of a stack with rules."""
    report = made_report(made_thread(0, names, crashed=True))
    rules = None if text is None else parse_rules(text, "team.rules")
    return fingerprint(report.threads[0].frames, report, rules=rules, raised=raised)


def reasons(text, *names):
    """Return why each frame counts or not."""
    report = made_report(made_thread(0, names, crashed=True))
    rules = None if text is None else parse_rules(text, "team.rules")
    return explained(report.threads[0].frames, report, rules=rules)


@pytest.mark.parametrize("names", HASHES)
def test_hashes_without_rules_are_as_ever(names):
    """Rules that match nothing leave them, too."""
    assert ruled(None, *names).hash == HASHES[names]
    assert ruled("", *names) == ruled(None, *names)
    assert ruled("function:other -group -app", *names) == ruled(None, *names)


def test_rules_change_what_is_hashed():
    """A stack with a frame removed is the stack without it."""
    assert ruled("function:fail -group", *CRASH).hash == ruled(None, CRASH[2]).hash
    assert ruled("package:**/Kit -app", *CRASH).hash == ruled(None, CRASH[2]).hash
    assert ruled("function:abort +app", *CRASH).frames[0].reason is OwnerReason.RULE
    assert ruled("family:native max-frames=1", *CRASH).hash == ruled(None, CRASH[1]).hash


def test_a_limit_can_only_be_lowered():
    """The sixteen frames remain the most."""
    names = [f"f{at}x" for at in range(30)]
    assert ruled("family:native max-frames=20", *names) == ruled(None, *names)


def test_functions_have_several_spellings():
    """As reported, without what builds change, and without parameters."""
    for name in ('"specialized run()"', '"run()"', "run"):
        assert ruled(f"function:{name} -group", *CRASH).hash == ruled(None, CRASH[1]).hash


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("a::b(int, void (*)(char)) const", "a::b"),
        ("(anonymous namespace)::f(int)", "(anonymous namespace)::f"),
        ("operator()(int)", "operator()"),
        ("-[Demo run(x)]", "-[Demo run(x)]"),
        ("-[Demo run](x)", "-[Demo run](x)"),
        ("main", "main"),
        ("()", "()"),
        ("a)", "a)"),
    ],
)
def test_names_without_parameters(name, plain):
    """Objective-C's are as they are."""
    assert without_parameters(name) == plain


def test_a_frame_without_a_name_matches_by_its_image():
    """No pattern matches its function."""
    assert ruled("function:* -group\npackage:**/Demo category=x", "", "run").hash == (
        ruled(None, "").hash
    )
    assert ruled("package:**/Demo -app", "", "kit:run").hash == ruled(None, "kit:run").hash


def test_a_fingerprint_by_rule():
    """It covers its parts alone: other stacks share it."""
    both = [ruled("type:EXC_CRASH -> end, by-hand", *names) for names in (CRASH, ("x",))]
    assert both[0] == both[1]
    assert both[0].basis is FingerprintBasis.RULE
    assert not both[0].is_build_sensitive
    assert both[0].title == "end, by-hand"
    assert both[0].hash != ruled("type:EXC_CRASH -> end by hand", *CRASH).hash


def test_a_fingerprint_that_divides_groups():
    """``{{ default }}`` is the stack's own; alone it changes nothing."""
    alone = ruled("type:EXC_CRASH -> {{ default }}", *CRASH)
    assert alone == ruled(None, *CRASH)
    divided = ruled("type:* -> {{ default }} {{ type }}", *CRASH)
    assert divided.hash != alone.hash
    assert divided.frames == alone.frames
    other = ruled("type:* -> {{ default }} {{ type }}", *CRASH, raised=Raised(("Other",)))
    assert other.hash != divided.hash


def test_variables_are_of_the_innermost_frame_of_the_app():
    """A part without a value has a placeholder."""
    line = (
        "type:* -> {{ function }}, {{ package }}, {{ type }}, {{ value }}, {{ module }}, {{ path }}"
    )
    assert ruled(line, *CRASH).title == "fail, Kit, EXC_CRASH, <no-value>, <no-module>, <no-path>"


def test_titles():
    """They are the rule's."""
    titled = ruled('type:* -> {{ default }} title="Ended in {{ function }}"', *CRASH)
    assert titled.title == "Ended in fail"
    assert titled.hash == ruled(None, *CRASH).hash


def test_the_cause_of_a_report():
    """The most specific one is first."""
    report = replace(
        made_report(),
        exception=ReportedException(type="EXC_CRASH", signal="SIGABRT", subtype="KERN_X"),
        language_exception=LanguageException(name="NSRangeException", reason="beyond"),
    )
    assert raised_of(report) == Raised(
        ("NSRangeException", "EXC_CRASH", "SIGABRT"),
        ("beyond", "KERN_X"),
        ("exception", "mach", "signal"),
    )


def test_every_frame_is_explained():
    """Without rules, too."""
    frames = reasons(None, "system:abort", "", "run", "run", *(f"f{at}x" for at in range(20)))
    assert [frame.place for frame in frames] == list(range(24))
    assert [frame.use for frame in frames] == [
        FrameUse.NOT_APP,
        FrameUse.OFFSET,
        FrameUse.HASHED,
        FrameUse.RECURSION,
        *[FrameUse.HASHED] * 14,
        *[FrameUse.BEYOND] * 6,
    ]
    assert str(frames[0]) == "it is not the app's: it is where the system has its own"
    assert str(frames[2]) == "it counts: it is the program"
    assert all(frame.rule is None for frame in frames)


def test_explanations_have_the_rules():
    """With the line as written."""
    text = "function:abort +app category=end\nfunction:fail -group\npackage:**/Demo -app\n"
    frames = reasons(text, *CRASH)
    assert [(frame.use, frame.rule and frame.rule.line) for frame in frames] == [
        (FrameUse.HASHED, 1),
        (FrameUse.REMOVED, 2),
        (FrameUse.NOT_APP, 3),
        (FrameUse.NOT_APP, None),
    ]
    assert frames[0].category == "end"
    assert frames[0].is_app
    assert str(frames[0]) == (
        "it counts: a grouping rule decides (team.rules:1: function:abort +app category=end)"
    )
    assert str(frames[1]) == "a grouping rule removes it (team.rules:2: function:fail -group)"
    (limited,) = reasons("family:native max-frames=1", "a", "b")[1:]
    assert (limited.use, limited.rule.line) == (FrameUse.BEYOND, 1)


@pytest.mark.parametrize("names", HASHES)
@pytest.mark.parametrize(
    "text", [None, "function:f* -group", "app:yes max-frames=2", "app:yes -app"]
)
def test_explanations_agree_with_fingerprints(names, text):
    """The frames that count are those that are hashed."""
    hashed = {frame.place for frame in ruled(text, *names).frames}
    assert {reason.place for reason in reasons(text, *names) if reason.contributes} == hashed


def test_the_built_in_rules_remove_runtimes():
    """A program with the runtime linked into it, and a stack without frames of the app."""
    report = made_report(made_thread(0, ("abort", "fail", "system:start"), crashed=True))
    identity = fingerprint(report.threads[0].frames, report, rules=builtin_rules())
    assert [frame.name for frame in identity.frames] == ["fail"]
    names = ("system:__pthread_kill", "system:abort", "system:xpc_fail", "system:start")
    report = made_report(made_thread(0, names, crashed=True))
    identity = fingerprint(report.threads[0].frames, report, rules=builtin_rules())
    assert [frame.name for frame in identity.frames] == ["xpc_fail"]
    uses = explained(report.threads[0].frames, report, rules=builtin_rules())
    assert [use.category for use in uses] == ["end", "end", "", "base"]
