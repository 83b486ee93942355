"""A place in a mangled Rust name, its numbers and identifiers, and the text so far."""

from __future__ import annotations

from collections.abc import Callable

_BASE_62 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MAX_TEXT = 1 << 20
"""Characters that a name may become: a back-reference repeats what it refers to."""
_MAX_STEPS = 1 << 16
"""Back-references that are followed: within what they refer to there may be others."""
_MAX_DEPTH = 128
_MAX_VALUE = 1 << 64


class RustNameError(Exception):
    """A name is not of the grammar, or too much for the limits; caught where demangling starts."""


class RustCursor:
    """Reads a name from left to right and writes what it means."""

    def __init__(self, mangled: str, *, simplified: bool) -> None:
        self.name = mangled
        self.at = 0
        self.simplified = simplified
        self._pieces: list[str] = []
        self._length = 0
        self._silent = False
        self._depth = 0
        self._steps = _MAX_STEPS

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._pieces)

    def write(self, text: str) -> None:
        """Add to the text."""
        if self._silent:
            return
        self._length += len(text)
        if self._length > _MAX_TEXT:
            raise RustNameError
        self._pieces.append(text)

    def silently(self, parse: Callable[[], object]) -> None:
        """Parse something and write nothing of it."""
        before, self._silent = self._silent, True
        parse()
        self._silent = before

    def look(self) -> str:
        """The next character; empty at the end."""
        return self.name[self.at : self.at + 1]

    def take(self, character: str) -> bool:
        """Whether it is next; if so, pass over it."""
        if self.name.startswith(character, self.at):
            self.at += 1
            return True
        return False

    def next(self) -> str:
        """The next character, which is passed over."""
        if self.at >= len(self.name):
            raise RustNameError
        self.at += 1
        return self.name[self.at - 1]

    def deeper(self) -> None:
        """One level more."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise RustNameError

    def higher(self) -> None:
        """One level less."""
        self._depth -= 1

    def base_62(self) -> int:
        """``_`` is 0, ``0_`` 1, and so on."""
        if self.take("_"):
            return 0
        value = 0
        while not self.take("_"):
            digit = _BASE_62.find(self.next())
            value = value * 62 + digit
            if digit < 0 or value >= _MAX_VALUE:
                raise RustNameError
        return value + 1

    def optional_base_62(self, tag: str) -> int:
        """0 without ``tag``, else one more than the number behind it."""
        return self.base_62() + 1 if self.take(tag) else 0

    def back_reference(self, parse: Callable[[], object]) -> None:
        """``B <number>``, behind the ``B``: what was at that place before, once more."""
        start = self.at - 1
        target = self.base_62()
        if target >= start:
            raise RustNameError
        if self._silent:
            return
        self._steps -= 1
        if self._steps < 0:
            raise RustNameError
        self.deeper()
        after, self.at = self.at, target
        parse()
        self.at = after
        self.higher()

    def identifier(self) -> tuple[str, int]:
        """An identifier, and its disambiguator: which of several of this name it is."""
        number = self.optional_base_62("s")
        return self.plain_identifier(), number

    def plain_identifier(self) -> str:
        """``[u] <length> [_] <bytes>``."""
        is_punycode = self.take("u")
        start = self.at
        if not self.take("0"):
            while "0" <= self.look() <= "9":
                self.at += 1
        digits = self.name[start : self.at]
        if not digits or len(digits) > 7:  # noqa: PLR2004 (no name is longer)
            raise RustNameError
        self.take("_")
        end = self.at + int(digits)
        if end > len(self.name):
            raise RustNameError
        found = self.name[self.at : end]
        self.at = end
        return _from_punycode(found) if is_punycode else found


def _from_punycode(encoded: str) -> str:
    """RFC 3492, with ``_`` in place of the last ``-``."""
    basic, separator, rest = encoded.rpartition("_")
    try:
        shown = f"{basic}-{rest}" if separator else rest
        return shown.encode("ascii").decode("punycode")
    except (UnicodeError, ValueError, OverflowError):
        raise RustNameError from None
