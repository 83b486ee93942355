"""Paths in mangled Rust names: RFC 2603, "paths"."""

from __future__ import annotations

from machtrace.demangler.rust.cursor import RustNameError
from machtrace.demangler.rust.rust_types import RustTypes

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
