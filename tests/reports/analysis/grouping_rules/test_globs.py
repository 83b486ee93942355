"""Globs of grouping rules."""

import re
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machtrace.reports.analysis.grouping_rules.globs import Glob, GlobError


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("malloc", "malloc", True),
        ("malloc", "malloc_zone", False),
        ("malloc", "Malloc", False),
        ("std::*", "std::vector::at", True),
        ("*::at", "std::vector::at", True),
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("[a-c]x", "bx", True),
        ("[!a-c]x", "bx", False),
        ("[[]a]", "[a]", True),
        ("[]]", "]", True),
        (r"-\[Demo *\]", "-[Demo run]", True),
        (r"a\*", "a*", True),
        (r"a\*", "ab", False),
        ("{raise,abort}", "abort", True),
        ("{raise,abort}", "about", False),
        ("x{,64}{a,b{c,d}}", "x64bd", True),
        (r"\{\{closure\}\}", "{{closure}}", True),
    ],
)
def test_names(pattern, text, matches):
    """A name's case counts, and slashes are characters like others."""
    assert Glob(pattern).matches(text) is matches


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("/usr/lib/*", "/usr/lib/libc.so", True),
        ("/usr/lib/*", "/usr/lib/system/libc.so", False),
        ("/usr/lib/**", "/usr/lib/system/libc.so", True),
        ("**/libc.so", "/usr/lib/libc.so", True),
        ("**/libc.so", "libc.so", True),
        ("**/libc.so", "/usr/lib/xlibc.so", False),
        ("libc.so", "libc.so", True),
        ("/libc.so", "libc.so", True),
        ("/*/usr", "/usr", False),
        ("**/project/**.c", "src/project/a/b.c", True),
        ("/var/**/Frameworks/**", "/var/Frameworks/Kit", True),
        ("/var/**/Frameworks/**", "/var/a/b/Frameworks/Kit", True),
        ("/var/**/Frameworks/**", "/var/a/xFrameworks/Kit", False),
        ("?:/windows/**", "C:\\Windows\\System32\\x.dll", True),
        ("C:\\Windows\\*", "c:/windows/x.dll", True),
        ("/a?b", "/a/b", False),
        ("/a[!x]b", "/a/b", False),
    ],
)
def test_paths(pattern, text, matches):
    """Case does not count; only ``**`` matches a slash."""
    assert Glob(pattern, is_path=True).matches(text) is matches


def test_case_can_be_ignored():
    """As for the reason of an exception."""
    assert Glob("Index * out", has_case=False).matches("index 3 OUT")


@pytest.mark.parametrize("pattern", ["[a", "{a,b", "a}", "{" * 9 + "}" * 9, "a" * 1025])
def test_malformed_patterns(pattern):
    """They are errors, not patterns that match nothing."""
    with pytest.raises(GlobError):
        Glob(pattern)


@given(st.text("ab*?", max_size=12), st.text("ab", max_size=12))
def test_names_as_fnmatch_has_them(pattern, text):
    """The standard library agrees."""
    assert Glob(pattern).matches(text) is fnmatchcase(text, pattern)


@given(
    st.text("ab/*", max_size=10).filter(lambda text: "**" not in text), st.text("ab/", max_size=12)
)
def test_paths_as_an_expression_has_them(pattern, text):
    """A regular expression agrees, for absolute paths."""
    expression = re.escape("/" + pattern).replace(r"\*", "[^/]*")
    matches = re.fullmatch(expression, "/" + text) is not None
    assert Glob("/" + pattern, is_path=True).matches("/" + text) is matches


@given(st.text("ab/*", max_size=10), st.text("ab/", max_size=12))
def test_two_stars_match_no_less_than_any_characters(pattern, text):
    """``**/`` matches no folder, too; otherwise ``**`` is any characters."""
    escaped = re.escape("/" + pattern)
    escaped = re.sub(r"(?:\\\*){2,}", ".*", escaped).replace(r"\*", "[^/]*")
    if re.fullmatch(escaped, "/" + text):
        assert Glob("/" + pattern, is_path=True).matches("/" + text)


def test_stars_do_not_multiply():
    """Patterns that take backtracking matchers exponential time."""
    assert not Glob("a*" * 400 + "b").matches("a" * 4000)
    assert not Glob("**/a*" * 200 + "b", is_path=True).matches("/a" * 2000)
    assert not Glob("{a,aa}*" * 100 + "b").matches("a" * 4000)
