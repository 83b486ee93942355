"""Human names for mangled ones: C++, Rust and Swift.

Which mangling a name has, its own beginning tells: ``_Z`` is the Itanium C++ ABI's, which Rust's
older mangling (``_ZN…17h<hash>E``) wears too; ``_R`` is Rust's own (RFC 2603); ``$s``, ``$S`` and
``_T`` are Swift's. Mach-O puts one underscore before each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import cache, lru_cache
from importlib import import_module

__all__ = ["DemangleStyle", "demangle"]

_REMEMBERED = 1 << 16
"""Names whose answers are kept: the most recently asked for."""
_LONGEST = 1 << 16
"""Characters of a name that is looked at. The longest of jaxlib, torch and node has 3,325."""
_LONGEST_REMEMBERED = 1 << 12
"""Characters of a name whose answer is kept, so that what is kept has a limit in bytes, too."""


class DemangleStyle(Enum):
    """How much of a demangled name is shown."""

    FULL = "full"
    """All that the mangled name says: return type, parameters, template arguments, the hash of
    Rust's older mangling."""
    SIMPLIFIED = "simplified"
    """What is read at a glance, in call trees: no parameters, return type or hash; arguments of
    templates and generics as ``<...>``; inline namespaces of the C++ library left out."""


def demangle(linkage_name: str, *, style: DemangleStyle = DemangleStyle.FULL) -> str:
    """The name as people write it, or ``linkage_name`` where it is no mangled name.

    Names with and without the underscore that Mach-O puts first are understood alike; so are
    blocks (``_block_invoke``) and what compilers append to copies of functions (``.cold.1``,
    ``.llvm.123``). Raises nothing, whatever the name; takes time and memory in proportion to its
    length. The most recent answers are kept.

    Args:
        linkage_name: as a symbol table spells it.
        style: how much of the name is wanted.
    """
    if len(linkage_name) > _LONGEST or not may_be_mangled(linkage_name):
        return linkage_name
    if len(linkage_name) > _LONGEST_REMEMBERED:
        return _demangle(linkage_name, style)
    return _remembered(linkage_name, style)


def may_be_mangled(name: str) -> bool:
    """Whether a name begins as mangled ones do; quick, for millions of names."""
    return name.startswith(_BEGINNINGS)


_SWIFT_BEGINNINGS = ("$s", "_$s", "$S", "_$S", "_T0", "__T0", "$e", "_$e")
"""What Swift's linkage names begin with."""


def apple_style(linkage_name: str, name: str) -> str:
    """``name``, or of a Swift function the shorter form without modules and types of results.

    Args:
        linkage_name: as the symbol table spells it; may be empty.
        name: the function's full name.
    """
    if not linkage_name.startswith(_SWIFT_BEGINNINGS):
        return name
    shown = demangle(linkage_name, style=DemangleStyle.SIMPLIFIED)
    return name if shown == linkage_name else shown


_CPLUSPLUS = ("_Z", "__Z", "___Z", "____Z")
_HASH = "17h"
"""In every name of Rust's older mangling, before the hash."""
_RUST = ("_R", "__R")
_SWIFT = ("$s", "$S", "$e", "_$s", "_$S", "_$e", "_T", "__T", "@__swiftmacro_", "_@__swiftmacro_")
_SWIFT_IN_MACHO = ("__T", "_@__swiftmacro_")
"""Names that Swift's own demangler does not know with Mach-O's underscore."""
_BEGINNINGS = (*_CPLUSPLUS, *_RUST, *_SWIFT)


def _demangle(name: str, style: DemangleStyle) -> str:
    simplified = style is DemangleStyle.SIMPLIFIED
    for language in _languages(name):
        found: str | None = language(name, simplified=simplified)
        if found is not None:
            return found
    if name.startswith(_SWIFT_IN_MACHO):
        inner = _demangle(name[1:], style)
        return name if inner == name[1:] else inner
    return name


_remembered = lru_cache(maxsize=_REMEMBERED)(_demangle)


def _languages(name: str) -> tuple[Callable[..., str | None], ...]:
    if name.startswith(_CPLUSPLUS):
        if _HASH in name:
            return _demangler("rust_legacy"), _demangler("cplusplus")
        return (_demangler("cplusplus"),)
    return (_demangler("rust" if name.startswith(_RUST) else "swift"),)


_DEMANGLERS = {
    "cplusplus": ("itanium.demangler", "demangle_cplusplus"),
    "rust": ("rust.v0", "demangle_rust"),
    "rust_legacy": ("rust.legacy", "demangle_rust_legacy"),
    "swift": ("swift.demangler", "demangle_swift"),
}
"""Module of this package and function, by language."""


@cache
def _demangler(language: str) -> Callable[..., str | None]:
    """Import the demangler of a language when its first name is seen."""
    module, name = _DEMANGLERS[language]
    function: Callable[..., str | None] = getattr(import_module(f"{__name__}.{module}"), name)
    return function
