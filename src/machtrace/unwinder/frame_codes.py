"""How a frame was found and what its address is, in one byte: for stacks kept as columns."""

from __future__ import annotations

from machtrace.model.stack import AddressKind, FrameTrust

TRUSTS = tuple(FrameTrust)
"""By code divided by :data:`KIND_COUNT`."""

KINDS = tuple(AddressKind)
"""By the rest of that division."""

KIND_COUNT = len(KINDS)

_CODES = {
    (trust, kind): KIND_COUNT * number + index
    for number, trust in enumerate(TRUSTS)
    for index, kind in enumerate(KINDS)
}


def code_of(trust: FrameTrust, kind: AddressKind) -> int:
    """The byte for both."""
    return _CODES[trust, kind]
