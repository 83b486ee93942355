"""The first and last instructions of functions that are too large for the analysis."""

from __future__ import annotations

import struct

import pytest

from machtrace.errors import MemoryReadError
from machtrace.model.address import Avma, Svma
from machtrace.unwinder.arch.arm64.analysis import InstructionRules
from machtrace.unwinder.arch.x86.analysis import X86InstructionRules
from machtrace.unwinder.rules import AtCfa, InRegister, RegisterOffset

START = Svma(0x1000)
BRANCHES = 60_000


class Code:
    """An image that contains only ``code``."""

    source = "code"

    def __init__(self, code: bytes) -> None:
        self.code = code

    def read_svma(self, address: Svma, size: int, /) -> memoryview:
        """See :meth:`ImageContents.read_svma`."""
        start = address - START
        if start < 0 or start + size > len(self.code):
            raise MemoryReadError(Avma(address), size)
        return memoryview(self.code)[start : start + size]

    def function_at(self, address: Svma) -> tuple[Svma, Svma]:
        """It is one function."""
        del address
        return START, Svma(START + len(self.code))


X86_BEGINNING = bytes.fromhex("55 4889e5 53 50".replace(" ", ""))
X86_END = bytes.fromhex("4883c408 5b 5d c3".replace(" ", ""))
X86 = X86_BEGINNING + bytes.fromhex("85c07400") * BRANCHES + X86_END
ARM64_BEGINNING = (0xA9BE7BFD, 0x910003FD, 0xF9000BF3)  # stp x29, x30, [sp, #-32]!; mov; str x19
ARM64_END = (0xF9400BF3, 0xA8C27BFD, 0xD65F03C0)  # ldr x19; ldp x29, x30, [sp], #32; ret
ARM64 = struct.pack(
    f"<{6 + 2 * BRANCHES}I", *ARM64_BEGINNING, *(0x34000020, 0xD503201F) * BRANCHES, *ARM64_END
)


@pytest.mark.parametrize(
    ("offset", "cfa"),
    [
        (0, 8),
        (1, 16),
        (4, 16),
        (5, 24),
        (6, 32),
        (len(X86) - 7, 32),
        (len(X86) - 3, 24),
        (len(X86) - 2, 16),
        (len(X86) - 1, 8),
    ],
)
def test_x86_64_edges_locate_the_return_address_by_sp(offset: int, cfa: int):
    contents = Code(X86)
    rules = X86InstructionRules(contents, contents.function_at)
    rule = rules.rule_for(Svma(START + offset), interrupted=True)
    assert rule is not None
    assert rule.cfa == RegisterOffset(7, cfa)


def test_the_middle_of_a_function_has_no_rule():
    """The return and the start are both far away."""
    contents = Code(X86)
    rules = X86InstructionRules(contents, contents.function_at)
    assert rules.rule_for(Svma(START + len(X86) // 2), interrupted=True) is None


def test_a_loop_is_not_an_exit():
    """A jump to before the queried instruction stays in the function."""
    loop = bytes.fromhex("90 ebf9".replace(" ", ""))  # back over the call, which is before it
    code = X86_BEGINNING + bytes.fromhex("85c07400") * BRANCHES + b"\xe8\0\0\0\0" + loop + X86_END
    contents = Code(code)
    rules = X86InstructionRules(contents, contents.function_at)
    place = Svma(START + len(code) - len(X86_END) - len(loop))
    assert rules.rule_for(place, interrupted=True) is None


def test_a_computed_jump_is_not_an_exit():
    """``jmp *rax`` with a value from the frame dispatches within the function."""
    dispatch = bytes.fromhex("488b45e8 ffe0".replace(" ", ""))  # mov rax, [rbp - 24]; jmp *rax
    code = X86_BEGINNING + bytes.fromhex("85c07400") * BRANCHES + X86_END + dispatch
    contents = Code(code)
    rules = X86InstructionRules(contents, contents.function_at)
    place = Svma(START + len(code) - len(dispatch))
    assert rules.rule_for(place, interrupted=True) is None


@pytest.mark.parametrize(
    ("index", "cfa", "return_address"),
    [
        (0, 0, InRegister(30)),
        (1, 32, None),
        (3, 32, None),
        (-3, 32, None),
        (-2, 32, None),
        (-1, 0, InRegister(30)),
    ],
)
def test_arm64_edges_use_the_link_register(index: int, cfa: int, return_address: InRegister | None):
    """It may still hold the address after it was saved."""
    contents = Code(ARM64)
    rules = InstructionRules(contents, contents.function_at, [(START, START + len(ARM64))])
    place = START + 4 * index if index >= 0 else START + len(ARM64) + 4 * index
    rule = rules.rule_for(Svma(place), interrupted=True)
    assert rule is not None
    assert rule.cfa == RegisterOffset(31, cfa)
    if return_address is not None:
        assert rule.return_address == return_address
    elif index < 0:
        assert rule.return_address != InRegister(30)
    else:
        assert rule.return_address in (AtCfa(-24), InRegister(30))
