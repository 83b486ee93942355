"""System calls that fail with EINTR when their thread is stopped, though no signal came.

Most go on by themselves (signal(7), "Interruption of system calls and library functions by stop
signals", names those that do not). Where such a call has no time limit, waiting again is exactly
what the program asked for, and the kernel does it if the result says so. With a time limit it
would wait too long: there the program sees EINTR, as it would after SIGSTOP and SIGCONT.

x86-64 only: on aarch64 the result has replaced the first argument, which is not shown.
"""

from __future__ import annotations

from errno import EINTR
from struct import Struct

_SIZE = 216
_R10, _RAX, _RDX, _ORIG_RAX = 56, 80, 96, 120
_UNSIGNED, _SIGNED, _INT = Struct("<Q"), Struct("<q"), Struct("<i")

_ERESTARTNOHAND = 514
"""``linux/errno.h`` of the kernel: restart, unless a handler runs; then it is EINTR after all."""

_NULL_TIMEOUT = {
    128: _RDX,  # rt_sigtimedwait
    220: _R10,  # semtimedop
    441: _R10,  # epoll_pwait2
}
_NEGATIVE_TIMEOUT = {
    232: _R10,  # epoll_wait
    281: _R10,  # epoll_pwait
}
_SEMOP = 65


def mark_restart(registers: bytearray | memoryview, size: int) -> bool:
    """Make a call that failed so in ``registers`` wait again; whether anything was changed.

    Args:
        registers: ``NT_PRSTATUS``; changed in place.
        size: how many bytes of it are meant.
    """
    if size != _SIZE or _SIGNED.unpack_from(registers, _RAX)[0] != -EINTR:
        return False
    number: int = _UNSIGNED.unpack_from(registers, _ORIG_RAX)[0]
    unlimited: bool
    if number in _NULL_TIMEOUT:
        unlimited = _UNSIGNED.unpack_from(registers, _NULL_TIMEOUT[number])[0] == 0
    elif number in _NEGATIVE_TIMEOUT:
        unlimited = _INT.unpack_from(registers, _NEGATIVE_TIMEOUT[number])[0] < 0
    else:
        unlimited = number == _SEMOP
    if unlimited:
        _SIGNED.pack_into(registers, _RAX, -_ERESTARTNOHAND)
    return unlimited
