"""Changes of bytes that any format has to live with; targets add those of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

Mutation = Callable[[bytearray, Random], None]
"""Changes an input in place. It may be of any size, and may become empty."""

MAX_LENGTH = 1 << 20
"""Bytes of an input at most."""
_NUMBERS = (0, 1, 2, 3, 4, 7, 8, 15, 16, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x10000, 0xFFFFFF)
_WIDE = (0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFF0, 1 << 32, 1 << 47, 1 << 63, (1 << 64) - 1)


def place(data: bytearray, random: Random) -> int:
    """Somewhere in ``data``; more often near its start, where headers are."""
    size = len(data)
    if random.getrandbits(2) == 0:
        size = min(size, 64)
    return random.randrange(size) if size else 0


def flip_bit(data: bytearray, random: Random) -> None:
    """One bit turned round."""
    if data:
        data[place(data, random)] ^= 1 << random.getrandbits(3)


def replace_byte(data: bytearray, random: Random) -> None:
    """One byte, by any other."""
    if data:
        data[place(data, random)] = random.getrandbits(8)


def replace_number(data: bytearray, random: Random) -> None:
    """A number of 1 to 8 bytes, by one at which programs tend to err: limits, and the size."""
    width = 1 << random.getrandbits(2)
    at = place(data, random)
    if random.getrandbits(1):
        at &= -width
    kind = random.getrandbits(3)
    if kind < 3:  # noqa: PLR2004 (three in eight)
        number = random.choice(_NUMBERS)
    elif kind < 5:  # noqa: PLR2004
        number = random.choice(_WIDE)
    elif kind == 5:  # noqa: PLR2004
        number = len(data) + random.randrange(-16, 17)
    else:
        number = int.from_bytes(data[at : at + width], "little") + random.randrange(-32, 33)
    if random.getrandbits(3) == 0:
        number = -number
    write_number(data, at, width, number)


def write_number(data: bytearray, at: int, width: int, number: int) -> None:
    """``number``, as much of it as there is room for."""
    raw = (number & (1 << 8 * width) - 1).to_bytes(width, "little")
    data[at : at + width] = raw[: max(0, len(data) - at)]


def stretch_leb128(data: bytearray, random: Random) -> None:
    """Insert a run of bytes with the continuation bit set."""
    at = place(data, random)
    data[at:at] = b"\xff" * random.randrange(1, 12)


def _chunk(data: bytearray, random: Random) -> tuple[int, int]:
    at = place(data, random)
    return at, at + (1 << random.randrange(9))


def delete(data: bytearray, random: Random) -> None:
    """Some bytes gone."""
    low, high = _chunk(data, random)
    del data[low:high]


def duplicate(data: bytearray, random: Random) -> None:
    """Some bytes once more, elsewhere."""
    low, high = _chunk(data, random)
    at = place(data, random)
    data[at:at] = data[low:high]


def overwrite(data: bytearray, random: Random) -> None:
    """Some bytes over others."""
    low, high = _chunk(data, random)
    moved = data[low:high]
    at = place(data, random)
    data[at : at + len(moved)] = moved


def repeat(data: bytearray, random: Random) -> None:
    """Some bytes very often: what takes time takes much of it."""
    low, high = _chunk(data, random)
    part = data[low:high]
    if part:
        times = min(MAX_LENGTH - len(data), 1 << random.randrange(8, 20)) // len(part)
        data[high:high] = part * max(0, times)


def cut(data: bytearray, random: Random) -> None:
    """The end gone."""
    del data[place(data, random) :]


EVERYWHERE: tuple[Mutation, ...] = (
    flip_bit,
    flip_bit,
    replace_byte,
    replace_byte,
    replace_number,
    replace_number,
    replace_number,
    stretch_leb128,
    delete,
    duplicate,
    overwrite,
    overwrite,
)
_RARE: tuple[Mutation, ...] = (cut, cut, cut, repeat)
_RARELY = 100
_ROUNDS = (1, 1, 2, 2, 3, 4, 6, 10)


def insert_token(tokens: Sequence[bytes], *, unit: int = 1) -> Mutation:
    """A mutation that writes one of ``tokens`` at a multiple of ``unit``, over what is there."""

    def mutate(data: bytearray, random: Random) -> None:
        at = place(data, random) // unit * unit
        token = random.choice(tokens)
        data[at : at + (0 if random.getrandbits(2) == 0 else len(token))] = token

    return mutate


def splice(data: bytearray, other: bytes, random: Random) -> None:
    """The start of one input and the end of another."""
    at = place(data, random)
    start = min(at, len(other)) if random.getrandbits(1) else random.randrange(len(other) + 1)
    data[at:] = other[start:]


def mutated(seeds: Sequence[bytes], own: Sequence[Mutation], random: Random) -> bytes:
    """A new input from one of ``seeds``; ``own`` are the mutations of the target's format."""
    data = bytearray(random.choice(seeds))
    if random.getrandbits(4) == 0:
        splice(data, random.choice(seeds), random)
    mutations = (*own, *EVERYWHERE) if own else EVERYWHERE
    for _ in range(random.choice(_ROUNDS)):
        if own and random.getrandbits(1):
            random.choice(own)(data, random)
        else:
            random.choice(mutations)(data, random)
    if random.randrange(_RARELY) == 0:
        random.choice(_RARE)(data, random)
    return bytes(data[:MAX_LENGTH])
