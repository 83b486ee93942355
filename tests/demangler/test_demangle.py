"""The language of a mangled name, and the cache of results."""

from __future__ import annotations

import subprocess
import sys

import pytest

from machtrace.demangler import demangle, may_be_mangled


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("_ZN6Player4playEi", "Player::play(int)"),
        ("__ZN6Player4playEi", "Player::play(int)"),
        ("_RNvC6_123foo3bar", "123foo::bar"),
        ("__RNvC6_123foo3bar", "123foo::bar"),
        ("_ZN4main4main17h0123456789abcdefE", "main::main::h0123456789abcdef"),
        ("$s4main3FooC3baryyF", "main.Foo.bar() -> ()"),
        ("_$s4main3FooC3baryyF", "main.Foo.bar() -> ()"),
        ("_T04main3FooC3baryyF", "main.Foo.bar() -> ()"),
        ("__T04main3FooC3baryyF", "main.Foo.bar() -> ()"),
    ],
)
def test_a_names_beginning_tells_its_language(name, full):
    """With and without the underscore that Mach-O puts first."""
    assert full == demangle(name)
    assert may_be_mangled(name)


@pytest.mark.parametrize(
    "name", ["main", "_main", "-[Foo bar]", "runtime.main", "__TMpV", "_Table"]
)
def test_other_names_stay_as_they_are(name):
    """In both styles."""
    for simplified in (False, True):
        assert name == demangle(name, simplified=simplified)


def test_styles_are_kept_apart():
    """An answer that is remembered is that of its style."""
    for _ in range(2):
        assert demangle("_Z1fi") == "f(int)"
        assert demangle("_Z1fi", simplified=True) == "f"


def test_names_of_any_length_get_an_answer():
    """A megabyte is no name."""
    name = "_Z" + "1f" * (1 << 19)

    assert name == demangle(name)


@pytest.mark.peer
def test_a_language_is_loaded_when_it_is_met():
    """Programs that demangle no name import no demangler."""
    code = (
        "import sys; from machtrace.demangler import demangle; demangle('main');"
        "print([name for name in sys.modules if 'demangle.' in name and 'style' not in name])"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
