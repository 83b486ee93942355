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
    ("name", "full", "simplified"),
    [
        ("_ZNSt6locale7classicEv@@GLIBCXX_3.4", "std::locale::classic()@@GLIBCXX_3.4", None),
        ("_Znwm@GLIBCXX_3.4", "operator new(unsigned long)@GLIBCXX_3.4", "operator new"),
        ("_Znwm@plt", "operator new(unsigned long)@plt", "operator new"),
        ("_RNvC6_123foo3bar@@BASE-1", "123foo::bar@@BASE-1", "123foo::bar"),
        ("$s4main3FooC3baryyF@@V1", "main.Foo.bar() -> ()@@V1", "Foo.bar()"),
        ("__imp__Z3foov", "import thunk for foo()", "import thunk for foo"),
        ("__imp___Z3foov", "import thunk for foo()", "import thunk for foo"),
        ("__imp__RNvC6_123foo3bar", "import thunk for 123foo::bar", None),
        ("__alloc_token__Znwm", "operator new(unsigned long) (.alloc_token)", "operator new"),
        ("___alloc_token_12__Znwm", "operator new(unsigned long) (.alloc_token)", "operator new"),
    ],
)
def test_what_tools_write_around_names(name, full, simplified):
    """The version of a symbol in ELF, and prefixes; the simplified form has no version."""
    assert demangle(name) == full
    assert demangle(name, simplified=True) == (simplified or full.removesuffix("()@@GLIBCXX_3.4"))
    assert may_be_mangled(name)


@pytest.mark.parametrize(
    "name",
    ["_Z9f@V1", "main@@GLIBC_2.34", "_Z1fv@", "_Z1fv@@1", "__imp_CreateFileW", "__alloc_token_x",
     "@_Z1fv", "__imp_", "__alloc_token_1_", "_Z1fv@@@V"],
)  # fmt: skip
def test_what_is_around_no_mangled_name(name):
    """They stay as they are, too."""
    for simplified in (False, True):
        assert name == demangle(name, simplified=simplified)


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
    for name in ("_Z1fv" + "@V" * 20_000, "__imp_" * 9000 + "_Z1fv"):
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
