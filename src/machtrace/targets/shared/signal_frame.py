"""Finding what a signal interrupted, where its handler runs on the alternate stack.

The kernel leaves a ``struct ucontext`` there: no ``uc_link``, a ``uc_stack`` that is the
alternate stack itself, and the stack pointer to go back to (``asm-generic/ucontext.h``,
``asm/ucontext.h``, ``asm/sigcontext.h``).
"""

from __future__ import annotations

import numpy as np

from machtrace.formats.elf.core.registers import RegisterLayout

REACH = 64 * 1024
"""Bytes of a stack that are searched."""

_UC_FLAGS_MOST = 7
"""Three bits are in use."""

_SS_FLAGS_KNOWN = 0x80000003
"""``SS_ONSTACK``, ``SS_DISABLE`` and ``SS_AUTODISARM``; no other exists."""

_SIZE_MOST = 1 << 30
"""Bytes; no alternate stack is near that size."""


def interrupted_sp(stack: memoryview, sp: int, layout: RegisterLayout) -> int | None:
    """The stack pointer that the signal saved, an Avma; None if ``sp`` is on no alternate stack.

    Args:
        stack: bytes from a little below ``sp`` upwards; more than :data:`REACH` are not searched.
        sp: the stack pointer, an Avma.
        layout: of the thread's registers.
    """
    size = layout.words.size // len(layout.dwarf)
    end = min(len(stack), REACH) // size * size
    words = np.frombuffer(stack[:end], np.dtype(f"<u{size}"))
    saved_at = layout.signal_sp // size
    count = len(words) - saved_at - 2
    if count <= 0:
        return None
    # uc_flags, uc_link, and uc_stack: ss_sp, ss_flags (with padding), ss_size.
    uc_flags, uc_link, ss_sp, ss_flags, ss_size = (words[at : at + count] for at in range(5))
    here = words.dtype.type(sp)
    below = np.flatnonzero((uc_link == 0) & (uc_flags <= _UC_FLAGS_MOST) & (ss_sp <= here))
    found = below[here - ss_sp[below] < np.minimum(ss_size[below], _SIZE_MOST)]
    for index in found.tolist():
        start, length = int(ss_sp[index]), int(ss_size[index])
        saved = int(words[index + 2 + saved_at])
        if length > _SIZE_MOST or int(ss_flags[index]) & 0xFFFFFFFF & ~_SS_FLAGS_KNOWN:
            continue
        # Inside: a signal that came while another's handler ran.
        if not start <= saved < start + length:
            return saved
    return None
