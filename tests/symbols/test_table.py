"""Symbol tables: which name an offset has, and where it ends."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from machtrace.model.address import ImageOffset
from machtrace.model.symbol import Certainty
from machtrace.symbols.table import CodeBounds, NamedRanges, SymbolTable


def offsets(*values):
    """Build a column."""
    return np.array(values, np.uint64)


def named(symbols, *, certainty=Certainty.EXACT, underscore=True):
    """Build symbols from (start, size, is global, name)."""
    return NamedRanges(
        starts=offsets(*(start for start, _, _, _ in symbols)),
        sizes=offsets(*(size for _, size, _, _ in symbols)),
        preferred=np.array([is_global for _, _, is_global, _ in symbols], np.bool_),
        linkage_name=lambda row: symbols[row][3],
        certainty=certainty,
        leading_underscore=underscore,
    )


def table(symbols, *, functions=(), section=(0x1000, 0x2000), underscore=True):
    """Build a table with one section of code."""
    bounds = CodeBounds(
        section_starts=offsets(section[0]),
        section_ends=offsets(section[1]),
        function_starts=offsets(*functions),
    )
    return SymbolTable((named(symbols, underscore=underscore),), bounds)


def name_at(symbols, offset):
    """Return the name at an offset, or None."""
    symbol = symbols.find(ImageOffset(offset))
    return None if symbol is None or not symbol.is_named else symbol.name


def test_a_name_ends_where_the_next_function_starts():
    """A stripped neighbour does not inherit a name."""
    symbols = table([(0x1000, 0, True, "_first")], functions=(0x1000, 0x1040, 0x1080))

    assert name_at(symbols, 0x1000) == "first"
    assert name_at(symbols, 0x103F) == "first"
    assert name_at(symbols, 0x1040) is None
    assert name_at(symbols, 0x0FFF) is None


def test_a_name_ends_at_the_next_symbol_and_at_its_section():
    """Without function starts these are the bounds."""
    symbols = table([(0x1F00, 0, True, "_a"), (0x1F80, 0, True, "_b")])

    assert name_at(symbols, 0x1F7F) == "a"
    assert name_at(symbols, 0x1FFF) == "b"
    assert name_at(symbols, 0x2000) is None


def test_stated_sizes_bound_names():
    """ELF states where a function ends; padding has no name."""
    symbols = table([(0x1000, 0x30, True, "f"), (0x1040, 0x10, False, "g")], underscore=False)

    assert name_at(symbols, 0x102F) == "f"
    assert name_at(symbols, 0x1030) is None
    assert name_at(symbols, 0x104F) == "g"


def test_a_label_inside_a_sized_function_is_ignored():
    """Hand-written assembly has labels; the function around them was called."""
    found = table([(0x1000, 0x30, True, "memcpy"), (0x1010, 0, False, "again")], underscore=False)

    assert name_at(found, 0x1018) == "memcpy"


def test_global_symbols_come_before_local_ones_and_the_first_wins():
    """With several names at one address."""
    symbols = table(
        [(0x1000, 0, False, "_local"), (0x1000, 0, True, "_one"), (0x1000, 0, True, "_two")]
    )

    assert name_at(symbols, 0x1000) == "one"


def test_exactly_one_underscore_is_dropped():
    """C's prefix is removed; names that begin with one keep theirs."""
    symbols = table([(0x1000, 0, True, "___start"), (0x1010, 0, True, "-[A b]")])

    symbol = symbols.find(ImageOffset(0x1000))
    assert symbol is not None
    assert (symbol.name, symbol.linkage_name) == ("__start", "___start")
    assert name_at(symbols, 0x1010) == "-[A b]"


def test_mangled_names_are_demangled():
    """The linkage name is unchanged; bulk names are the same."""
    symbols = table([(0x1000, 0, True, "__ZN6Player4playEi")])

    symbol = symbols.find(ImageOffset(0x1000))
    assert symbol is not None
    assert (symbol.name, symbol.linkage_name) == ("Player::play(int)", "__ZN6Player4playEi")
    assert symbols.name(0) == "Player::play(int)"


def test_symbols_outside_code_are_ignored():
    """The header symbol is at offset 0, data is elsewhere."""
    found = table([(0x0, 0, True, "__mh_execute_header"), (0x3000, 0, True, "_data")])

    assert len(found) == 0
    assert name_at(found, 0x1234) is None


@given(
    symbols=st.lists(
        st.tuples(
            st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.booleans(), st.text(max_size=3)
        ),
        max_size=20,
    ),
    functions=st.lists(st.integers(0, 2**64 - 1), max_size=20),
    asked=st.integers(-(2**64), 2**65),
)
def test_any_columns_give_ranges_that_do_not_overlap(symbols, functions, asked):
    """Sizes and addresses come from files."""
    built = table(symbols, functions=sorted(functions), section=(0x1000, 2**64 - 1))
    previous_end = 0
    for index in range(len(built)):
        symbol = built.symbol(index)
        assert previous_end <= symbol.offset
        previous_end = symbol.offset + (symbol.size or 0)
    hit = built.find(ImageOffset(asked))
    assert hit is None or hit.offset <= asked < hit.offset + (hit.size or 0)
