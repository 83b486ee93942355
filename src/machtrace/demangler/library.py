"""Names of Rust and Swift, read by the library ``demangle``.

Rust has two manglings: that of RFC 2603 (``_R…``), and an older one in the form of C++ names whose
last part is a hash (``_ZN…17h0123456789abcdefE``). Swift has one for each age: ``$s`` (Swift 5 and
later), ``$S`` and ``_T0`` (Swift 4), ``$e`` (Embedded Swift), ``@__swiftmacro_`` (files of macro
expansions), and ``_T`` (Swift 3 and earlier, and what Objective-C calls classes and protocols of
Swift). Mach-O puts an underscore before some of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Protocol

from demangle import Style, demangle, preload, style
from demangle.schemes.swift import (
    DEFAULT_OPTIONS,
    SIMPLIFIED_OPTIONS,
    SwiftOptions,
    demangle_symbol,
    print_root,
)

preload("rust")  # an import at the first name could come while a thread is stopped
# The library caches only what it reads in a style with a name. Our caller caches all names.
_WITH_HASH = style("llvm", rust={"keep_hash": True})
_PLAIN = style("llvm", rust={"keep_hash": False})

_MAX_SWIFT = 1 << 15
"""Characters of a Swift name that is read."""
_MAX_TEXT = 1 << 16
"""Characters that a Swift name is printed in, and the weight of the nodes that it is printed from.
Of 8,494 names of public programs none has over 230 nodes."""
_SWIFT_FAILURES = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Exceptions of the library for names that it cannot read; its public functions catch them, too."""

_RUST = re.compile(r"_{1,2}R(?=[A-Z])[0-9A-Za-z_]*")
_RUST_LEGACY = re.compile(r"_{1,2}ZN.*?17h([0-9a-f]{16})E")
_LLVM_COPY = re.compile(r"\.llvm\.[0-9A-F@]+\Z")
_MIN_DIGITS = 5
"""Different digits of a hash; with fewer it is a C++ name that looks like one."""
_TOKENS = re.compile(
    r"""(?P<list>(?:(?<=\w)(?<!\bfor)|(?<=::))<)"""  # of generic arguments
    r"""|(?P<open><)|(?P<close>(?<!-)>)"""
    r"""|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\[^']+)'"""  # constants, whose text is not read
)
_MANGLED = ("$", "_", "@")
"""How a text begins that may be a mangled name: of a function that another was specialised for."""
_CLOSURES = frozenset((5, 12))
"""Indices of closures among the kinds of specialised parameters (Swift's ``Demangle.h``)."""
_DEPTHS = {"list": 1, "open": 1, "close": -1}


class _Node(Protocol):
    """A node of the tree that the library reads a Swift name into."""

    kind: str
    text: str | None
    index: int | None
    children: Sequence[_Node]


_parse_swift: Callable[[str], _Node | None] = demangle_symbol
_print_swift: Callable[[_Node, SwiftOptions], str] = print_root


def demangle_rust(name: str, *, simplified: bool) -> str | None:
    """Return a Rust name of RFC 2603's mangling as people write it, or None if it is not one.

    What a compiler appended to a copy of the function follows in parentheses. Raises nothing.

    Args:
        name: with the underscores that its platform puts first.
        simplified: generic arguments as ``<...>``, and nothing of what follows the name.
    """
    encoded = _RUST.match(name)
    if encoded is None:
        return None
    rest = name[encoded.end() :]
    if rest and rest[0] not in ".$":
        return None
    text = _read_rust(encoded[0], _PLAIN)
    if text is None:
        return None
    if simplified:
        return "".join(_without_arguments(text))
    return f"{text} ({rest})" if rest else text


def demangle_rust_legacy(name: str, *, simplified: bool) -> str | None:
    """Return a name of Rust's older mangling as people write it, or None if it is not one.

    Raises nothing.

    Args:
        name: with the underscores that its platform puts first.
        simplified: without the hash and what follows the name.
    """
    encoded = _RUST_LEGACY.match(name)
    if encoded is None or len(set(encoded[1])) < _MIN_DIGITS:
        return None
    rest = _LLVM_COPY.sub("", name[encoded.end() :])
    if rest and rest[0] != ".":
        return None
    text = _read_rust(encoded[0], _PLAIN if simplified else _WITH_HASH)
    if text is None or simplified or not rest:
        return text
    return f"{text} ({rest})"


def demangle_swift(name: str, *, simplified: bool = False) -> str | None:
    """Return a Swift name as people write it, or None if it is not one that is understood.

    In full it is what ``swift-demangle`` prints, and in the simplified form what ``swift-demangle
    --simplified`` does. Raises nothing, whatever the name.

    Args:
        name: the name of a symbol or of a class, or of a type (``_TtC4main3Foo``), with its prefix.
        simplified: without modules, types of arguments, and other things of less interest.
    """
    if len(name) > _MAX_SWIFT:
        return None
    name = name[1:] if name.startswith("__") else name
    try:
        root = _parse_swift(name)
        if root is None or _Weight().of(root, {}) > _MAX_TEXT:
            return None
        _show_closures(root)
        text = _print_swift(root, SIMPLIFIED_OPTIONS if simplified else DEFAULT_OPTIONS)
        return text if 0 < len(text) <= _MAX_TEXT else None
    except _SWIFT_FAILURES:
        return None


def _show_closures(root: _Node) -> None:
    """Have the name of a closure that a function was specialised for demangled, as others are.

    ``swift-demangle`` does that for all names; the library prints the mangled one of a closure
    where the mangling is that of Swift 4 or later.
    """
    for specialisation in root.children:
        if specialisation.kind == "FunctionSignatureSpecialization":
            for parameter in specialisation.children:
                for kind, name in pairwise(parameter.children):
                    if kind.index in _CLOSURES and name.kind == "Identifier":
                        name.kind = "FunctionSignatureSpecializationParamPayload"


class _Weight:
    """How much is printed for a name: nodes, and the characters of their texts.

    A substitution refers to a node that was read before, so that few characters can stand for a
    tree that has twice the size at each level: it is weighed before it is printed.
    """

    def __init__(self) -> None:
        self._room = _MAX_TEXT  # characters of names in names

    def of(self, node: _Node, known: dict[int, int]) -> int:
        """Return the weight of a node, and store it by the node's identity."""
        weight = known.get(id(node))
        if weight is None:
            text = node.text or ""
            weight = 1 + len(text) + sum(self.of(child, known) for child in node.children)
            if text.startswith(_MANGLED):
                weight += self._of_name(text)
            known[id(node)] = weight
        return weight

    def _of_name(self, name: str) -> int:
        """Return the weight of a mangled name that is printed as a part of another."""
        self._room -= len(name)
        if self._room < 0:
            return _MAX_TEXT
        root = _parse_swift(name)
        return 0 if root is None else self.of(root, {})


def _read_rust(name: str, spelling: Style) -> str | None:
    text = demangle(name, language="rust", style=spelling)
    return None if text == name else text


def _without_arguments(text: str) -> Iterator[str]:
    """Yield the parts of a Rust name, with ``<...>`` for lists of generic arguments.

    ``<T as Trait>`` and ``for<'a>`` are not such lists.
    """
    depth = 0  # of a list of arguments
    start = 0  # of what is not yielded yet
    for token in _TOKENS.finditer(text):
        if depth:
            depth += _DEPTHS.get(token.lastgroup or "", 0)
            start = token.end()
        elif token["list"]:
            yield f"{text[start : token.start()]}<...>"
            depth = 1
    yield text[start:]
