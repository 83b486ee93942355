"""Names in the form that Apple's tools show them in."""

from __future__ import annotations

from machtrace.demangler import DemangleStyle, demangle

_SWIFT = ("$s", "_$s", "$S", "_$S", "_T0", "__T0", "$e", "_$e")
"""What Swift's linkage names begin with."""


def apple_style(linkage_name: str, name: str) -> str:
    """``name``, or of a Swift function the shorter form without modules and types of results.

    Args:
        linkage_name: as the symbol table spells it; may be empty.
        name: the function's full name.
    """
    if not linkage_name.startswith(_SWIFT):
        return name
    shown = demangle(linkage_name, style=DemangleStyle.SIMPLIFIED)
    return name if shown == linkage_name else shown
