"""A frame to try rules on: registers that point into a little memory."""

from __future__ import annotations

from functools import cache

from fuzz.target import ContractError
from machtrace.errors import MachtraceError
from machtrace.model.address import Avma, PacMask
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryRegion, RegionMemory
from machtrace.model.registers import RegisterSet
from machtrace.unwinder.rules import UnwindRule
from machtrace.unwinder.step import step

STACK = 0x7000_0000
_SIZE = 0x400
_MASK = PacMask.of_width(47)
_CONTENTS = b"".join(
    ((STACK + 8 * (at * 7 % 128)) if at % 3 else at % 16 << 60).to_bytes(8, "little")
    for at in range(_SIZE // 8)
)
_MEMORY = RegionMemory([MemoryRegion(Avma(STACK), _CONTENTS)])


@cache
def _registers(arch: Arch) -> RegisterSet:
    count = len(arch.registers.names)
    values = tuple(STACK + 8 * (number * 5 % 64) for number in range(count))
    return RegisterSet(arch, Avma(0x1000_0000), values)


def try_rule(rule: UnwindRule | None, arch: Arch) -> None:
    """Step by ``rule``, and print it."""
    if rule is None:
        return
    try:
        step(rule, _registers(arch), _MEMORY, _MASK)
    except MachtraceError as error:
        raise ContractError(f"step raised {error!r}") from error
    str(rule)
