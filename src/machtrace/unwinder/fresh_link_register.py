"""A link register that no call has overwritten, told from one that is stale.

After a call has returned, the link register holds the place behind that call: an address in the
very function that it is the register of. So where it leads out of the function's image, the
function has not called anybody yet, or is about to return, and its caller is there. Where it leads
into the same image nothing is known, and it is not believed: that is where walkers that believe it
always find frames that nobody called.
"""

from __future__ import annotations

from machtrace.errors import MemoryReadError
from machtrace.model.address import Avma, PacMask
from machtrace.model.memory import MemoryReader
from machtrace.model.registers import RegisterSet
from machtrace.unwinder.rule_cache import RuleCache
from machtrace.unwinder.stray_call import is_arm64_call


def _lr_is_live(
    registers: RegisterSet, memory: MemoryReader, rules: RuleCache, mask: PacMask
) -> bool:
    """Whether an interrupted function's caller is in its link register, and not yet in its record.

    Only AArch64's is looked at.
    """
    if registers.lr is None or not registers.arch.is_arm64:
        return False
    address = mask.strip(registers.lr)
    home = rules.image_at(Avma(address - 1))
    if home is None or home is rules.image_at(registers.pc):
        return False
    word = _word(memory, Avma(address - 4), 4)
    if word is not None and not is_arm64_call(word):
        return False
    size = registers.arch.pointer_size
    record = mask.strip(registers.fp or 0)
    saved = _word(memory, Avma(record + size), size)
    return saved is None or mask.strip(saved) != address


def _word(memory: MemoryReader, address: Avma, size: int) -> int | None:
    try:
        return int.from_bytes(memory.read(address, size), "little")
    except MemoryReadError:
        return None
