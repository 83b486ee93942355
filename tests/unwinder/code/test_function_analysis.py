"""The cache of analysed functions, which all architectures share."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from machtrace.errors import MemoryReadError
from machtrace.model.address import FileOffset, Svma
from machtrace.unwinder.arch.arm32.analysis import ArmInstructionRules, InstructionSets
from machtrace.unwinder.arch.arm64.analysis import InstructionRules
from machtrace.unwinder.arch.x86.analysis import X86InstructionRules
from machtrace.unwinder.arch.x86.registers import MODE_32
from machtrace.unwinder.rules import CallSiteRules

START = Svma(0x10000)
ARM64_CODE = struct.pack("<3I", 0xA9BF7BFD, 0xA8C17BFD, 0xD65F03C0)  # stp, ldp, ret
X86_CODE = bytes.fromhex("55 5d c3")  # push, pop, ret
ARM_CODE = struct.pack("<3H", 0xB580, 0xBD80, 0x46C0)  # push, pop, nop

Rules = InstructionRules | X86InstructionRules | ArmInstructionRules


class _Function:
    """The code of one function, up to the readable end."""

    source = "code"

    def __init__(self, code: bytes) -> None:
        self._code = code
        self.is_readable = False
        self.reads = 0

    def read_svma(self, address: Svma, size: int, /) -> memoryview:
        self.reads += 1
        at = address - START
        if not self.is_readable or not 0 <= at <= at + size <= len(self._code):
            raise MemoryReadError(address, size)
        return memoryview(self._code)[at : at + size]

    def read_file(self, offset: FileOffset, size: int, /) -> memoryview:
        raise MemoryReadError(offset, size)

    def function_at(self, address: Svma) -> tuple[Svma, Svma] | None:
        end = Svma(START + len(self._code))
        return (START, end) if START <= address < end else None


def _arm64(code: _Function) -> InstructionRules:
    return InstructionRules(code, code.function_at)


def _x86_64(code: _Function) -> X86InstructionRules:
    return X86InstructionRules(code, code.function_at)


def _i386(code: _Function) -> X86InstructionRules:
    return X86InstructionRules(code, code.function_at, mode=MODE_32)


def _arm(code: _Function) -> ArmInstructionRules:
    return ArmInstructionRules(code, code.function_at, InstructionSets({START: True}))


KINDS = pytest.mark.parametrize(
    ("analyse", "bytes_of_code"),
    [(_arm64, ARM64_CODE), (_x86_64, X86_CODE), (_i386, X86_CODE), (_arm, ARM_CODE)],
)


@KINDS
def test_code_that_was_not_captured_is_missing_each_time(
    analyse: Callable[[_Function], Rules], bytes_of_code: bytes
):
    """A second query has the same answer: a failed analysis is not cached."""
    code = _Function(bytes_of_code)
    rules = analyse(code)
    for _ in range(3):
        with pytest.raises(MemoryReadError):
            rules.rule_for(START, interrupted=True)
    code.is_readable = True
    assert rules.rule_for(START, interrupted=True) == analyse(code).rule_for(
        START, interrupted=True
    )
    assert rules.rule_for(START, interrupted=True) is not None


@KINDS
def test_functions_are_followed_once(analyse: Callable[[_Function], Rules], bytes_of_code: bytes):
    """A second query, of a call or not, reads no function again."""
    code = _Function(bytes_of_code)
    code.is_readable = True
    rules = analyse(code)
    lookup = Svma(START + len(bytes_of_code) // 3)
    first = rules.rule_for(lookup, interrupted=True)
    reads = code.reads
    assert rules.rule_for(lookup, interrupted=True) == first
    assert code.reads == reads


@KINDS
def test_rules_of_calls_are_for_calls_only(
    analyse: Callable[[_Function], Rules], bytes_of_code: bytes
):
    """An interrupted frame needs another source."""
    code = _Function(bytes_of_code)
    code.is_readable = True
    calls = CallSiteRules(analyse(code))
    lookup = Svma(START + len(bytes_of_code) // 3)
    assert calls.rule_for(lookup, interrupted=True) is None
    assert calls.rule_for(lookup, interrupted=False) is not None
    assert calls.function_at(START) == code.function_at(START)
