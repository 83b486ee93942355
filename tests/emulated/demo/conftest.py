"""One emulated process for all tests here, and names for its addresses."""

from bisect import bisect_right
from collections.abc import Callable

import pytest

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.tables.symtab import parse_symbols
from machtrace.targets.emulator import PROGRAM
from machtrace.targets.emulator.target import EmulatedTarget


@pytest.fixture(scope="session")
def demo():
    """The process, its calls recorded."""
    with EmulatedTarget("demo", record_calls=True) as target:
        yield target


@pytest.fixture(scope="session")
def snapshot(demo):
    """All of it."""
    return demo.snapshot()


@pytest.fixture(scope="session")
def threads(snapshot):
    """Its threads, by name."""
    return {thread.info.name: thread for thread in snapshot.threads}


@pytest.fixture(scope="session")
def place(demo) -> Callable[[int], tuple[str, int]]:
    """From an address to the function that holds it and the bytes from its start.

    Only the symbol table is used, so that it is the nearest symbol before the address.
    """
    symbols = parse_symbols(MachOFileContents(PROGRAM.read_bytes(), "demo.macho"))
    rows = symbols.is_code.nonzero()[0].tolist()
    named = sorted(zip(symbols.n_value[rows].tolist(), symbols.names(rows), strict=True))
    slide = next(iter(demo.images())).slide

    def place(address: int) -> tuple[str, int]:
        start, name = named[bisect_right(named, (address - slide, "\U0010ffff")) - 1]
        return name, address - slide - start

    return place


@pytest.fixture(scope="session")
def true_callers(demo, threads, place) -> Callable[[str], list[str]]:
    """The functions that a thread was really called by, innermost first."""

    def callers(thread: str) -> list[str]:
        # Inside the call: thread_start's call is its last instruction.
        return [place(address - 1)[0] for address in demo.true_stack(threads[thread].info.id)]

    return callers
