"""Rust names of both manglings: RFC 2603's, and the older one in C++'s clothes."""

from __future__ import annotations

import shutil
import subprocess
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machtrace.demangler import demangle

V0 = [
    "_RNvNtCs1234_7mycrate3foo3bar",
    "_RNvC6_123foo3bar",
    "_RNqCs4fqI2P2rA04_11utf8_identsu30____7hkackfecea1cbdathfdh9hlq6y",
    "_RNCNCNgCs6DXkGYLi8lr_2cc5spawn00B5_",
    (
        "_RNCINkXs25_NgCsbmNqQUJIY6D_4core5sliceINyB9_4IterhENuNgNoBb_4iter8iterator8Iterator9rpositionNC"
        "NgNpB9_6memchr7memrchrs_0E0Bb_"
    ),
    "_RINbNbCskIICzLVDPPb_5alloc5alloc8box_freeDINbNiB4_5boxed5FnBoxuEp6OutputuEL_ECs1iopQbuBiw2_3std",
    "_RMC0INtC8arrayvec8ArrayVechKj7b_E",
    "_RNvMC1aINtB2_8UnsignedKhb_E1f",
    "_RNvMs0_C1aINtB5_6SignedKs98_E1f",
    "_RNvMC1aINtB2_6SignedKanb_E1f",
    "_RNvMs1_C1aINtB5_4BoolKb1_E1f",
    "_RNvMs2_Cs4fqI2P2rA04_13const_genericINtB5_4CharKc76_E1f",
    "_RNvMs2_Cs4fqI2P2rA04_13const_genericINtB5_4CharKca_E1f",
    "_RNvMs4_Cs4fqI2P2rA04_13const_genericINtB5_3FooKpE1f",
    "_RIC1aFG_UKCRL0_hEuE",
    "_RIC1aFG0_RL1_hRL0_tEuE",
    "_RIC1aDG_INtC1t1TL0_hEEL_E",
    "_RIC1aDC1tp1AmEL_E",
    "_RIC1aTlEE",
    "_RIC1aTlmEE",
    "_RIC1aAmj4_E",
    "_RIC1aSmPcOzE",
    "_RIC1aQL_hRhE",
    "_RNvXCs1_1aNtB2_1SNtB2_1T1m",
    "_RNvYNtC1a1SNtB4_1T1m",
    "_RNvMC1aNtB2_1S3new.llvm.1234",
]
"""Paths, generics, closures, implementations, constants, types, binders, back-references."""


@pytest.mark.peer
@pytest.mark.parametrize("name", V0)
def test_names_are_what_llvm_writes(name):
    """With and without the underscore that Mach-O puts first."""
    cxxfilt = shutil.which("llvm-cxxfilt-19")
    if cxxfilt is None:
        pytest.skip("llvm-cxxfilt-19 is not installed; it is the peer here")
    printed = subprocess.run([cxxfilt, name], capture_output=True, text=True, check=True).stdout
    assert printed.strip() != name, "LLVM does not know it"

    assert printed.strip() == demangle(name) == demangle("_" + name)


@pytest.mark.parametrize(
    ("name", "full", "simplified"),
    [
        ("_RNvNtCs1234_7mycrate3foo3bar", "mycrate::foo::bar", "mycrate::foo::bar"),
        ("_RNCNCNgCs6DXkGYLi8lr_2cc5spawn00B5_", "cc::spawn::{closure#0}::{closure#0}", None),
        ("_RINvC1a1fhE", "a::f::<u8>", "a::f::<...>"),
        ("_RNvMC1aINtB2_1SmE3new", "<a::S<u32>>::new", "<a::S<...>>::new"),
        ("_RNvNtC3std3mem7CURRENT$tlv$init", "std::mem::CURRENT ($tlv$init)", "std::mem::CURRENT"),
        (
            "_ZN4core3fmt5Write9write_str17h0123456789abcdefE",
            "core::fmt::Write::write_str::h0123456789abcdef",
            "core::fmt::Write::write_str",
        ),
        (
            (
                "__ZN71_$LT$Test$u20$$u2b$$u20$$u27$static$u20$as$u20$foo..Bar$LT$Test$GT$$GT$3bar17h930b7"
                "40aa94f1d3aE"
            ),
            "<Test + 'static as foo::Bar<Test>>::bar::h930b740aa94f1d3a",
            "<Test + 'static as foo::Bar<Test>>::bar",
        ),
        (
            "_ZN4main4main28_$u7b$$u7b$closure$u7d$$u7d$17h0123456789abcdefE.llvm.9D1C9369",
            "main::main::{{closure}}::h0123456789abcdef",
            "main::main::{{closure}}",
        ),
    ],
)
def test_both_styles(name, full, simplified):
    """The hash is in the full form of older names, generic arguments in that of newer ones."""
    assert full == demangle(name)
    if simplified is not None:
        assert simplified == demangle(name, simplified=True)


def test_a_cplusplus_name_that_ends_in_a_hash_like_part_stays_cplusplus():
    """The older mangling is known by a hash of many different digits."""
    assert demangle("_ZN1a17h0000000000000000E") == "a::h0000000000000000"
    assert demangle("_ZN1a1bEv") == "a::b()"


@pytest.mark.parametrize(
    "name",
    ["_R", "_RNv", "__Read", "_Reset", "_RNvC1a", "_RNvC1a9f", "_RC1a!", "_RNvB_1f", "_RIC1aB_E",
     "_RNvC1au3___", "_RIC1aKcd800_E", "_RIC1aRL1_hE", "_RINvC1a1fF"],
)  # fmt: skip
def test_what_is_no_mangled_name_stays_as_it_is(name):
    """A name is understood wholly or not at all."""
    assert name == demangle(name)


def test_back_references_do_not_multiply():
    """Each level repeats the one before twice: text without end, from a short name."""
    name = "_RINvC1a1f"
    places = []
    for level in range(60):
        start = len(name) - 2
        places.append(start)
        if level == 0:
            name += "Thh" + "E"
        else:
            name += f"TB{_base_62(places[-2])}B{_base_62(places[-2])}E"
    begun = time.thread_time()
    assert name + "E" == demangle(name + "E")
    assert time.thread_time() - begun < 10


def _base_62(value: int) -> str:
    if value == 0:
        return "_"
    digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    text, value = "", value - 1
    while True:
        text, value = digits[value % 62] + text, value // 62
        if not value:
            return text + "_"


@pytest.mark.parametrize("part", ["R", "T", "A", "D", "FG", "Nv", "I", "B_", "M", "Y", "KA"])
def test_nesting_without_end_is_left_alone(part):
    """However deep."""
    for count in (100, 1000, 20_000):
        name = "_RINvC1a1f" + part * count
        assert name == demangle(name)


MANGLED = st.text(st.sampled_from("RNvCIMXYBTEADFGLKpjhs_01aufeQPO$."), max_size=60)


@given(st.one_of(MANGLED.map("_R".__add__), MANGLED.map("_RINvC1a1f".__add__)))
def test_any_text_gets_an_answer(name):
    """Both styles, never an exception."""
    for simplified in (False, True):
        assert isinstance(demangle(name, simplified=simplified), str)
