"""Bounds of functions that no symbol names, from the code itself."""

from __future__ import annotations

import struct

import pytest

from machtrace.errors import MemoryReadError
from machtrace.model.address import Avma, FileOffset, Svma
from machtrace.model.arch import Arch
from machtrace.unwinder.arch.unnamed_functions import UnnamedFunctions

START = 0x1000
RET, NOP, BL, B_EQ = 0xD65F03C0, 0xD503201F, 0x94000000, 0x54000000


class _Code:
    """Bytes at :data:`START`."""

    source = "code"

    def __init__(self, code: bytes) -> None:
        self.code = code

    def read_svma(self, address: Svma, size: int, /) -> memoryview:
        """See :meth:`ImageContents.read_svma`."""
        start = address - START
        if start < 0 or start + size > len(self.code):
            raise MemoryReadError(Avma(address), size)
        return memoryview(self.code)[start : start + size]

    def read_file(self, offset: FileOffset, size: int, /) -> memoryview:
        """See :meth:`ImageContents.read_file`."""
        raise MemoryReadError(offset, size)


def _bounds(code: bytes, arch: Arch) -> list[tuple[int, int] | None]:
    """Return the bounds at every unit, as offsets."""
    end = START + len(code)
    unnamed = UnnamedFunctions(_Code(code), arch, ((START, end),))
    answers = [unnamed.at(Svma(at), START, end) for at in range(START, end)]
    return [
        None if answer is None else (answer[0] - START, answer[1] - START) for answer in answers
    ]


def test_x86_functions_end_behind_their_last_return():
    """A return that a jump passes is not the last; padding belongs to no function."""
    first = bytes.fromhex("7401 c3 90 c3")  # je +1; ret; nop; ret
    code = first + bytes.fromhex("660f1f440000 0f1f440000") + bytes.fromhex("53 5b c3")
    assert len(first) + 11 == 16
    bounds = _bounds(code, Arch.X86_64)
    assert set(bounds[:5]) == {(0, 5)}
    assert set(bounds[5:16]) == {None}
    assert set(bounds[16:]) == {(16, 19)}


def test_x86_functions_begin_where_code_calls_to():
    """Also behind code that does not end, such as a call that never returns."""
    code = bytes.fromhex("e80b000000") + b"\x90" * 11 + b"\x53\x5b\xc3"
    bounds = _bounds(code, Arch.X86_64)
    assert bounds[0] == (0, 16)
    assert bounds[16] == (16, 19)


@pytest.mark.parametrize(
    ("target", "before"), [(12, "c3"), (16, "58")], ids=["after-ret", "aligned"]
)
def test_what_an_operand_calls_is_inside_of_the_function_that_jumps_past_it(
    target: int, before: str
):
    """As in code of libvpx: an immediate has the bytes of a call."""
    code = bytearray(b"\x90" * 48)
    code[:2] = bytes.fromhex("741e")  # je 0x20
    code[3:10] = bytes.fromhex(f"b8 e8{target - 9:02x}0000 00c0")  # mov $..., %eax; add %al, %al
    code[target - 1 : target] = bytes.fromhex(before)
    code[0x20] = 0xC3
    assert set(_bounds(bytes(code), Arch.X86_64)[:0x21]) == {(0, 0x21)}


@pytest.mark.parametrize("is_called", [False, True])
def test_arm64_functions(is_called: bool):  # noqa: FBT001
    words = [B_EQ | 2 << 5, RET, RET, NOP, NOP, NOP, RET]
    if is_called:
        words[1] = BL | 4  # of the fifth
    bounds = _bounds(struct.pack("<7I", *words), Arch.ARM64)
    assert bounds[0] == (0, 12)
    assert bounds[12] is None
    assert bounds[24] == ((20, 28) if is_called else (24, 28))


def test_code_that_cannot_be_read_has_no_functions():
    unnamed = UnnamedFunctions(_Code(b""), Arch.X86_64, ((START, START + 64),))
    assert unnamed.at(Svma(START), START, START + 64) is None
