"""Swift names for people (``docs/ABI/Mangling.rst`` of the Swift project).

Names of all versions: ``$s`` (Swift 5 and later), ``$S`` and ``_T0`` (Swift 4), ``$e`` (Embedded
Swift), ``@__swiftmacro_`` (files of macro expansions), and ``_T`` (Swift 3 and earlier, and what
Objective-C calls classes and protocols of Swift). Mach-O puts an underscore before some of them.
"""

from __future__ import annotations

from machtrace.demangler.swift.machine import Machine
from machtrace.demangler.swift.nodes import (
    FAILURES,
    FUNCTION_ATTRIBUTES,
    Kind,
    Node,
    NotUnderstoodError,
)
from machtrace.demangler.swift.old.parser import parse_old
from machtrace.demangler.swift.swift_operators import run
from machtrace.demangler.swift.printing.printer import printed

_PREFIXES = ("_T0", "$S", "_$S", "$s", "_$s", "$e", "_$e", "@__swiftmacro_")
_OLD_PREFIX = "_T"
_LONGEST = 1 << 15
"""Characters of a name that is looked at."""


def demangle_swift(name: str, *, simplified: bool = False) -> str | None:
    """What people read for a mangled name, or None where it is no Swift name that is understood.

    In full it is what ``swift-demangle`` prints, and in the simplified form what ``swift-demangle
    --simplified`` does. Raises nothing, whatever the name; takes time and memory in proportion to
    its length, with a limit.

    Args:
        name: the name of a symbol or of a class, or of a type (``_TtC4main3Foo``), with its prefix.
        simplified: without modules, types of arguments, and other things of less interest.
    """
    root = parse_swift(name)
    if root is None:
        return None
    try:
        return printed(root, _parsed, simplified=simplified) or None
    except FAILURES:
        return None


def parse_swift(name: str) -> Node | None:
    """The tree that a mangled name stands for, or None where it is not understood.

    The tree is not to be changed. Raises nothing, whatever the name.
    """
    try:
        return _parsed(name)
    except FAILURES:
        return None


def _parsed(name: str) -> Node:
    """The tree of a name.

    Raises:
        NotUnderstoodError: it is no Swift name, or says what is not known.
        IndexError: the same, at the end of the name.
    """
    if len(name) > _LONGEST:
        raise NotUnderstoodError
    if name.startswith("__"):
        name = name[1:]
    if not name.isascii():
        name = name.encode("utf-8", "surrogatepass").decode("latin-1")
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return _new(name, len(prefix))
    if name.startswith(_OLD_PREFIX):
        return parse_old(name)
    raise NotUnderstoodError


def _new(name: str, at: int) -> Node:
    machine = Machine(name, at, labels_in_types=name.startswith(_OLD_PREFIX))
    run(machine)
    suffix = machine.pop(Kind.SUFFIX)
    attributes = []
    while attribute := machine.pop_any(FUNCTION_ATTRIBUTES):
        attributes.append(attribute)
    root: list[Node] = []
    children = root
    for attribute in attributes:
        if attribute.kind is Kind.PARTIAL_APPLY:
            inner: list[Node] = []
            children.append(Node(Kind.PARTIAL_APPLY, inner, attribute.text))
            children = inner
        else:
            children.append(attribute)
    children += machine.stack
    if suffix:
        root.append(suffix)
    if not root:
        raise NotUnderstoodError
    return Node(Kind.GLOBAL, root)
