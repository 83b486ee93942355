"""The stubs of i386, as ld64 writes them (its ``stub_x86.hpp``).

A stub jumps through a lazy pointer. That leads at first to a helper, which pushes the number of
what is to be bound and goes to the section's start; there a place for dyld's notes is pushed, and
dyld called.
"""

from __future__ import annotations

from struct import pack

STUB_SIZE = 6
HELPER_SIZE = 10
HEADER_SIZE = 12
"""Of what all helpers go on to, at the start of their section."""
_JUMP_THROUGH = b"\xff\x25"
_PUSH = b"\x68"
_JUMP = b"\xe9"
_NOP = b"\x90"


def write_stub(pointer: int) -> bytes:
    """Of the lazy pointer at Svma ``pointer``."""
    return _JUMP_THROUGH + pack("<I", pointer)


def write_helper_header(cache: int, binder: int) -> bytes:
    """Of dyld's notes at Svma ``cache``, and the pointer to ``dyld_stub_binder`` at ``binder``."""
    return _PUSH + pack("<I", cache) + _JUMP_THROUGH + pack("<I", binder) + _NOP


def write_helper(address: int, start: int, number: int) -> bytes:
    """At Svma ``address``, of symbol ``number``; the section starts at Svma ``start``."""
    distance = start - (address + HELPER_SIZE)
    return _PUSH + pack("<I", number) + _JUMP + pack("<i", distance)
