"""Frames of Go functions, from the table of frame sizes."""

from __future__ import annotations

import pytest

from machtrace.formats.gopclntab import pc_values
from machtrace.model.address import Svma
from machtrace.model.arch import Arch
from machtrace.unwinder.rules import AtCfa, RegisterOffset
from machtrace.unwinder.sources.go import GoFrameRules

START = 0x1000


class Functions:
    """One function, with the sizes that its table states by instruction."""

    def __init__(self, *sizes):
        self._sizes = sizes

    def row_at(self, address):
        """Return the function."""
        return 0 if START <= address < START + 4 * len(self._sizes) else None

    def name(self, _):
        """Return its name."""
        return "runtime.syscall_x509"

    def flags(self, _):
        """Return none."""
        return 0

    def frame_size(self, _, address):
        """Return the size at an address."""
        return self._sizes[(address - START) // 4]

    def first_frame_size(self, _, address):
        """Return the size of what the prologue allocated."""
        first = 0
        for size in self._sizes[: (address - START) // 4 + 1]:
            first = (first or size) if size else 0
        return first


@pytest.mark.parametrize(("sizes", "first"), [((0, 16, 32), 16), ((0, 16, 0, 48), 48)])
def test_the_return_address_is_at_the_lowest_word_of_the_first_frame_on_arm64(sizes, first):
    """Assembly lowers sp further, as the trampolines of system calls on Darwin do."""
    rules = GoFrameRules(None, Functions(*sizes), Arch.ARM64)

    rule = rules.rule_for(Svma(START + 4 * len(sizes) - 4), interrupted=False)

    assert rule.cfa == RegisterOffset(31, sizes[-1])
    assert rule.return_address == AtCfa(-first)
    assert dict(rule.registers)[29] == AtCfa(-first - 8)


def test_the_values_of_a_function_are_in_order():
    """``-1 + 1``, then ``+ 16``, then ``- 16``, for two instructions each."""
    table = memoryview(bytes((2, 2, 32, 2, 31, 2, 0)))

    assert pc_values(table, START, START + 4 * 5, 4) == [0, 16, 0]
    assert pc_values(table, START, START + 4 * 2, 4) == [0, 16]
    assert pc_values(table, START, START + 4 * 6, 4) == []
