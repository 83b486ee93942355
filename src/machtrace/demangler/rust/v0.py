"""Rust names of the newer mangling, "v0": RFC 2603 and the rustc book's page on it.

As ``rustc-demangle`` and LLVM write them, without the hashes of crates.

Paths in mangled Rust names: RFC 2603, "paths".

Types and constants in mangled Rust names: RFC 2603, "types" and "consts".
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable

from machtrace.demangler.rust.cursor import RustCursor, RustNameError

_BASIC = {
    "a": "i8",
    "b": "bool",
    "c": "char",
    "d": "f64",
    "e": "str",
    "f": "f32",
    "h": "u8",
    "i": "isize",
    "j": "usize",
    "l": "i32",
    "m": "u32",
    "n": "i128",
    "o": "u128",
    "p": "_",
    "s": "i16",
    "t": "u16",
    "u": "()",
    "v": "...",
    "x": "i64",
    "y": "u64",
    "z": "!",
}
_SIGNED = frozenset("asilxn")
_UNSIGNED = frozenset("htjmyo")
_MAX_LIFETIMES = 1 << 10
_MAX_DECIMAL = 16
"""Hexadecimal digits of a number that is shown in decimal; longer ones stay as they are."""


class RustTypes(RustCursor, ABC):
    """The rules of ``<type>`` and ``<const>``."""

    def __init__(self, mangled: str, *, simplified: bool) -> None:
        super().__init__(mangled, simplified=simplified)
        self._lifetimes = 0

    @abstractmethod
    def path(self, *, in_value: bool, stays_open: bool = False) -> bool:
        """``<path>``; whether its generic arguments are still to be closed."""

    def type(self) -> None:
        """``<type>``."""
        start = self.at
        tag = self.next()
        if tag in _BASIC:
            self.write(_BASIC[tag])
            return
        self.deeper()
        if tag in "RQ":
            self._reference(mutable=tag == "Q")
        elif tag in "PO":
            self.write("*mut " if tag == "O" else "*const ")
            self.type()
        elif tag in "AS":
            self.write("[")
            self.type()
            if tag == "A":
                self.write("; ")
                self.constant()
            self.write("]")
        elif tag == "T":
            count = self._list(self.type, "(")
            self.write(",)" if count == 1 else ")")
        elif tag == "F":
            self._within_binder(self._function)
        elif tag == "D":
            self._dynamic()
        elif tag == "B":
            self.back_reference(self.type)
        else:
            self.at = start
            self.path(in_value=False)
        self.higher()

    def _list(self, parse: Callable[[], object], opening: str) -> int:
        self.write(opening)
        count = 0
        while not self.take("E"):
            if count:
                self.write(", ")
            parse()
            count += 1
        return count

    def _reference(self, *, mutable: bool) -> None:
        self.write("&")
        if self.take("L"):
            lifetime = self.base_62()
            if lifetime:
                self.lifetime(lifetime)
                self.write(" ")
        if mutable:
            self.write("mut ")
        self.type()

    def lifetime(self, index: int) -> None:
        """A lifetime by how many binders further in it was bound; 0 is one that was erased."""
        if index == 0:
            self.write("'_")
            return
        depth = self._lifetimes - index
        if depth < 0:
            raise RustNameError
        self.write(f"'{chr(ord('a') + depth)}" if depth < 26 else f"'z{depth - 26 + 1}")  # noqa: PLR2004

    def _within_binder(self, parse: Callable[[], object]) -> None:
        bound = self.optional_base_62("G")
        if bound > _MAX_LIFETIMES:
            raise RustNameError
        if bound:
            self.write("for<")
            for number in range(bound):
                if number:
                    self.write(", ")
                self._lifetimes += 1
                self.lifetime(1)
            self.write("> ")
        parse()
        self._lifetimes -= bound

    def _function(self) -> None:
        if self.take("U"):
            self.write("unsafe ")
        if self.take("K"):
            abi = "C" if self.take("C") else self.plain_identifier().replace("_", "-")
            self.write(f'extern "{abi}" ')
        self._list(self.type, "fn(")
        self.write(")")
        if not self.take("u"):
            self.write(" -> ")
            self.type()

    def _dynamic(self) -> None:
        self.write("dyn ")
        self._within_binder(self._bounds)
        if not self.take("L"):
            raise RustNameError
        lifetime = self.base_62()
        if lifetime:
            self.write(" + ")
            self.lifetime(lifetime)

    def _bounds(self) -> None:
        first = True
        while not self.take("E"):
            if not first:
                self.write(" + ")
            first = False
            is_open = self.path(in_value=False, stays_open=True)
            while self.take("p"):
                self.write(", " if is_open else "<")
                is_open = True
                self.write(self.plain_identifier() + " = ")
                self.type()
            if is_open:
                self.write(">")

    def constant(self) -> None:
        """``<const>``."""
        self.deeper()
        tag = self.next()
        if tag == "B":
            self.back_reference(self.constant)
        elif tag == "p":
            self.write("_")
        elif tag in _UNSIGNED or tag in _SIGNED:
            if tag in _SIGNED and self.take("n"):
                self.write("-")
            self._number()
        elif tag == "b":
            digits = self._digits()
            if digits not in {"0", "1"}:
                raise RustNameError
            self.write("true" if digits == "1" else "false")
        elif tag == "c":
            self.write(_quoted(self._digits()))
        else:
            self._structured(tag)
        self.higher()

    def _structured(self, tag: str) -> None:
        """Constants that have parts, from the extension of RFC 2603 by ``adt_const_params``."""
        if tag == "e":
            self.write(_text(self._digits(even=True)))
        elif tag in "RQ":
            if tag == "R" and self.take("e"):
                self.write(_text(self._digits(even=True)))
                return
            self.write("&mut " if tag == "Q" else "&")
            self.constant()
        elif tag == "A":
            self._list(self.constant, "[")
            self.write("]")
        elif tag == "T":
            count = self._list(self.constant, "(")
            self.write(",)" if count == 1 else ")")
        elif tag == "V":
            self._variant()
        else:
            raise RustNameError

    def _variant(self) -> None:
        self.path(in_value=True)
        kind = self.next()
        if kind == "T":
            self._list(self.constant, "(")
            self.write(")")
        elif kind == "S":
            self._list(self._field, " { ")
            self.write(" }")
        elif kind != "U":
            raise RustNameError

    def _field(self) -> None:
        name, _ = self.identifier()
        self.write(f"{name}: ")
        self.constant()

    def _number(self) -> None:
        digits = self._digits()
        self.write(str(int(digits, 16)) if len(digits) <= _MAX_DECIMAL else f"0x{digits}")

    def _digits(self, *, even: bool = False) -> str:
        """Hexadecimal digits up to a ``_``, without zeros before them unless they are bytes."""
        end = self.name.find("_", self.at)
        digits = self.name[self.at : end]
        if end < 0 or not set(digits) <= set("0123456789abcdef"):
            raise RustNameError
        self.at = end + 1
        if even:
            if len(digits) % 2:
                raise RustNameError
            return digits
        if not digits or (digits[0] == "0" and len(digits) > 1):
            raise RustNameError
        return digits


def _quoted(digits: str) -> str:
    code = int(digits, 16) if len(digits) <= 6 else -1  # noqa: PLR2004 (the last has six)
    if not 0 <= code <= 0x10FFFF or 0xD800 <= code <= 0xDFFF:  # noqa: PLR2004 (Unicode's)
        raise RustNameError
    escaped = {9: r"\t", 10: r"\n", 13: r"\r", 39: r"\'", 92: r"\\"}.get(code)
    if escaped is None:
        shown = chr(code)
        escaped = shown if shown.isprintable() else f"\\u{{{code:x}}}"
    return f"'{escaped}'"


def _text(digits: str) -> str:
    try:
        text = bytes.fromhex(digits).decode("utf-8")
    except UnicodeError:
        raise RustNameError from None
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", r"\n").replace("\t", r"\t")
    return '"' + "".join(c if c.isprintable() else f"\\u{{{ord(c):x}}}" for c in text) + '"'


__all__ = ["RustNameError", "RustPaths"]

_SPECIAL = {"C": "closure", "S": "shim"}


class RustPaths(RustTypes):
    """The rules of ``<path>``."""

    def path(self, *, in_value: bool, stays_open: bool = False) -> bool:
        """``<path>``; whether its generic arguments are still to be closed.

        Args:
            in_value: it is a value's, where generic arguments follow ``::``.
            stays_open: more may follow its generic arguments.
        """
        self.deeper()
        is_open = False
        tag = self.next()
        if tag == "C":
            self.write(self.identifier()[0])
        elif tag in "MXY":
            self._implementation(tag)
        elif tag == "N":
            self._nested(in_value=in_value)
        elif tag == "I":
            is_open = self._generic(in_value=in_value, stays_open=stays_open)
        elif tag == "B":
            opened = [False]

            def again() -> None:
                opened[0] = self.path(in_value=in_value, stays_open=stays_open)

            self.back_reference(again)
            is_open = opened[0]
        else:
            raise RustNameError
        self.higher()
        return is_open

    def _implementation(self, tag: str) -> None:
        """``<T>``, ``<T as Trait>``; where it was implemented is not shown."""
        if tag != "Y":
            self.optional_base_62("s")
            self.silently(lambda: self.path(in_value=False))
        self.write("<")
        self.type()
        if tag != "M":
            self.write(" as ")
            self.path(in_value=False)
        self.write(">")

    def _nested(self, *, in_value: bool) -> None:
        namespace = self.next()
        if not namespace.isalpha():
            raise RustNameError
        self.path(in_value=in_value)
        name, number = self.identifier()
        if namespace.isupper():
            kind = _SPECIAL.get(namespace, namespace)
            shown = f":{name}" if name else ""
            self.write(f"::{{{kind}{shown}#{number}}}")
        elif name:
            self.write(f"::{name}")

    def _generic(self, *, in_value: bool, stays_open: bool) -> bool:
        self.path(in_value=in_value)
        if in_value:
            self.write("::")
        if self.simplified:
            self.write("<...")
            self.silently(self._arguments)
        else:
            self.write("<")
            self._arguments()
        if stays_open:
            return True
        self.write(">")
        return False

    def _arguments(self) -> None:
        first = True
        while not self.take("E"):
            if not first:
                self.write(", ")
            first = False
            if self.take("L"):
                self.lifetime(self.base_62())
            elif self.take("K"):
                self.constant()
            else:
                self.type()


_PREFIX = re.compile("_{1,2}R(?=[A-Z])")
_NAME = re.compile("[0-9A-Za-z_]*")


def demangle_rust(name: str, *, simplified: bool) -> str | None:
    """A Rust name of the mangling "v0" as people write it; None where it is none.

    What a compiler appended to a copy of the function follows in parentheses. Raises nothing.

    Args:
        name: with the underscores that its platform puts first.
        simplified: generic arguments as ``<...>``, and nothing of what follows the name.
    """
    prefix = _PREFIX.match(name)
    if prefix is None:
        return None
    encoded = _NAME.match(name, prefix.end())
    mangled = encoded[0] if encoded is not None else ""
    rest = name[prefix.end() + len(mangled) :]
    if rest and rest[0] not in ".$":
        return None
    paths = RustPaths(mangled, simplified=simplified)
    try:
        paths.path(in_value=True)
        if paths.at < len(mangled):  # the crate that instantiated a generic function
            paths.silently(lambda: paths.path(in_value=False))
    except (RustNameError, RecursionError):
        return None
    if paths.at != len(mangled):
        return None
    return paths.text if simplified or not rest else f"{paths.text} ({rest})"
