"""Human names for mangled ones: C++, Rust and Swift.

Which mangling a name has, its own beginning tells: ``_Z`` is the Itanium C++ ABI's, which Rust's
older mangling (``_ZN…17h<hash>E``) wears too; ``_R`` is Rust's own (RFC 2603); ``$s``, ``$S`` and
``_T`` are Swift's. Mach-O puts one underscore before each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from importlib import import_module

from machtrace.demangler.style import DemangleStyle

__all__ = ["DemangleStyle", "demangle"]

_REMEMBERED = 1 << 16
"""Names whose answers are kept: the most recently asked for."""
_LONGEST = 1 << 16
"""Characters of a name that is looked at. The longest of jaxlib, torch and node has 3,325."""
_LONGEST_REMEMBERED = 1 << 12
"""Characters of a name whose answer is kept, so that what is kept has a limit in bytes, too."""


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


@cache
def _demangler(language: str) -> Callable[..., str | None]:
    """The demangler of a language, imported when the first of its names is met."""
    try:
        module = import_module(f"{__name__}.{language}")
    except ModuleNotFoundError:
        return _nothing
    found: Callable[..., str | None] = getattr(module, f"demangle_{language}")
    return found


def _nothing(_name: str, *, simplified: bool) -> None:
    del simplified
