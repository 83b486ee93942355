"""Literals in mangled C++ names: ``<expr-primary>``, section 5.1.6.1."""

from __future__ import annotations

import re
import string
import struct

from machtrace.demangler.itanium.names import Names
from machtrace.demangler.itanium.nodes import Node, Precedence, Shape, joined
from machtrace.demangler.itanium.types import BUILTIN_TYPES

_SUFFIXES = {"i": "", "j": "u", "l": "l", "m": "ul", "x": "ll", "y": "ull"}
_CAST = frozenset("wcahstno")
_FLOATS = {"f": (4, ">f", "f"), "d": (8, ">d", ""), "e": (10, "", "L")}
"""Bytes, layout and suffix. ``long double`` is taken to be x86's of 80 bits."""
_CHARACTER = re.compile(r"\(char\)(-?[0-9]{1,3})")
_ESCAPES = {"\a": r"\a", "\b": r"\b", "\t": r"\t", "\n": r"\n", "\v": r"\v"}
_ESCAPES |= {"\f": r"\f", "\r": r"\r", '"': r"\"", "\\": r"\\"}
_DELETE = 0x7F


class Literals(Names):
    """The rules of ``<expr-primary>``."""

    def literal(self) -> Node:  # noqa: C901, PLR0911 (one arm a kind)
        """``<expr-primary>``."""
        self.expect("L")
        letter = self.name[self.at]
        if letter in _SUFFIXES:
            self.at += 1
            return Node(self._integer() + _SUFFIXES[letter])
        if letter == "b" and self.name[self.at + 1] in "01" and self.name[self.at + 2] == "E":
            value = "true" if self.name[self.at + 1] == "1" else "false"
            self.at += 3
            return Node(value)
        if letter in _CAST:
            self.at += 1
            return _cast(Node(BUILTIN_TYPES[letter]), self._integer())
        if letter in _FLOATS:
            self.at += 1
            return self._float(*_FLOATS[letter])
        if self.take("_Z") or self.take("Z"):
            node = self.encoding()
            self.expect("E")
            return node
        if letter == "A":
            type_ = self.type()
            self.expect("E")
            return self.lift(lambda of: Node(f'"<{of.text}>"'), type_)
        if self.take("Dn"):
            self.take("0")
            self.expect("E")
            return Node("nullptr")
        if self.take("Ul"):
            declarator, _ = self.closure_declarator()
            self.expect("E")
            return self.lift(lambda of: Node(f"[]{of.text}{{...}}"), declarator)
        if letter == "T":
            raise self.fail()
        type_ = self.type()
        digits = self.number(signed=True)
        if not digits.lstrip("n"):
            raise self.fail()
        self.expect("E")
        return self.lift(lambda of: _cast(of, digits.replace("n", "-")), type_)

    def _integer(self) -> str:
        digits = self.number(signed=True)
        self.expect("E")
        if not digits.lstrip("n"):
            raise self.fail()
        return digits.replace("n", "-")

    def _float(self, size: int, layout: str, suffix: str) -> Node:
        end = self.name.find("E", self.at)
        digits = self.name[self.at : end]
        if end < 0 or len(digits) < 2 * size or not set(digits) <= set("0123456789abcdef"):
            raise self.fail()
        self.at = end + 1
        raw = bytes.fromhex(digits[: 2 * size])
        if layout:
            return Node(_hexadecimal(struct.unpack(layout, raw)[0]) + suffix)
        return Node(_extended(raw) + suffix)


def _cast(type_: Node, value: str) -> Node:
    node = Node(f"({type_.text}){value}")
    node.precedence = Precedence.CAST
    return node


def braced_text(of: Node, *items: Node) -> str:
    """Return a list of values with its type; an array of characters is a string literal."""
    characters = [_CHARACTER.fullmatch(item.text) for item in items]
    if of.left == "char" and of.shape == Shape.ARRAY and items and None not in characters:
        return _string_literal(
            bytes(int(character[1]) & 0xFF for character in characters if character is not None)
        )
    return f"{of.text}{{{joined(list(items))}}}"


def _string_literal(raw: bytes) -> str:
    try:
        raw.decode()
    except UnicodeDecodeError:
        is_text = False
    else:
        is_text = True
    parts = []
    continuing = ""  # digits that would be taken for the last escape sequence's
    for value in raw:
        part, digits = chr(value), ""  # of a name, whose text is its bytes
        if part in _ESCAPES:
            shown = _ESCAPES[part]
        elif value < 8:  # noqa: PLR2004 (one octal digit)
            shown, digits = f"\\{value}", string.octdigits
        elif value < ord(" ") or value == _DELETE or (value > _DELETE and not is_text):
            shown, digits = f"\\x{value:X}", string.hexdigits
        else:
            shown = f'""{part}' if part in continuing else part
        parts.append(shown)
        continuing = digits
    return f'"{"".join(parts)}"'


def _hexadecimal(value: float) -> str:
    """As C's ``%a``: no zeros at the end of the fraction."""
    text = value.hex()
    if "p" not in text:
        return text
    mantissa, exponent = text.split("p")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"{'0x0' if mantissa.endswith('0x') else mantissa}p{exponent}"


def _extended(raw: bytes) -> str:
    """As C's ``%La`` on x86: the first digit has four bits of the fraction."""
    sign = "-" if raw[0] & 0x80 else ""
    exponent = ((raw[0] & 0x7F) << 8 | raw[1]) - 16383 - 3
    fraction = int.from_bytes(raw[2:], "big")
    if exponent == 0x7FFF - 16383 - 3:
        return sign + ("inf" if fraction << 1 & (1 << 64) - 1 == 0 else "nan")
    if not fraction:
        return sign + "0x0p+0"
    digits = f"{fraction:016x}"
    rest = digits[1:].rstrip("0")
    return f"{sign}0x{digits[0]}{'.' if rest else ''}{rest}p{exponent:+d}"
