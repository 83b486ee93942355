"""Swift names: what people read for them, and what becomes of names that are none."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from machtrace.demangler import demangle
from machtrace.demangler.library import demangle_swift

NAMES = Path(__file__).with_name("swift_names.txt")
TABLES = os.environ.get("MACHTRACE_DEMANGLE_TABLES")
"""The folder ``tests/conformance`` of the source archive of ``demangle``."""
_HASH = re.compile(r"::h[0-9a-f]{16}(?: \((.*)\))?\Z")
SECONDS = 2.0
"""Processor time for an adversarial name; it takes a tenth of that on a slow machine."""


def _names() -> list[tuple[str, str, str]]:
    lines = NAMES.read_text(encoding="utf-8").splitlines()
    rows = [tuple(line.split("\t")) for line in lines if not line.startswith("#")]
    return [(name, full, simplified) for name, full, simplified in rows]


def test_names_in_full():
    """Functions, types, thunks and specialisations of all versions."""
    wrong = {
        name: (found, full) for name, full, _ in _names() if (found := demangle_swift(name)) != full
    }
    assert wrong == {}


def test_names_simplified():
    """Without modules, types of arguments, and what the compiler did to the function."""
    wrong = {
        name: (found, simplified)
        for name, _, simplified in _names()
        if (found := demangle_swift(name, simplified=True)) != simplified
    }
    assert wrong == {}


@pytest.mark.skipif(TABLES is None, reason="MACHTRACE_DEMANGLE_TABLES names no folder")
@pytest.mark.parametrize(
    ("table", "simplified"),
    [
        ("swift-upstream.txt", False),  # what the Swift project publishes
        ("swift-simplified.txt", True),
        ("swift-real-world.txt", False),
        ("reported/swift.txt", False),
        ("rust-real-world.txt", False),
        ("rust-toolchain.txt", False),
        ("reported/rust.txt", False),
    ],
)
def test_published_tables(table: str, simplified: bool):  # noqa: FBT001
    """A name that a table leaves as it is is not understood."""
    lines = Path(str(TABLES), table).read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t")[:2] for line in lines if line and not line.startswith("#")]
    assert rows
    wrong = {}
    for name, expected in rows:
        original, _, _ = name.partition(".llvm.")  # tables of Rust do not have it, nor hashes
        found = _HASH.sub(r"\1", demangle(original, simplified=simplified))
        if found != expected:
            wrong[name] = (found, expected)
    assert wrong == {}


@pytest.mark.parametrize("before", ["", "_", "__"])
def test_underscores_of_object_files(before: str):
    """Mach-O puts an underscore before names, and some tools show two."""
    assert demangle_swift(f"{before}$s3Lab3runyyF") == "Lab.run() -> ()"


def test_the_package_knows_swift():
    """Names of Swift are recognised by their prefix."""
    assert demangle("_$s3Lab3runyySiF") == "Lab.run(Swift.Int) -> ()"
    assert demangle("_$s3Lab3runyySiF", simplified=True) == "run(_:)"
    assert demangle("_TtC3Lab4Crew") == "Lab.Crew"
    resumed = "(1) await resume partial function for async main entry point"
    assert demangle("async_MainTQ0_") == demangle("_async_MainTQ0_") == resumed


NOT_UNDERSTOOD = """
main _main _ZN3foo3barEv _R $ $s _T _T0 $s3La $s3Lab3runyyFTf1pS_n $sA_ $sAa $s99999999999999999999a
_Tt _TtC _TtCS0_3Foo $s3Lab3runyyFTf1q_n $sé
"""


@pytest.mark.parametrize("name", ["", *NOT_UNDERSTOOD.split()])
def test_what_is_not_understood_has_no_name(name: str):
    """Names of other languages, names cut short, and references to nothing."""
    assert demangle_swift(name) is None


def test_every_beginning_of_every_name():
    """A name that was cut short has some name or none, and raises nothing."""
    for name, _, _ in _names():
        for end in range(len(name)):
            for simplified in (False, True):
                found = demangle_swift(name[:end], simplified=simplified)
                assert found is None or isinstance(found, str)


def _doubled(times: int) -> str:
    """A dictionary of the type before it to itself, again and again."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return "$sSDySiSiG" + "".join(f"SDyA{c}A{c}G" for c in letters[:times]) + "D"


HOSTILE = {
    "a type of twice the size of the one before, 24 times": _doubled(24),
    "a type in a type, 15,000 times": "$sSi" + "Sg" * 15_000 + "D",
    "a tuple in a tuple, 15,000 times": "$sSi" + "_t" * 15_000 + "D",
    "2,048 of a type, 5,000 times": "$s1aV" + "A2048A" * 5000,
    "a word of 16,000 letters, 5,000 times": "$s16000" + "a" * 16_000 + "0A0" * 5000,
    "a context in a context, 9,000 times": "$s1a" + "1bV" * 9000 + "D",
    "generic parameters of 5,000 levels": "$sr" + "200_" * 5000 + "l",
    "10,000 generic signatures": "$sSi" + "lu" * 10_000 + "D",
    "a function of 8,000 arguments": "$s1a1b" + "_" * 8000 + "ySi_" + "Si" * 7999 + "tF",
    "10,000 attributes": "$s1a1byyF" + "To" * 10_000,
    "30,000 specialised arguments": "$s1a1byyFTf4" + "d" * 30_000 + "_n",
    "an old type in an old type, 3,000 times": "_Tt" + "GSq" * 3000 + "Si" + "_" * 3000,
    "an old partial application of another, 6,000 times": "_T" + "PA__T" * 6000,
    "a number of 30,000 digits": "$s" + "9" * 30_000,
    "Punycode of 2,000 characters": "$s002000" + "a" * 2000,
}


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("simplified", [False, True])
def test_hostile_names(name: str, simplified: bool):  # noqa: FBT001
    """Time and output have limits, however much a name stands for."""
    start = time.thread_time()
    found = demangle_swift(name, simplified=simplified)
    assert time.thread_time() - start < SECONDS
    assert len(found or "") <= 1 << 21


@given(st.text(alphabet="$sSTABCDFGIKLMNOPQRVWXYZabcdefgiklmnopqrtuvwxyz_0123", max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_characters(text: str):
    """Nothing is raised, whatever follows a prefix."""
    for prefix in ("$s", "_T0", "_T", "$s3Lab3run", "_TtC3Lab"):
        for simplified in (False, True):
            demangle_swift(prefix + text, simplified=simplified)


@given(st.text(alphabet="abzåßéøπ日本語🚀", min_size=1, max_size=12))
@settings(max_examples=100, deadline=None)
def test_identifiers_outside_ascii(identifier: str):
    """They are Punycode, as Python's own codec has it but for the digits and the delimiter."""
    if identifier.isascii():
        return
    plain, _, digits = identifier.encode("punycode").decode().rpartition("-")
    digits = digits.translate(str.maketrans("0123456789", "ABCDEFGHIJ"))
    encoded = f"{plain}_{digits}" if plain else digits
    separator = "_" if encoded[0] in "0123456789_" else ""
    name = f"$s3Lab00{len(encoded)}{separator}{encoded}V"
    assert demangle_swift(name) == f"Lab.{identifier}"


def test_bytes_of_identifiers():
    """Names of Swift 3 and of debuggers may have UTF-8 in them; lengths count its bytes."""
    assert demangle_swift("_TtC3Lab6brandø") is None
    assert demangle_swift("_TtC3Lab7brandø") == "Lab.brandø"
    assert demangle_swift("$s3Lab7brandøV") == "Lab.brandø"


def test_names_in_names():
    """A closure that a function was specialised for has a mangled name, which is read, too."""
    inner = "$s3Lab3runyyFyycfU_"
    name = f"$s3Lab4callyyyyXEF{len(inner)}{inner}Tf1c_n"
    assert "closure #1 () -> () in Lab.run() -> ()" in str(demangle_swift(name))
    for _ in range(40):
        name = f"$s3Lab4callyyyyXEF{len(name)}{name}Tf1c_n"
    assert demangle_swift(name) is not None
