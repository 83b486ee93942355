"""Identifiers with characters outside ASCII (Mangling.rst, "Identifiers").

They are Punycode (RFC 3492) with two differences, so that only characters of identifiers are
needed: the delimiter is ``_``, and the digits 26 to 35 are ``A`` to ``J``. ASCII characters that
may not stand in a symbol are written as code points from U+D800 on.
"""

from __future__ import annotations

from machtrace.demangler.swift.nodes import NotUnderstoodError

_BASE = 36
_SMALLEST = 1
_LARGEST = 26
_SKEW = 38
_DAMP = 700
_INITIAL_BIAS = 72
_INITIAL = 0x80
_LAST = 0x10FFFF
_DIGITS = {c: value for value, c in enumerate("abcdefghijklmnopqrstuvwxyzABCDEFGHIJ")}
_ESCAPED = range(0xD800, 0xD880)
_SURROGATES = range(0xD880, 0xE000)
_LONGEST = 1 << 11
"""Characters that are looked at: decoding inserts each, which takes the square of their number."""
_LARGEST_DELTA = (1 << 31) - 1


def decode(text: str) -> str:
    """The identifier that ``text`` stands for.

    Raises:
        NotUnderstoodError: it stands for none, or is longer than any that was ever written.
    """
    if len(text) > _LONGEST:
        raise NotUnderstoodError
    plain, _, digits = text.rpartition("_")
    found = [ord(c) for c in plain]
    code, place, bias = _INITIAL, 0, _INITIAL_BIAS
    at = 0
    while at < len(digits):
        delta, at = _number(digits, at, bias)
        count = len(found) + 1
        bias = _adapted(delta, count, first=place == 0)
        place += delta
        code += place // count
        place %= count
        if code > _LAST or code in _SURROGATES:
            raise NotUnderstoodError
        found.insert(place, code)
        place += 1
    return "".join(chr(c - _ESCAPED.start if c in _ESCAPED else c) for c in found)


def _number(digits: str, at: int, bias: int) -> tuple[int, int]:
    """A number of variable length, and where it ends (RFC 3492, 6.2)."""
    number, weight, position = 0, 1, _BASE
    for here in range(at, len(digits)):
        digit = _DIGITS.get(digits[here])
        if digit is None or number > _LARGEST_DELTA:
            break
        number += digit * weight
        threshold = min(max(position - bias, _SMALLEST), _LARGEST)
        if digit < threshold:
            return number, here + 1
        weight *= _BASE - threshold
        position += _BASE
    raise NotUnderstoodError


def _adapted(delta: int, count: int, *, first: bool) -> int:
    """The bias after a number (RFC 3492, 6.1)."""
    delta //= _DAMP if first else 2
    delta += delta // count
    position = 0
    while delta > (_BASE - _SMALLEST) * _LARGEST // 2:
        delta //= _BASE - _SMALLEST
        position += _BASE
    return position + (_BASE - _SMALLEST + 1) * delta // (delta + _SKEW)
