"""Names that builds of the same source share."""

import pytest

from machtrace.reports.analysis.fingerprint import grouping_name, is_name

SAME = [
    ("closure #1 in Demo.run()", "closure #7 in Demo.run()"),
    ("closure #1 in closure #2 in Demo.run()", "closure #3 in closure #1 in Demo.run()"),
    ("Demo.run()", "specialized Demo.run()"),
    ("Demo.run()", "generic specialization <Swift.Int> of Demo.run()"),
    ("closure #1 in Demo.run()", "partial apply for closure #1 in Demo.run()"),
    ("Demo.run()", "@objc Demo.run()"),
    ("Demo.load()", "(2) await resume partial function for Demo.load()"),
    ("Sorter.sort<A>(_:)", "specialized Sorter.sort(_:)"),
    ("P.draw()", "protocol witness for P.draw() in conformance Circle<A>"),
    ("__22-[Demo run]_block_invoke", "__22-[Demo run]_block_invoke_2"),
    ("__22-[Demo run]_block_invoke.15", "__22-[Demo run]_block_invoke_3.118"),
    ("___run_block_invoke", "___run_block_invoke375"),
    ("run", "run.cold.1"),
    ("run(int)", "run(int) (.cold.2)"),
    ("run", "run.llvm.1234567890"),
    ("run", "run.constprop.0.isra.3"),
    ("run(int)", "run(int) [clone .part.0]"),
    ("demo::run", "demo::run::h0123456789abcdef"),
    ("std::vector<int, std::allocator<int>>::push_back", "std::vector<X>::push_back"),
    ("demo()::$_0::operator()() const", "demo()::$_5::operator()() const"),
]
DIFFERENT = [
    ("-[Demo run]", "+[Demo run]"),
    ("-[Demo run]", "-[Demo(More) run]"),
    ("Demo.run()", "Demo.run(_:)"),
    ("Demo.run()", "closure #1 in Demo.run()"),
    ("operator<(A, B)", "operator>(A, B)"),
    ("A::operator<<(int)", "A::operator>>(int)"),
    ("A::operator->()", "A::operator-()"),
    ("run1", "run2"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_builds_differ_in_it(one, other):
    """Numbers, clones, thunks and generics are the compiler's."""
    assert grouping_name(one) == grouping_name(other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_the_source_differs_in_it(one, other):
    """Differences in the source remain."""
    assert grouping_name(one) != grouping_name(other)


def test_addresses_are_not_names():
    """Addresses, and what stands where a name was taken away."""
    for name in ("", "0x1234", "???", "<redacted>", "unnamed_12f0", "Demo+0x44", "1234"):
        assert not is_name(name)
    for name in ("main", "-[A b]", "operator+", "x0x"):
        assert is_name(name)


def test_hostile_names_take_no_time():
    """Long, unbalanced, full of what is looked for."""
    for name in (
        "<" * 50_000,
        "a<" * 9_000 + ">" * 9_000,
        "closure #1 in " * 9_000,
        ".cold" * 9_000,
    ):
        assert len(grouping_name(name)) <= 4096
