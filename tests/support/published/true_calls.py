"""The calls in progress, and the slots of the stack in which they saved what returns need."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from machtrace.model.address import Avma


@dataclass(slots=True)
class Call:
    """A call in progress."""

    return_address: Avma
    sp: int
    """The caller's stack pointer, before the call pushes anything."""
    registers: tuple[int, ...]
    """The caller's, as :meth:`EmulatedCpu.raw_registers` returns them."""
    is_conventional: bool = True
    """Whether the callee preserves the registers that the ABI names: no outlined piece."""
    slots: list[int] = field(default_factory=list)
    """Addresses of words that the callee saved."""


class TrueCalls:
    """The true stack, outermost call first."""

    __slots__ = ("calls", "saved")

    def __init__(self, calls: Iterable[Call]) -> None:
        self.calls = list(calls)
        self.saved: dict[int, int] = {}
        """Values of the slots that must not change, by address."""

    def push(self, call: Call) -> None:
        """Record a call."""
        self.calls.append(call)

    def save(self, slot: int, value: int) -> None:
        """Record that the innermost function saved a word of its caller."""
        self.saved[slot] = value
        self.calls[-1].slots.append(slot)

    def pop(self, sp: int) -> Call:
        """Record a return, with the stack pointer that the caller resumes with.

        Outlined prologues leave what they saved on the stack: it is their caller's then.
        """
        call = self.calls.pop()
        for slot in call.slots:
            if slot >= sp and self.calls:
                self.calls[-1].slots.append(slot)
            else:
                self.saved.pop(slot, None)
        return call

    def forget_below(self, sp: int) -> None:
        """Drop slots of memory that was freed."""
        for slot in [slot for slot in self.saved if slot < sp]:
            del self.saved[slot]

    def copy(self) -> TrueCalls:
        """Return an independent copy."""
        copied = TrueCalls(
            Call(
                call.return_address,
                call.sp,
                call.registers,
                call.is_conventional,
                list(call.slots),
            )
            for call in self.calls
        )
        copied.saved = dict(self.saved)
        return copied

    @property
    def return_addresses(self) -> tuple[Avma, ...]:
        """Innermost first."""
        return tuple(call.return_address for call in reversed(self.calls))
