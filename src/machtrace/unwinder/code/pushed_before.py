"""Code that others jump to after they pushed something: stub helpers' way into dyld.

It looks like a function, and takes away, before it leaves, what it did not push. So sp is then
above the place where a function that was called has it.
"""

from __future__ import annotations

from collections.abc import Iterator

from machtrace.unwinder.code.calling_convention import Machine
from machtrace.unwinder.code.data_flow import Flow
from machtrace.unwinder.code.frame_state import FrameState
from machtrace.unwinder.code.frame_values import FromCfa
from machtrace.unwinder.code.effects import IndirectJump

MOST_PUSHED = 64
"""Bytes at most."""


def pushed_before(flow: Flow, machine: Machine) -> int:
    """Bytes that lie above the frame when code is entered; 0 for a function.

    Args:
        flow: of the code, as if it were a function.
        machine: of the architecture.
    """
    found = set(_sp_where_left(flow, machine))
    if len(found) != 1:
        return 0
    above = found.pop() - machine.entry_sp
    return above if 0 < above <= MOST_PUSHED and above % machine.word == 0 else 0


def entry_with(pushed: int, entry: FrameState) -> FrameState:
    """The state at the first instruction, with ``pushed`` bytes more on the stack."""
    machine = entry.machine
    values = list(entry.values)
    values[machine.places[machine.sp]] = FromCfa(machine.entry_sp - pushed)
    return FrameState(machine, tuple(values), entry.slots)


def _sp_where_left(flow: Flow, machine: Machine) -> Iterator[int]:
    """From the CFA to sp, at each instruction that may leave the code."""
    for instruction, state in flow.leaving():
        if state.sp_offset is None:
            continue
        if isinstance(instruction, IndirectJump):
            if state.value(instruction.register) == machine.return_address:
                yield machine.entry_sp  # a return
                continue
            if state.sp_offset < machine.entry_sp:
                continue  # it stays in the code
        yield state.sp_offset
