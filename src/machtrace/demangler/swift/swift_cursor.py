"""A mangled Swift name of any age, and how far it is read."""

from __future__ import annotations

from machtrace.demangler.swift.nodes import NotUnderstoodError

END = "\0"
"""Stands behind the last character of a name; a name with one in it ends there."""


class SwiftCursor:
    """Where the reader is in a name; past its end there is IndexError."""

    __slots__ = ("at", "text")

    def __init__(self, text: str, at: int) -> None:
        """``at``: where reading begins."""
        self.text = text + END
        self.at = at

    def character(self) -> str:
        """The next character, which is then behind."""
        at = self.at
        self.at = at + 1
        return self.text[at]

    def skip(self, expected: str) -> bool:
        """Whether the next characters are ``expected``; if so, they are then behind."""
        if self.text.startswith(expected, self.at):
            self.at += len(expected)
            return True
        return False

    def expect(self, expected: str) -> None:
        """Pass ``expected``, which has to be next."""
        if not self.skip(expected):
            raise NotUnderstoodError
