"""C++ names mangled after the Itanium C++ ABI, as LLVM's demangler writes them.

The name is read once from left to right, with a limit to its nesting and to the text that it may
become; every substitution is text already. So a hostile name takes no more time than a long one.

Nearly all names are of few parts of the grammar. Those are read in C where it is built; it declines
what it does not know, and the modules here say what is right.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from machtrace.demangler.itanium.cplusplus_encodings import Encodings
from machtrace.demangler.itanium.nodes import UnreadableNameError

_PREFIX = re.compile("_{1,4}Z")
_BLOCK = re.compile(r"_block_invoke(_[0-9]+|[0-9]*)(?=\.|\Z)")
_STAND_IN = re.compile("\1([0-9]+)\1")
_LONGEST = 1 << 16
"""Characters of a name that is looked at."""
_LONGEST_TEXT = 1 << 20


def demangle_cplusplus(name: str, *, simplified: bool) -> str | None:
    """A C++ name as people write it; None where it is no whole mangled name.

    What a compiler appended to a copy of the function follows in parentheses: ``f() (.cold.1)``.
    A block's code is called ``invocation function for block in f()``. Raises nothing.

    Args:
        name: with the underscores that its platform puts first.
        simplified: without parameters and return type, template arguments as ``<...>``.
    """
    native = _native()
    found = None if native is None or len(name) > _LONGEST else native(name, simplified)
    return read_cplusplus(name, simplified=simplified) if found is None else found


def read_cplusplus(name: str, *, simplified: bool) -> str | None:
    """The same as :func:`demangle_cplusplus`, without what is read in C."""
    prefix = _PREFIX.match(name)
    if prefix is None or "\0" in name or len(name) > _LONGEST:
        return None
    if not name.isascii():  # lengths count bytes
        name = name.encode("utf-8", "surrogateescape").decode("latin-1")
        found = _read(name, prefix.end(), simplified=simplified)
        return None if found is None else found.encode("latin-1").decode("utf-8", "replace")
    return _read(name, prefix.end(), simplified=simplified)


def _read(name: str, at: int, *, simplified: bool) -> str | None:
    try:
        return _whole(Encodings(name, at, simplified=simplified), name)
    except (UnreadableNameError, RecursionError):
        return None


@cache
def _native() -> Callable[[str, bool], str | None] | None:
    try:
        from machtrace._native._names import cplusplus_name
    except ImportError:
        return None
    return cplusplus_name


def demangle_type(mangled: str, *, simplified: bool = False) -> str | None:
    """A C++ type as people write it, from what ``type_info`` objects name it by.

    None where it is no whole mangled type; raises nothing.
    """
    if "\0" in mangled or len(mangled) > _LONGEST:
        return None
    parser = Encodings(mangled, 0, simplified=simplified)
    try:
        text = parser.type().text
    except (UnreadableNameError, RecursionError):
        return None
    return text if parser.at == len(mangled) else None


def _whole(parser: Encodings, name: str) -> str | None:
    text = parser.encoding().text
    if parser.forward:
        text = _with_forward_references(text, parser.forward)
    if parser.at == len(name):
        return text
    rest = name[parser.at :]
    block = _BLOCK.match(rest)
    if block is not None:
        text = f"invocation function for block in {text}"
        rest = rest[block.end() :]
    if not rest:
        return text
    if rest[0] not in ".$":
        return None
    return text if parser.simplified else f"{text} ({rest})"


def _with_forward_references(text: str, forward: dict[int, str]) -> str:
    # What is put in may hold stand-ins itself; one more round is as far as real names go.
    for _ in range(2):
        text = _STAND_IN.sub(lambda found: forward.get(int(found[1]), ""), text)
        if len(text) > _LONGEST_TEXT:
            raise UnreadableNameError
    return text
