"""Changes of mangled names, of any language."""

from __future__ import annotations

from random import Random

from fuzz.mutation import place

_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_$."


def letter(data: bytearray, random: Random) -> None:
    """One character, by another that names are made of, or before it."""
    at = place(data, random)
    data[at : at + random.getrandbits(1)] = bytes((random.choice(_ALPHABET),))


def part(data: bytearray, random: Random) -> None:
    """Some of the name again, or often, where it is or elsewhere."""
    at = place(data, random)
    piece = data[at : at + random.randrange(1, 40)]
    to = at if random.getrandbits(1) else place(data, random)
    data[to:to] = piece * random.choice((1, 1, 1, 2, 3, 20, 200))


def gap(data: bytearray, random: Random) -> None:
    """A few characters gone."""
    at = place(data, random)
    del data[at : at + random.randrange(1, 8)]
