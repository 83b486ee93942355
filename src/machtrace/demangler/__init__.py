"""Human names for mangled ones: C++, Rust and Swift.

A name's prefix identifies its mangling: ``_Z`` is the Itanium C++ ABI's, and that of Rust's older
mangling (``_ZN…17h<hash>E``); ``_R`` is Rust's own (RFC 2603); ``$s``, ``$S`` and ``_T`` are
Swift's. Mach-O puts one underscore before each of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, lru_cache
from importlib import import_module

_CACHED = 1 << 16
"""Maximum number of cached results."""
_MAX_LENGTH = 1 << 16
"""Characters of the longest name that is parsed. The longest in jaxlib, torch and node has 3,325.
"""
_MAX_CACHED_LENGTH = 1 << 12
"""Characters of the longest name whose result is cached, which limits the cache's bytes, too."""


def demangle(name: str, *, simplified: bool = False) -> str:
    """Return a linkage name as people write it, or ``name`` itself if it is not mangled.

    Names are accepted with and without the underscore that Mach-O puts first, with the suffixes of
    blocks (``_block_invoke``) and with those that compilers append to copies of functions
    (``.cold.1``, ``.llvm.123``), with the version that ELF gives a symbol (``@@GLIBCXX_3.4``), and
    with the prefix of a pointer to an imported function (``__imp_``). Raises nothing, whatever the
    name; time and memory are proportional to its length. The most recent results are cached.

    Args:
        name: as a symbol table spells it.
        simplified: the short form for call trees: without parameters, return type, hash and
            version, with ``<...>`` for the arguments of templates and generics, and without inline
            namespaces of the C++ library. The full form has all of these.
    """
    if len(name) > _MAX_LENGTH or not may_be_mangled(name):
        return name
    if len(name) > _MAX_CACHED_LENGTH:
        return _demangle(name, simplified)
    return _cached(name, simplified)


def may_be_mangled(name: str) -> bool:
    """Return whether a name begins as mangled ones do; fast, for millions of names."""
    return name.startswith(_BEGINNINGS)


_SWIFT_BEGINNINGS = ("$s", "_$s", "$S", "_$S", "_T0", "__T0", "$e", "_$e")
"""Prefixes of Swift's linkage names."""


def apple_style(linkage_name: str, name: str) -> str:
    """Return ``name``, or for a Swift function the form without modules and result types.

    Args:
        linkage_name: as the symbol table spells it; may be empty.
        name: the function's full name.
    """
    if not linkage_name.startswith(_SWIFT_BEGINNINGS):
        return name
    shown = demangle(linkage_name, simplified=True)
    return name if shown == linkage_name else shown


_CPLUSPLUS = ("_Z", "__Z", "___Z", "____Z")
_HASH = "17h"
"""Precedes the hash in every name of Rust's older mangling."""
_RUST = ("_R", "__R")
_SWIFT = (
    *("$s", "$S", "$e", "_$s", "_$S", "_$e", "_T", "__T", "@__swiftmacro_", "_@__swiftmacro_"),
    *("async_Main", "_async_Main"),  # the entry point of a program whose main() is async
)
_SWIFT_IN_MACHO = ("__T", "_@__swiftmacro_", "_async_Main")
"""Prefixes that Swift's own demangler does not accept with Mach-O's underscore."""
_BEGINNINGS = (*_CPLUSPLUS, *_RUST, *_SWIFT, "__imp_", "__alloc_token_", "___alloc_token_")
_DECORATED = re.compile(
    r"(?P<imported>__imp_)?"  # of the pointer by which an image imports a function
    r"(?P<allocation>_?__alloc_token_(?:[0-9]+_)?(?=_))?"  # of an allocator; a type's number
    r"(?P<name>[^@]+)"
    r"(?P<version>@{1,2}[A-Za-z_][A-Za-z0-9_.+-]*)?"  # in ELF, as tools write it; also @plt
)


def _demangle(name: str, simplified: bool) -> str:  # noqa: FBT001 - lru_cache takes it so
    decorated = _DECORATED.fullmatch(name)
    if decorated is None or decorated["name"] == name:
        return _by_language(name, simplified=simplified)
    inner = decorated["name"]
    text = _by_language(inner, simplified=simplified)
    if text == inner:
        return _by_language(name, simplified=simplified)
    if decorated["imported"]:
        text = f"import thunk for {text}"
    if simplified:
        return text
    if decorated["allocation"]:
        text = f"{text} (.alloc_token)"
    return text + (decorated["version"] or "")


def _by_language(name: str, *, simplified: bool) -> str:
    for language in _languages(name):
        demangled: str | None = language(name, simplified=simplified)
        if demangled is not None:
            return demangled
    if name.startswith(_SWIFT_IN_MACHO):
        inner = name[1:]
        text = _by_language(inner, simplified=simplified)
        return name if text == inner else text
    return name


_cached = lru_cache(maxsize=_CACHED)(_demangle)


def _languages(name: str) -> tuple[Callable[..., str | None], ...]:
    if name.startswith(_CPLUSPLUS):
        if _HASH in name:
            return _demangler("rust_legacy"), _demangler("cplusplus")
        return (_demangler("cplusplus"),)
    return (_demangler("rust" if name.startswith(_RUST) else "swift"),)


_DEMANGLERS = {
    "cplusplus": ("itanium.demangler", "demangle_cplusplus"),
    "rust": ("library", "demangle_rust"),
    "rust_legacy": ("library", "demangle_rust_legacy"),
    "swift": ("library", "demangle_swift"),
}
"""Module of this package and function, by language."""


@cache
def _demangler(language: str) -> Callable[..., str | None]:
    """Import the demangler of a language when its first name is seen."""
    module, name = _DEMANGLERS[language]
    function: Callable[..., str | None] = getattr(import_module(f"{__name__}.{module}"), name)
    return function
