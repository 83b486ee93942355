"""C++ names, against a compiler's own and llvm-cxxfilt, and as hostile files may have them."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machtrace.demangler import demangle
from machtrace.demangler.itanium.demangler import (
    demangle_cplusplus,
    demangle_type,
    read_cplusplus,
)
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.tables.symtab import parse_symbols

SOURCE = Path(__file__).with_name("names.cpp")
CLANG = (
    "-target",
    "arm64-apple-macos13.0",
    "-x",
    "c++",
    "-std=c++2b",
    "-fblocks",
    "-ffreestanding",
)

NAMES = Path(__file__).with_name("cplusplus_names.txt")
TABLES = os.environ.get("MACHTRACE_DEMANGLE_TABLES")
"""The folder ``tests/conformance`` of the source archive of ``demangle``."""
BARE_TYPES = ("i", "PKFvRiE", "PVFvRmOE", "PFvRmOE")
"""Types in a table of names; no symbol is called so."""


def read_table(path: Path) -> dict[str, str]:
    """Return what a table has for each name."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        lines = [line.rstrip("\n").split("\t") for line in file if not line.startswith("#")]
    return {line[0]: line[1] for line in lines if len(line) > 1}


BETTER_THAN_LLVM = read_table(NAMES)


def test_names_that_llvm_misreads():
    """A template parameter that is referred to again is one of the template around it.

    That is how compilers write it (section 5.1.10), and constraints count all levels.
    """
    found = {name: read_cplusplus(name, simplified=False) or name for name in BETTER_THAN_LLVM}
    assert found == BETTER_THAN_LLVM
    assert {name: demangle(name) for name in BETTER_THAN_LLVM} == BETTER_THAN_LLVM


@pytest.mark.skipif(TABLES is None, reason="MACHTRACE_DEMANGLE_TABLES names no folder")
@pytest.mark.parametrize(
    "table",
    [
        "itanium-libcxxabi.txt.gz",  # what LLVM's demangler is tested with
        "itanium-real-world.txt",
        "itanium-libstdcxx.txt",
        "itanium-reference-defects.txt",
        "reported/itanium.txt",
    ],
)
def test_published_tables(table: str):
    """As printed there, but for names that LLVM misreads."""
    rows = read_table(Path(str(TABLES), table))
    assert rows
    expected = {
        name: name if name in BARE_TYPES else BETTER_THAN_LLVM.get(name, text)
        for name, text in rows.items()
    }
    wrong = {
        name: (found, text) for name, text in expected.items() if (found := demangle(name)) != text
    }
    assert wrong == {}


@pytest.fixture(scope="session")
def compiled_names(tmp_path_factory) -> list[str]:
    """The mangled names that clang makes of names.cpp."""
    if find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed; it compiles the names that are read here")
    result = tmp_path_factory.mktemp("names") / "names.o"
    command = [sys.executable, "-m", "ziglang", "clang", *CLANG, "-w", "-c", SOURCE, "-o", result]
    subprocess.run(command, check=True, timeout=240)
    symbols = parse_symbols(MachOFileContents(result.read_bytes(), "names.o"))
    names = {symbols.name(row) for row in range(len(symbols))}
    return sorted(name for name in names if name.startswith(("__Z", "____Z")))


@pytest.mark.peer
def test_a_compilers_names_are_what_llvm_writes(compiled_names):
    """One of every part of the grammar; where LLVM 19 errs, the source's name."""
    cxxfilt = shutil.which("llvm-cxxfilt-19")
    if cxxfilt is None:
        pytest.skip("llvm-cxxfilt-19 is not installed; it is the peer here")
    printed = subprocess.run(
        [cxxfilt, "-_"], input="\n".join(compiled_names), capture_output=True, text=True, check=True
    ).stdout.splitlines()
    expected = dict(zip(compiled_names, printed, strict=True))
    expected |= {name: text for name, text in BETTER_THAN_LLVM.items() if name in expected}

    assert len(compiled_names) > 200
    assert {name: demangle(name) for name in expected} == expected
    assert {name: read_cplusplus(name, simplified=False) for name in expected} == expected


@pytest.mark.parametrize(
    ("mangled", "full", "simplified"),
    [
        ("_Z1fv", "f()", "f"),
        ("__Z1fv", "f()", "f"),
        ("_ZN6Player4playEi", "Player::play(int)", "Player::play"),
        (
            "_ZNK3MapIiSsE4findERKi",
            "Map<int, std::string>::find(int const&) const",
            "Map<...>::find",
        ),
        ("_Z8identityIiET_S0_", "int identity<int>(int)", "identity<...>"),
        (
            "_ZNSt3__16vectorIiNS_9allocatorIiEEE9push_backEOi",
            "std::__1::vector<int, std::__1::allocator<int>>::push_back(int&&)",
            "std::vector<...>::push_back",
        ),
        ("_ZN3FooC1Ev", "Foo::Foo()", "Foo::Foo"),
        ("_ZN3FooD0Ev", "Foo::~Foo()", "Foo::~Foo"),
        ("_ZN3FoocvbEv", "Foo::operator bool()", "Foo::operator bool"),
        # The T_ of the conversion is its own argument, not that of the class around it.
        (
            "_ZN1AIZN1BcvN1CIT_EEIbEEvE1DE1fEv",
            "A<B::operator C<bool><bool>()::D>::f()",
            "A<...>::f",
        ),
        ("_ZTV3Foo", "vtable for Foo", "vtable for Foo"),
        ("_ZThn16_N3Foo3barEv", "non-virtual thunk to Foo::bar()", "non-virtual thunk to Foo::bar"),
        ("_ZN12_GLOBAL__N_11fEv", "(anonymous namespace)::f()", "(anonymous namespace)::f"),
        ("_ZZ4mainENK3$_0clEv", "main::$_0::operator()() const", "main::$_0::operator()"),
        (
            "_ZZ1fvENKUlT_E_clIiEEDaS_",
            "auto f()::'lambda'(auto)::operator()<int>(int) const",
            None,
        ),
        # GCC 12 writes a type as the scope of a value; LLVM 19 leaves these names as they are.
        (
            (
                "_ZSt4swapIiENSt9enable_ifIXsrSt6__and_IJSt6__not_ISt15__is_t"
                "uple_likeIT_EESt21is_move_"
                "constructibleIS4_ESt18is_move_assignableIS4_EEE5valueEvE4typeERS4_SE_"
            ),
            (
                "std::enable_if<std::__and_<std::__not_<std::__is_tuple_like<int>>, "
                "std::is_move_constructible<int>, std::is_move_assignable<int"
                ">>::value, void>::type "
                "std::swap<int>(int&, int&)"
            ),
            "std::swap<...>",
        ),
        (
            (
                "_ZNSt6chrono13duration_castINS_8durationIlSt5ratioILl1ELl100"
                "0000000EEEElS2_ILl1ELl1EEEE"
                "NSt9enable_ifIXsrNS_13__is_durationIT_EE5valueES8_E4typeERKNS1_IT0_T1_EE"
            ),
            (
                "std::enable_if<std::chrono::__is_duration<std::chrono::durat"
                "ion<long, std::ratio<1l, "
                "1000000000l>>>::value, std::chrono::duration<long, std::ratio<1l, 1000000000l>>>::"
                "type std::chrono::duration_cast<std::chrono::duration<long, "
                "std::ratio<1l, 1000000000l>>, "
                "long, std::ratio<1l, 1l>>(std::chrono::duration<long, std::ratio<1l, 1l>> const&)"
            ),
            "std::chrono::duration_cast<...>",
        ),
        # An I begins a pack in libstdc++'s names, as in those of GCC before 4.5.
        (
            "_ZNSt5dequeINSt10filesystem4_DirESaIS1_EE12emplace_backIIS1_EEERS1_DpOT_",
            (
                "std::filesystem::_Dir& std::deque<std::filesystem::_Dir, "
                "std::allocator<std::filesystem::_Dir>>::emplace_back<std::filesystem::_Dir>("
                "std::filesystem::_Dir&&)"
            ),
            "std::deque<...>::emplace_back<...>",
        ),
        # A lambda's auto is not the T of the function around it, though both are T_.
        (
            "_ZZ4callIiEvT_ENKUlS0_E_clIdEEDaS0_",
            "auto void call<int>(int)::'lambda'(auto)::operator()<double>(double) const",
            None,
        ),
        ("_ZNK4TextcvT_IPKcEEv", "Text::operator char const*<char const*>() const", None),
        # All qualifiers of a type are one part of the name.
        ("_Z1fPU3AS1U3AS2KiS0_", "f(int const AS2 AS1*, int const AS2 AS1*)", "f"),
        (
            "_Z1fDAsDRmDSDAjDSDRi",
            ("f(short _Accum, unsigned long _Fract, _Sat unsigned _Accum, _Sat _Fract)"),
            "f",
        ),
        ("_Z1fDB12_S_DF16_S_", "f(_BitInt(12), _BitInt(12), _Float16, _BitInt(12))", "f"),
        ("_Z1fILi1EJciEEDyT0_T_v", "(char, int)[1] f<1, char, int>()", "f<...>"),
        ("_Z1fIXcmLi1ELb1EEEvv", "void f<(1, true)>()", "f<...>"),
        ("_ZGRZN1A1fEvE1r", "reference temporary for A::f()::r", None),
        (
            "_ZTAXtl1StlA9_cLc72ELc7ELc1ELc49ELcn61ELcn87EEEE",
            ('template parameter object for S{"H\\a\\1""1é"}'),
            None,
        ),
        (
            "_ZTAXtl1StlA9_cLc31ELc97ELcn61EEEE",
            ('template parameter object for S{"\\x1F""a\\xC3"}'),
            None,
        ),
        # Constructors that are inherited: Clang does not count the class, GCC does.
        ("_ZN1DCI21CEN1C4KindES1_", "D::D(C::Kind, C::Kind)", "D::D"),
        ("_ZN1DCI21CENS0_4KindES1_", "D::D(C::Kind, C::Kind)", "D::D"),
        ("_ZN1DCI21CIiEET_", "D::D(int)", "D::D"),
        # Apple's Clang counts auto, unless that makes no sense; others do not.
        ("_Z3runIiEDaT_P5PlainS2_", "auto run<int>(int, Plain*, Plain*)", "run<...>"),
        ("__Z3runIiEDaT_P5PlainS3_", "auto run<int>(int, Plain*, Plain*)", "run<...>"),
        ("_Z3runIiEDaT_P5PlainS3_", "auto run<int>(int, Plain*, Plain*)", "run<...>"),
        ("__Z3runIiEDaP5PlainT_S0_", "auto run<int>(Plain*, int, Plain)", "run<...>"),
        ("__Z3runIiEDaT_S0_", "auto run<int>(int, int)", "run<...>"),
        # Nor does it count the variable that a lambda initialises; nor did GCC before 13.
        (
            "_ZNK6Holder3runMUlP5PlainE_clES2_",
            ("Holder::run::'lambda'(Plain*)::operator()(Plain*) const"),
            None,
        ),
        (
            "_ZNK6Holder3runMUlP5PlainE_clES1_",
            ("Holder::run::'lambda'(Plain*)::operator()(Plain*) const"),
            None,
        ),
        (
            "__ZNK6Holder3runMUlP5PlainE_clES2_",
            ("Holder::run::'lambda'(Plain*)::operator()(Plain*) const"),
            None,
        ),
        (
            "__ZNK6Holder3runMUlP5PlainE_clES1_",
            ("Holder::run::'lambda'(Plain*)::operator()(Plain*) const"),
            "Holder::run::'lambda'::operator()",
        ),
        ("_Z1fv.cold.1", "f() (.cold.1)", "f"),
        ("_Z1fv.isra.0.llvm.123", "f() (.isra.0.llvm.123)", "f"),
        ("_Z1fv$VARIANT$armv8", "f() ($VARIANT$armv8)", "f"),
        (
            "____ZN3Foo3barEv_block_invoke_2",
            "invocation function for block in Foo::bar()",
            "invocation function for block in Foo::bar",
        ),
        (
            "___Z1fv_block_invoke.cold.1",
            "invocation function for block in f() (.cold.1)",
            "invocation function for block in f",
        ),
    ],
)
def test_names_of_each_kind(mangled, full, simplified):
    """As the ABI's document explains them; the simplified form distinguishes functions."""
    assert full == demangle(mangled)
    if simplified is not None:
        assert simplified == demangle(mangled, simplified=True)


@pytest.mark.parametrize(
    "name",
    ["", "_", "_Z", "main", "_main", "_Zebra", "__Zest", "_ZN", "_ZNE", "_Z1fvE", "_Z9999f", "_Z1fv_",  # noqa: E501
     "-[Foo bar]", "_Z1f\0v", "_ZN3Foo", "_Z1fPFvvE_", "_ZS_", "_ZT_", "_ZcvT_", "_Z01fv", "_Z1fvn"],  # noqa: E501
)  # fmt: skip
def test_what_is_no_mangled_name_stays_as_it_is(name):
    """A name is understood wholly or not at all."""
    assert name == demangle(name)


def test_type_names_as_type_information_has_them():
    """``type_info::name()`` is a mangled type without a prefix."""
    assert demangle_type("3Foo") == "Foo"
    assert demangle_type("St4pairIiPKcE") == "std::pair<int, char const*>"
    assert demangle_type("3Foo4") is None
    assert demangle_type("3Fo") is None


def substitution(index: int) -> str:
    """``S_``, ``S0_``, … of the Itanium ABI."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    text, index = "", index - 1
    while index >= 0:
        text, index = digits[index % 36] + text, index // 36 - 1
    return f"S{text}_"


def doubling(levels: int) -> str:
    """A name whose every part holds the one before twice."""
    return "_Z1f1A1BIS_S_E" + "".join(
        f"S0_I{substitution(last) * 2}E" for last in range(2, 2 + levels)
    )


def test_a_name_that_doubles_itself_is_left_alone():
    """Fifteen doublings are shown; a hundred, which no memory holds, are not tried."""
    assert demangle(doubling(5)).count("A") == 2 + sum(2**n for n in range(1, 7)) - 1
    begun = time.thread_time()
    for levels in (30, 100, 1000):
        assert doubling(levels) == demangle(doubling(levels))
    assert time.thread_time() - begun < 20


def doubling_elsewhere(levels: int, uses: int) -> str:
    """A name whose parts depend on a parameter, each on the one before twice; used elsewhere."""
    parts = "".join(f"S2_I{substitution(last) * 2}E" for last in range(5, 5 + levels))
    return f"_Z1fIZ1gI1XEv1BIT_S3_E{parts}E1YEv" + substitution(5 + levels) * uses


def test_parts_of_another_template_are_built_once():
    """Each is built for its place; a text that no memory holds is not tried."""
    assert demangle(
        doubling_elsewhere(0, 1)
    ) == "void f<void g<X>(B<X, X>)::Y>(B<{0}, {0}>)".format("void g<X>(B<X, X>)::Y")
    assert demangle(doubling_elsewhere(3, 2), simplified=True) == "f<...>"
    begun = time.thread_time()
    for levels in (30, 100):
        name = doubling_elsewhere(levels, 500)
        assert demangle(name) == name
        assert len(demangle(name, simplified=True)) < 2 * len(name)
    assert time.thread_time() - begun < 20


@pytest.mark.parametrize(
    "part",
    ["P", "N", "1AI", "F", "A", "X", "Z1f", "JJ", "IJ", "T", "K", "Dp", "LZ", "DTcl", "DTil"],
)
def test_nesting_without_end_is_left_alone(part):
    """However deep, in any state of Python's own stack."""
    for count in (100, 1000, 20_000):
        name = "_Z1f" + part * count
        assert name == demangle(name)


def test_a_caller_deep_in_recursion_gets_an_answer():
    """A name that cannot be read for want of stack is returned as it is, not with an exception."""

    def deep(left: int) -> str:
        return (
            demangle_cplusplus("_Z1f" + "P" * 100 + "i", simplified=False) or ""
            if not left
            else deep(left - 1)
        )

    limit = sys.getrecursionlimit()
    for used in range(limit - 400, limit - 60, 20):
        try:
            found = deep(used)
        except RecursionError:
            break  # the test's own calls
        assert found in {"", "f(int" + "*" * 100 + ")"}


def test_identifiers_of_any_script():
    """Lengths count bytes of UTF-8."""
    assert demangle("_ZN7größe6naïveEi") == "größe::naïve(int)"
    assert demangle("_ZN5größe6naïveEi") == "_ZN5größe6naïveEi"


def native(name: str, *, simplified: bool) -> str | None:
    """Return the extension's result; None for a name that it leaves to Python."""
    names = pytest.importorskip("machtrace._native._names", reason="the extension is not built")
    return names.cplusplus_name(name, simplified)


@pytest.mark.peer
def test_c_reads_nearly_all_names_and_as_python_does(compiled_names):
    """Two accounts of one grammar, of names of every part of it."""
    read = 0
    for name in compiled_names:
        for simplified in (False, True):
            found = native(name, simplified=simplified)
            if found is not None:
                read += 1
                assert read_cplusplus(name, simplified=simplified) == found
    assert read > 1.4 * len(compiled_names)


@given(st.text(st.sampled_from("_ZNKSTt0IES_JLi1bDpvPROAFM3fooUlcE.$"), max_size=40))
def test_c_reads_any_text_as_python_does(rest):
    """A name that C accepts is one, with the same result."""
    for name in ("_Z" + rest, "_ZN3foo" + rest, "_Z3fooI" + rest):
        found = native(name, simplified=False)
        assert found is None or read_cplusplus(name, simplified=False) == found


MANGLED = st.text(st.sampled_from("_ZNKSTtISEJXLDpCcvfRPOAFM013lambdaUlFQrqWBHio.$"), max_size=60)


@given(st.one_of(MANGLED, MANGLED.map("_Z".__add__), MANGLED.map("_ZN1A".__add__)))
def test_any_text_gets_an_answer(name):
    """Both styles, never an exception."""
    for simplified in (False, True):
        assert isinstance(demangle(name, simplified=simplified), str)


@pytest.mark.peer
def test_every_beginning_of_a_name_gets_an_answer(compiled_names):
    """Names that a table's end cut short."""
    for name in compiled_names[::7]:
        for end in range(len(name)):
            assert isinstance(demangle(name[:end]), str)


CPLUSPLUS_LIBRARY = Path("/usr/lib/x86_64-linux-gnu/libstdc++.so.6")
SWAPS = """
#include <chrono>
#include <future>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <variant>
#include <vector>
struct Own { int number; std::string text; };
int main() {
    Own first, second;
    int one = 1, other[2], another[2];
    std::swap(first, second);
    std::swap(one, other[0]);
    std::swap(other, another);
    std::tuple<int, Own> pair, twin;
    std::swap(pair, twin);
    std::optional<Own> may, might;
    std::swap(may, might);
    std::variant<int, Own> either, neither;
    std::swap(either, neither);
    std::map<std::string, std::vector<int>> lists;
    lists.try_emplace("list");
    auto since = std::chrono::system_clock::now() - std::chrono::seconds(1);
    return std::async([since] { return 1; }).get();
}
"""


@pytest.mark.peer
def test_names_that_only_gnu_reads_are_what_it_writes(tmp_path):
    """Those of this machine's C++ compiler and library, apart from spaces and spellings."""
    compiler, nm, cxxfilt = (shutil.which(name) for name in ("g++", "nm", "c++filt"))
    if compiler is None or nm is None or cxxfilt is None:
        pytest.skip("g++ or binutils is not installed; they make and read the names")
    source, unit = tmp_path / "swaps.cpp", tmp_path / "swaps.o"
    source.write_text(SWAPS)
    subprocess.run([compiler, "-std=c++17", "-c", source, "-o", unit], check=True, timeout=240)
    printed = subprocess.run([nm, unit], capture_output=True, text=True, check=True).stdout
    if CPLUSPLUS_LIBRARY.exists():
        command = [nm, "-D", CPLUSPLUS_LIBRARY]
        printed += subprocess.run(command, capture_output=True, text=True, check=True).stdout
    words = (line.split()[-1].partition("@")[0] for line in printed.splitlines())
    names = sorted({word for word in words if word.startswith("_Z")})
    written = subprocess.run(
        [cxxfilt], input="\n".join(names), capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert len(names) > 100
    for name, expected in zip(names, written, strict=True):
        assert (demangle(name) != name) == (expected != name)
        if re.search("sr(St|N)", name) and not re.search("Ul.*E|S[sdio]", name):
            assert expected.replace(" ", "") == demangle(name).replace(" ", "")
