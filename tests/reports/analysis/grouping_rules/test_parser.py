"""Files of grouping rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machtrace.errors import RulesError
from machtrace.reports.analysis.grouping_rules import builtin_rules, parse_rules
from machtrace.reports.analysis.grouping_rules.rules import Field, FlagAction, Part, Reach


def stack_rule(line):
    """Return the only rule of a line."""
    (rule,) = parse_rules(line, "team.rules").stack
    return rule


def parts_of(line):
    """Return the parts of the only fingerprint of a line."""
    (rule,) = parse_rules(line, "team.rules").fingerprints
    return rule.parts


def test_comments_and_empty_lines_are_skipped():
    """Rules know their lines."""
    rules = parse_rules("# ours\n\n  function:a -app  # why\r\nfunction:b -> c\n", "team.rules")
    assert [(rule.source, rule.line, rule.text) for rule in rules] == [
        ("team.rules", 3, "function:a -app  # why"),
        ("team.rules", 4, "function:b -> c"),
    ]
    assert len(rules) == 2


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("function", Field.FUNCTION),
        ("stack.function", Field.FUNCTION),
        ("package", Field.PACKAGE),
        ("stack.package", Field.PACKAGE),
        ("path", Field.PATH),
        ("stack.abs_path", Field.PATH),
        ("module", Field.MODULE),
        ("stack.module", Field.MODULE),
        ("category", Field.CATEGORY),
        ("family", Field.FAMILY),
        ("type", Field.TYPE),
        ("error.type", Field.TYPE),
        ("value", Field.VALUE),
        ("error.value", Field.VALUE),
        ("message", Field.VALUE),
        ("mechanism", Field.MECHANISM),
        ("error.mechanism", Field.MECHANISM),
    ],
)
def test_matchers_and_their_aliases(name, field):
    """Names may be quoted."""
    for spelling in (name, f'"{name}"'):
        matchers = stack_rule(f"{spelling}:x -group").matchers
        (matcher,) = matchers.cause or matchers.own
        assert matcher.field is field
        assert not matcher.is_negated


def test_negation_quotes_and_escapes():
    """A quoted value may contain blanks and quotes."""
    (matcher,) = stack_rule(r'!function:"operator \"\" x -> y" -group').matchers.own
    assert matcher.is_negated
    assert matcher.glob.pattern == 'operator "" x -> y'


def test_neighbours():
    """Brackets are around matchers of the caller or the callee."""
    matchers = stack_rule(
        "[ function:main !app:no ] | function:run | [ category:lock ] -group"
    ).matchers
    assert [matcher.field for matcher in matchers.caller] == [Field.FUNCTION, Field.APP]
    assert [matcher.field for matcher in matchers.own] == [Field.FUNCTION]
    assert [matcher.field for matcher in matchers.callee] == [Field.CATEGORY]


def test_actions():
    """Flags have a reach; settings have a value."""
    rule = stack_rule("family:native ^-app v+group -app category=lock max-frames = 3 min-frames=2")
    assert rule.flags == (
        FlagAction("app", is_set=False, reach=Reach.INWARDS),
        FlagAction("group", is_set=True, reach=Reach.OUTWARDS),
        FlagAction("app", is_set=False, reach=Reach.ITSELF),
    )
    assert (rule.category, rule.max_frames, rule.min_frames) == ("lock", 3, 2)


def test_parts_of_fingerprints():
    """Separated by blanks or commas; variables have aliases."""
    assert parts_of('type:X -> a, b "c d" {{ default }}{{stack.function}} "{{ error.type }}"') == (
        Part("a"),
        Part("b"),
        Part("c d"),
        Part("default", is_variable=True),
        Part("function", is_variable=True),
        Part("type", is_variable=True),
    )


def test_titles_of_fingerprints():
    """They contain variables."""
    (rule,) = parse_rules('type:X -> x title="In {{ function }}!"', "team.rules").fingerprints
    assert rule.title == (Part("In "), Part("function", is_variable=True), Part("!"))
    assert rule.parts == (Part("x"),)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("nonsense", "no matcher, such as function:abort, at 'nonsense'"),
        ("-app", "no matcher"),
        ("logger:x -app", "unknown matcher 'logger'"),
        ("function:x", "matchers without an action"),
        ("function:x -> ", "no fingerprint after ->"),
        ("function:x -grp", "unknown action at '-grp'"),
        ("function:x -app-group", "unknown action"),
        ("function:x +prefix", "unknown action"),
        ("function:x invert-stacktrace=1", "unknown action at 'invert-stacktrace=1'"),
        ("function:x max-frames=many", "max-frames is 'many'"),
        ("function:x max-frames=9999999", "max-frames is '9999999'"),
        ("function: -app", "'function' has no value"),
        ('function:"" -app', "'function' has no value"),
        ('function:"x -app', "the quoted value of 'function' does not end"),
        ("function:[a -app", "function: a [ without ]"),
        ("app:maybe +app", "app is 'maybe'"),
        ("family:a;b +app", "family is 'a;b'"),
        ("[ function:x | function:y -app", "no ] after matchers"),
        ("[function:x] | function:y -app", "no ] after matchers"),
        ("[ function:x ] function:y -app", "no | after the matchers of the caller"),
        ("function:y | function:x -app", "no [ before the matchers of the callee"),
        ("[ type:x ] | function:y -app", "a matcher of the exception is in brackets"),
        ("function:x -> {{ transaction }}", "unknown variable 'transaction'"),
        ("function:x -> {{ }}", "no part of a fingerprint"),
        ('function:x -> y title="{{ default }}"', "a title has no {{ default }}"),
    ],
)
def test_errors_have_the_line_and_a_remedy(line, problem):
    """The file is not applied in part."""
    with pytest.raises(RulesError) as error:
        parse_rules(f"# ours\nfunction:x -app\n{line}\nfunction:x -app", "team.rules")
    assert str(error.value).startswith(f"team.rules:3: {problem}")
    assert error.value.remedy


def test_the_size_of_files_is_limited():
    """Too long files and lines are errors, and too many rules."""
    for text in (" " * (1 << 20) + "#", "function:x -app\n" * 2001, "type:x -> " + "a " * 5000):
        with pytest.raises(RulesError):
            parse_rules(text, "team.rules")


def test_the_digest_is_the_text_s():
    """Another file with the same text has it; any change changes it."""
    rules = parse_rules("function:a -app", "team.rules")
    assert rules.digest == parse_rules("function:a -app", "other.rules").digest
    assert rules.digest != parse_rules("function:b -app", "team.rules").digest
    assert len(rules.digest) == 32


def test_the_built_in_rules():
    """They are rules of stacks, of native frames alone."""
    rules = builtin_rules()
    assert rules is builtin_rules()
    assert len(rules) > 20
    assert not rules.fingerprints
    for rule in rules.stack:
        assert rule.matchers.own[0].field is Field.FAMILY


_WORDS = (
    "function:",
    "app:",
    "!",
    "[",
    "]",
    "|",
    "->",
    "{{",
    "}}",
    '"',
    "\\",
    "-app",
    "^",
    "x",
    " ",
)


@given(st.lists(st.sampled_from(_WORDS) | st.text(max_size=6)).map("".join))
def test_any_text_is_rules_or_an_error(text):
    """No other exception."""
    try:
        rules = parse_rules(text, "team.rules")
    except RulesError:
        return
    assert len(rules) == len(list(rules))
