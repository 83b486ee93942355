"""Grouping rules applied to a stack."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machtrace.reports.analysis.grouping_rules import Raised, RuleFrame, apply, parse_rules

STACK = "abort fail check run loop main"
"""The stack of most tests, innermost first; functions with an m are the app's."""


def applied(text, stack=STACK, *, app=("check", "run", "main"), raised=Raised()):  # noqa: B008
    """Apply rules to a stack of functions."""
    names = stack.split()
    frames = [
        RuleFrame(functions=(name,), package=f"/lib/{name}.so", path=f"/src/{name}.c")
        for name in names
    ]
    return apply(parse_rules(text, "team.rules"), frames, [name in app for name in names], raised)


def counting(text, stack=STACK, **named):
    """Return the functions that count."""
    verdicts = applied(text, stack, **named).verdicts
    return " ".join(
        name for name, one in zip(stack.split(), verdicts, strict=True) if one.contributes
    )


def of_app(text, stack=STACK, **named):
    """Return the app's functions."""
    verdicts = applied(text, stack, **named).verdicts
    return " ".join(name for name, one in zip(stack.split(), verdicts, strict=True) if one.is_app)


def test_without_a_rule_that_matches_owners_decide():
    """No rule is a reason."""
    assert counting("function:other -group") == "check run main"
    assert all(verdict.app_rule is verdict.group_rule is None for verdict in applied("").verdicts)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("function:run +app", "check run main"),
        ("function:fail +app", "fail check run main"),
        ("function:run -app", "check main"),
        ("function:run ^-app", "run main"),
        ("function:run v-app", "check run"),
        ("function:run ^-app -app", "main"),
        ("function:check v+app", "check run loop main"),
        ("function:run ^+app", "abort fail check run main"),
        ("app:no +app\nfunction:abort -app", "fail check run loop main"),
    ],
)
def test_marks_of_the_app(text, names):
    """``^`` is towards the crash, ``v`` towards the base of the thread."""
    assert of_app(text) == names
    assert counting(text) == names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("function:run -group", "check main"),
        ("function:fail +group", "fail check run main"),
        ("function:check ^+group", "abort fail check run main"),
        ("function:run v-group -group", "check"),
        ("function:run -group\nfunction:run +group", "check run main"),
        ("app:yes -group\nfunction:main +group", "main"),
    ],
)
def test_frames_added_and_removed(text, names):
    """They remain the app's or the system's."""
    assert counting(text) == names
    assert of_app(text) == "check run main"


def test_the_last_matching_frame_wins():
    """Frames act from the outermost on: callers are cut at the innermost frame of recursion."""
    assert of_app("function:a ^-app +app", "a b a c a d", app="abcd") == "a a a d"
    assert of_app("function:a v-app +app", "a b a c a d", app="abcd") == "a"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("[ function:run ] | function:* -group", "run main"),
        ("function:* | [ function:run ] -group", "check run main"),
        ("app:yes | [ app:yes ] -group", "check main"),
        ("[ app:yes ] | app:yes -group", "run main"),
        ("[ function:loop ] | function:run | [ function:check ] -group", "check main"),
        ("[ function:main ] | function:run -group", "check run main"),
        ("[ !function:run ] | app:yes -group", "check main"),
        ("[ app:no ] | app:yes -group", "check main"),
    ],
)
def test_neighbours(text, names):
    """A caller is the next frame outwards; the outermost frame has none."""
    assert counting(text) == names.strip()


@pytest.mark.parametrize(
    "text",
    [
        "family:native function:run -group",
        "family:javascript,native function:run -group",
        "family:all function:run -group",
        "package:**/run.so -group",
        "package:/LIB/run.so -group",
        "path:/src/r*.c -group",
        "!module:x function:run -group",
        "function:run app:yes -group",
        "function:run !app:no -group",
        "function:run type:EXC_CRASH -group",
        "function:run type:NSRangeException value:*BEYOND* mechanism:mach -group",
        "function:run !type:Other -group",
        "function:run category=busy\ncategory:busy -group",
        "function:loop category=busy\n[ category:busy ] | app:yes -group",
    ],
)
def test_matchers_that_match(text):
    """Each removes ``run``."""
    assert counting(text, raised=CAUSE) == "check main"


@pytest.mark.parametrize(
    "text",
    [
        "family:javascript function:run -group",
        "family:other function:run -group",
        "!family:native function:run -group",
        "module:* function:run -group",
        "function:RUN -group",
        "function:run app:no -group",
        "function:run type:exc_crash -group",
        "function:run !type:EXC_CRASH -group",
        "function:run value:beyond -group",
        "function:run mechanism:hang -group",
        "category:busy -group",
        "category:{,busy} -group",
        "function:run category:busy -group",
        "package:run.so -group",
    ],
)
def test_matchers_that_do_not(text):
    """No frame is removed."""
    assert counting(text, raised=CAUSE) == "check run main"


CAUSE = Raised(("NSRangeException", "EXC_CRASH"), ("index 3 beyond bounds",), ("mach",))


def test_a_category_is_the_last_rule_s():
    """It has its rule, and later rules see it."""
    verdicts = applied("function:r* category=a\nfunction:run category=b").verdicts
    assert [verdict.category for verdict in verdicts] == ["", "", "", "b", "", ""]
    assert verdicts[3].category_rule.line == 2


def test_rules_for_groups_see_the_final_marks():
    """As in Sentry: marks and categories of all rules are set before frames are chosen."""
    assert counting("function:run app:no -group\nfunction:run -app +group") == "check run main"
    assert counting("category:late -group\nfunction:run category=late") == "check main"


def test_each_verdict_has_its_rule():
    """The last one that wrote, whether or not it changed anything."""
    verdicts = applied("function:r* -app\nfunction:run +app\nfunction:main -group").verdicts
    assert verdicts[3].app_rule.line == 2
    assert verdicts[5].group_rule.line == 3
    assert str(verdicts[5].group_rule) == "team.rules:3: function:main -group"


def test_limits():
    """The last matching rule sets each; 0 is none."""
    assert applied("function:run max-frames=2").limit.frames == 2
    assert applied("family:native max-frames=1\nfunction:run max-frames=3").limit.frames == 3
    assert applied("family:native max-frames=1\nfunction:run max-frames=0").limit is None
    assert applied("function:other max-frames=2").limit is None


def test_too_few_frames_of_the_app():
    """With less than min-frames, all frames count; with -group, and less again, rules do not."""
    assert counting("family:native min-frames=3") == "check run main"
    assert counting("family:native min-frames=4") == STACK
    assert counting("family:native min-frames=4\nfunction:abort -group") == STACK[6:]
    assert not applied("family:native min-frames=4").without_frames
    both = "family:native min-frames=9\nfunction:run -group"
    assert counting(both) == "check run main"
    assert applied(both).without_frames


def test_a_stack_is_not_removed_as_a_whole():
    """A fingerprint of nothing would make all such reports one group."""
    assert counting("app:yes -group") == "abort fail loop"
    assert counting("family:native -group") == "check run main"
    assert counting("family:native -group", app=()) == STACK
    assert applied("family:native -group").without_frames


def test_a_stack_without_frames_of_the_app():
    """All frames count that rules leave."""
    assert counting("function:abort -group", app=()) == STACK[6:]
    assert counting("function:run -app\nfunction:main +group", app=("run",)) == STACK


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("function:run -> a\nfunction:run -> b", 1),
        ("function:other -> a\nfunction:run -> b", 2),
        ("function:run package:**/main.so -> a", None),
        ("type:EXC_CRASH -> a", 1),
        ("type:EXC_CRASH function:other -> a", None),
        ("type:EXC_OTHER function:run -> a", None),
        ("app:yes function:abort -> a\nfunction:abort +app", 1),
        ("[ function:main ] | function:loop -> a", 1),
    ],
)
def test_the_first_matching_fingerprint_is_set(text, line):
    """One frame must match all matchers of frames."""
    named = applied(text, raised=CAUSE).named
    assert line == (None if named is None else named.where.line)


def test_rules_of_two_files():
    """The second one's win; both are in the digest."""
    first = parse_rules("function:run -group\nfunction:run -> a", "a.rules")
    second = parse_rules("function:run +group\nfunction:run -> b", "b.rules")
    frames, are_app = [RuleFrame(functions=("run",))], [True]
    both = apply(first + second, frames, are_app)
    assert both.verdicts[0].group_rule.source == "b.rules"
    assert both.named.where.source == "b.rules"
    assert len({first.digest, second.digest, (first + second).digest}) == 3


_LINES = st.lists(
    st.builds(
        " ".join,
        st.tuples(
            st.sampled_from(("[ app:yes ] |", "[ function:a ] |", "")),
            st.sampled_from(("function:a", "function:[ab]", "app:no", "!app:no", "category:x")),
            st.sampled_from(("| [ function:b ]", "| [ category:x ]", "")),
            st.sampled_from(("+app", "^-app -app", "v+group", "-group ^+group", "category=x")),
        ),
    ),
    max_size=6,
)


@given(_LINES, st.text("abc", max_size=8), st.text("abc", max_size=2))
def test_any_rules_leave_frames(lines, stack, app):
    """Each frame has a verdict, and some frame counts."""
    result = applied("\n".join(lines), " ".join(stack), app=app)
    assert len(result.verdicts) == len(stack)
    assert any(verdict.contributes for verdict in result.verdicts) is bool(stack)


@given(
    st.lists(
        st.sampled_from(["+app", "-app", "^+app", "^-app", "v+app", "v-app"]),
        min_size=1,
        max_size=4,
    ),
    st.text("ab", max_size=7),
)
def test_reaches_are_those_of_single_steps(actions, stack):
    """Outermost matching frame first, each action in its order, written out."""
    expected = [False] * len(stack)
    for at in reversed(range(len(stack))):
        for action in actions if stack[at] == "a" else ():
            reach = {"^": range(at), "v": range(at + 1, len(stack))}.get(action[0], (at,))
            for place in reach:
                expected[place] = "+" in action
    result = applied(f"function:a {' '.join(actions)}", " ".join(stack), app=())
    assert [verdict.is_app for verdict in result.verdicts] == expected
