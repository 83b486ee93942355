"""Rust names of the newer mangling, "v0": RFC 2603 and the rustc book's page on it.

As ``rustc-demangle`` and LLVM write them, without the hashes of crates.
"""

from __future__ import annotations

import re

from machtrace.demangler.rust.rust_paths import RustNameError, RustPaths

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
