"""The true stack of an emulated thread, recorded from its calls and returns."""

from __future__ import annotations

from machtrace.errors import TargetError
from machtrace.model.address import Avma

# Masks and values of encodings: *Arm Architecture Reference Manual*, C4.1, branches.
_BL = (0xFC000000, 0x94000000)
_BLR = (0xFEFFF000, 0xD63F0000)
_RET = (0xFFFFF000, 0xD65F0000)


def is_call(word: int) -> bool:
    """Whether an arm64 instruction leaves its return address in lr.

    ``bl``, ``blr``, and the authenticating ``blraa``, ``blrab``, ``blraaz`` and ``blrabz``.
    """
    return any(word & mask == value for mask, value in (_BL, _BLR))


def is_return(word: int) -> bool:
    """Whether an arm64 instruction is a ``ret``, ``retaa`` or ``retab``."""
    mask, value = _RET
    return word & mask == value


class ShadowStack:
    """Return addresses of one thread: pushed where it calls, popped where it returns.

    :meth:`come_to` is called before each instruction, so the effect of one is known when the
    next one comes.
    """

    __slots__ = ("_called", "_returned", "_stack", "instructions")

    def __init__(self) -> None:
        self._stack: list[Avma] = []
        self._called: Avma | None = None
        self._returned = False
        self.instructions = 0
        """How many the thread has come to."""

    @property
    def return_addresses(self) -> tuple[Avma, ...]:
        """Innermost first."""
        return tuple(reversed(self._stack))

    def come_to(self, address: Avma, word: int) -> None:
        """Take note of the instruction ``word`` at ``address``, which is to run next.

        Raises:
            TargetError: the thread returned to where it was not called from.
        """
        if self._called is not None:
            self._stack.append(self._called)
        elif self._returned and (not self._stack or self._stack.pop() != address):
            raise TargetError(
                f"the emulated thread returned to {address:#x}, which is not its return address"
            )
        self._called = Avma(address + 4) if is_call(word) else None
        self._returned = is_return(word)
        self.instructions += 1

    def forget_next(self) -> None:
        """Undo the last :meth:`come_to`: the thread stops before that instruction."""
        self._called = None
        self._returned = False
        self.instructions -= 1
