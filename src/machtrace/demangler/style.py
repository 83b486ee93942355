"""How much of a demangled name is shown."""

from __future__ import annotations

from enum import Enum


class DemangleStyle(Enum):
    """How much of a demangled name is shown."""

    FULL = "full"
    """All that the mangled name says: return type, parameters, template arguments, the hash of
    Rust's older mangling."""
    SIMPLIFIED = "simplified"
    """What is read at a glance, in call trees: no parameters, return type or hash; arguments of
    templates and generics as ``<...>``; inline namespaces of the C++ library left out."""
