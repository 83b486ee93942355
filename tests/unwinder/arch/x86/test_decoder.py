"""Cached x86 instructions equal those decoded again."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.model.arch import Arch
from machtrace.unwinder.arch.x86.decoder import Decoder, decode
from machtrace.unwinder.arch.x86.encoding import Effects
from machtrace.unwinder.arch.x86.registers import MODE_32, MODE_64, Mode
from machtrace.unwinder.code.effects import NOTHING, Load, Writes

Build = Callable[..., MachOFileContents]
MODES = pytest.mark.parametrize("mode", [MODE_64, MODE_32], ids=["64", "32"])


@MODES
def test_any_instruction_equals_its_cached_form(mode: Mode):
    """Instructions of all kinds, many with the same prefix and different ends."""
    random = Random(1)  # noqa: S311 (no secret)
    beginnings = [random.randbytes(random.randrange(1, 6)) for _ in range(300)]
    code = b"".join(
        random.choice(beginnings) + random.randbytes(random.randrange(5)) for _ in range(8000)
    )
    decoder = Decoder(mode)
    for at in range(len(code)):
        assert decode(code, at, mode) == decoder.decode(code, at)


@MODES
def test_operands_that_change_the_effect_are_not_shared(mode: Mode):
    """A call of the next instruction only pushes; an immediate may be a frame's size."""
    code = bytes.fromhex(
        "e800000000 e805000000 e800000000 0fbaed3c 0fbaed3b 480fbaed3c 480fbaed3b c8200000 c8200001"
        "b810000000 b800500000 b810000000"
    )
    for decoder in (Decoder(mode), Decoder(mode)):
        for at in (*range(len(code)), *range(len(code))[::-1]):
            assert decode(code, at, mode) == decoder.decode(code, at)


@MODES
def test_a_truncated_instruction_is_refused_despite_its_cached_prefix(mode: Mode):
    decoder = Decoder(mode)
    call = b"\xe8\x01\x02\x03\x04"
    assert decode(call, 0, mode) == decoder.decode(call, 0) == decoder.decode(call, 0)
    for end in range(1, len(call)):
        assert decode(call[:end], 0, mode) == decoder.decode(call[:end], 0)


@pytest.mark.peer
def test_compiled_code_is_decoded_once(lab_program: Build):
    """A second pass takes nearly all of it from the cache."""
    contents = lab_program("frames", "-O0", "compact", Arch.X86_64)
    section = contents.image.section("__TEXT", "__text")
    assert section is not None
    code = bytes(contents.read_svma(section.address, section.size))
    decoder = Decoder(MODE_64)

    def read() -> int:
        at = 0
        while at < len(code):
            found = decode(code, at, MODE_64)
            assert found == decoder.decode(code, at)
            at += found[0]
        return decoder.misses

    first = read()
    assert 0 < first == read()


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch):
    """A full cache is cleared and filled again."""
    monkeypatch.setattr("machtrace.unwinder.arch.x86.decoder.CACHED", 100)
    decoder = Decoder(MODE_64)
    code = b"".join(b"\x48\x89\x85" + at.to_bytes(4, "little") for at in range(1000))
    for at in range(0, len(code), 7):
        assert decode(code, at, MODE_64) == decoder.decode(code, at)
    assert decoder.cached_count <= 110


@pytest.mark.parametrize(
    ("code", "effects"),
    [
        ("8fe978cbc0", (NOTHING,)),  # vphadddq xmm0, xmm0
        ("8fe878c0c005", (NOTHING,)),  # vprotb xmm0, xmm0, 5
        ("8fea7810c011223344", (Writes((0,)),)),  # bextr eax, eax, 0x44332211
        ("8fe97801c8", (Writes((0,)),)),  # blcfill eax, eax
        ("8fc0", (Load((0,), 8, 7, 0, 8),)),  # pop rax
    ],
)
def test_xop_instructions_begin_like_pop(code: str, effects: Effects):
    """AMD's prefix is pop's opcode with an opcode map where pop has a register or memory."""
    data = bytes.fromhex(code)
    length, found = decode(data + b"\x90" * 16, 0)
    assert length == len(data)
    assert [one for one in found if one != NOTHING] == [
        effect for effect in effects if effect != NOTHING
    ]
