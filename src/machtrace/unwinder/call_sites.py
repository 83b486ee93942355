"""Recognise return addresses: whether the instruction before one is a call, and to where.

A return address follows a call. A word that follows a call need not be one: stacks also hold the
return addresses of calls that have returned. So this refutes a guess, and never proves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

from machtrace.errors import MemoryReadError
from machtrace.frozen import dataclass
from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryReader
from machtrace.unwinder.code.effects import IndirectJump, Jump, Return, Trap
from machtrace.unwinder.rule_cache import RuleCache
from machtrace.unwinder.rules import Lost
from machtrace.unwinder.step import THUMB_BIT

_X86_CALL = 0xE8
_X86_CALL_SIZE = 5
_X86_INDIRECT = 0xFF
_X86_INDIRECT_SIZES = (2, 3, 4, 6, 7)
_X86_INDIRECT_CALL = 2
"""The middle bits of the ModRM byte: ``FF /2`` is a call."""
_X86_JUMP_BY_RIP = b"\xff\x25"
"""``jmp *offset(%rip)``, as in linkage stubs."""
_X86_BND = b"\xf2"
_LONGEST_TAIL = 1 << 10
"""Bytes of a function that are searched for jumps to other functions."""
_STEPS_AN_INSTRUCTION = 4
_BLOCK = 1 << 16
"""Bytes of code that are searched at once for the functions that it calls."""
_CACHED = 1 << 10

_ARM64_B, _ARM64_BL = 0b000101, 0b100101
"""The top six bits."""
_ARM64_BR, _ARM64_BR_MASK = 0xD61F0000, 0xFFFFFC1F
_ARM64_INDIRECT = {0xD63F0000: 0xFFFFFC1F, 0xD63F0800: 0xFFFFF800, 0xD73F0800: 0xFFFFF800}
"""BLR; BLRAAZ and BLRABZ; BLRAA and BLRAB: the opcode, and the mask of its bits."""

_ARM_BLX, _ARM_BLX_MASK = 0x012FFF30, 0x0FFFFFF0
_THUMB_BLX, _THUMB_BLX_MASK = 0x4780, 0xFF87
"""BLX (register): the opcode, and the mask of its bits."""
_ARM_BL, _ARM_BL_MASK = 0x0B000000, 0x0F000000
_ARM_BLX_LABEL, _ARM_BLX_LABEL_MASK = 0xFA000000, 0xFE000000
_THUMB_BL, _THUMB_BL_MASK = 0xC000F000, 0xC000F800
"""BL and BLX (label), the first halfword in the lower half."""

LONGEST_FUNCTION = 1 << 20
"""Bytes between the target of a call and the frame that it called, at most."""


class CallMatch(IntEnum):
    """The result of comparing the code before an address with a call that would return there."""

    NONE = 0
    """It does not call, or calls another function."""
    UNKNOWN = 1
    """It is unavailable."""
    INDIRECT = 2
    """It calls through a register or through memory: any function."""
    DIRECT = 3
    """It calls the function that holds the address of the frame, or may hold it."""


def is_arm64_call(word: int) -> bool:
    """Return whether an instruction is BL or a variant of BLR."""
    return word >> 26 == _ARM64_BL or any(
        word & mask == bits for bits, mask in _ARM64_INDIRECT.items()
    )


def arm64_call_target(return_address: int, code: bytes) -> int | None:
    """Return where ``code``, the instruction before ``return_address``, calls if it is BL."""
    word = int.from_bytes(code, "little")
    if word >> 26 != _ARM64_BL:
        return None
    distance = (word & 0x03FFFFFF) << 2
    distance -= (distance & 1 << 27) << 1
    return return_address - 4 + distance


@dataclass(frozen=True, slots=True)
class CallSites:
    """Calls in a process's code."""

    rules: RuleCache
    memory: MemoryReader
    arch: Arch

    def read(self, address: Avma, size: int) -> bytes | None:
        """Return code, from the snapshot's memory or from the image; None if unavailable."""
        if address < 0:
            return None
        try:
            return bytes(self.memory.read(address, size))
        except MemoryReadError:
            return self.rules.read_code(address, size)

    def match(self, return_address: int, callee: Avma, *, is_entry: bool = False) -> CallMatch:
        """Return whether a call before ``return_address`` may have called the frame at ``callee``.

        ``callee`` is an address in the frame's function: its first if ``is_entry``.
        """
        if self.arch.is_arm64:
            return self._match_arm64(return_address, callee, is_entry=is_entry)
        if self.arch.is_arm:
            return self._match_arm(return_address)
        return self._match_x86(return_address, callee, is_entry=is_entry)

    def ends_stacks(self, return_address: Avma) -> bool:
        """Return whether code that nobody called begins at ``return_address``.

        That is a signal trampoline, or a start routine by its unwind information.
        """
        if self.rules.image_at(return_address) is None:
            return False
        rule, _ = self.rules.find(Avma(return_address - 1), interrupted=False)
        return rule.is_signal_frame or isinstance(rule.return_address, Lost)

    def _match_x86(self, address: int, callee: Avma, *, is_entry: bool) -> CallMatch:
        before = self._before(address, max(_X86_INDIRECT_SIZES))
        if before is None:
            return CallMatch.UNKNOWN
        if before[-_X86_CALL_SIZE] == _X86_CALL:
            target = address + int.from_bytes(before[-4:], "little", signed=True)
            if self._may_lead_to(target, callee, is_entry=is_entry):
                return CallMatch.DIRECT
        is_indirect = any(
            before[-size] == _X86_INDIRECT and before[1 - size] >> 3 & 7 == _X86_INDIRECT_CALL
            for size in _X86_INDIRECT_SIZES
            if size <= len(before)
        )
        return CallMatch.INDIRECT if is_indirect else CallMatch.NONE

    def _before(self, address: int, size: int) -> bytes | None:
        """Return at most ``size`` bytes before ``address``, padded with zeros."""
        for count in (size, _X86_CALL_SIZE):
            code = self.read(Avma(address - count), count)
            if code is not None:
                return code.rjust(size, b"\0")
        return None

    def _match_arm64(self, address: int, callee: Avma, *, is_entry: bool) -> CallMatch:
        code = None if address % 4 else self.read(Avma(address - 4), 4)
        if code is None:
            return CallMatch.NONE if address % 4 else CallMatch.UNKNOWN
        word = int.from_bytes(code, "little")
        target = arm64_call_target(address, code)
        if target is not None:
            is_match = self._may_lead_to(target, callee, is_entry=is_entry)
            return CallMatch.DIRECT if is_match else CallMatch.NONE
        return CallMatch.INDIRECT if is_arm64_call(word) else CallMatch.NONE

    def _match_arm(self, address: int) -> CallMatch:
        """Check the instruction before a return address, which states its instruction set."""
        at = address & ~THUMB_BIT
        code = self.read(Avma(at - 4), 4)
        if code is None:
            return CallMatch.UNKNOWN
        word = int.from_bytes(code, "little")
        if address & THUMB_BIT:
            if word >> 16 & _THUMB_BLX_MASK == _THUMB_BLX:
                return CallMatch.INDIRECT
            is_call = word & _THUMB_BL_MASK == _THUMB_BL
        else:
            if word & _ARM_BLX_MASK == _ARM_BLX:
                return CallMatch.INDIRECT
            is_call = word & _ARM_BL_MASK == _ARM_BL or word & _ARM_BLX_LABEL_MASK == _ARM_BLX_LABEL
        return CallMatch.DIRECT if is_call else CallMatch.NONE

    def _may_lead_to(self, target: int, callee: Avma, *, is_entry: bool, hops: int = 2) -> bool:
        """Return whether a call of ``target`` may enter the function that holds ``callee``."""
        if is_entry:
            return target == callee
        if self._may_begin(target, callee):
            return True
        if self.arch.is_arm64:
            return self._is_unknown_stub(target)
        return hops > 0 and any(
            through is None or self._may_lead_to(through, callee, is_entry=False, hops=hops - 1)
            for through in self._left_to(target)
        )

    def _may_begin(self, target: int, callee: Avma) -> bool:
        """Return whether a function that begins at ``target`` may hold ``callee``."""
        if not 0 <= callee - target < LONGEST_FUNCTION:
            return False
        if self.rules.image_at(Avma(target)) is not self.rules.image_at(callee):
            return False
        bounds = self.rules.function_at(callee)
        if bounds is not None:
            return bounds[0] <= target
        return self.arch.is_arm64 or target >= self._called_before(callee)

    def _called_before(self, address: Avma) -> int:
        """Return the highest address up to ``address`` that x86 code nearby calls; 0 without one.

        A function begins there.
        """
        block = address // _BLOCK
        return max(
            (
                target
                for near in (block - 1, block, block + 1)
                for target in self._called_by(near, address)
                if target <= address
            ),
            default=0,
        )

    def _called_by(self, block: int, image: Avma) -> tuple[int, ...]:
        """Return the addresses near ``block`` that its code, of ``image``, calls directly."""
        known = self.rules.called_from.get(block)
        if known is not None:
            return known
        start, targets = block * _BLOCK, set[int]()
        code = self.rules.read_padded_code(Avma(start), _BLOCK, image)
        at = code.find(_X86_CALL)
        while at >= 0:
            end = at + _X86_CALL_SIZE
            distance = int.from_bytes(code[at + 1 : end], "little", signed=True)
            if abs(distance) < 2 * _BLOCK:
                targets.add(start + end + distance)
            at = code.find(_X86_CALL, at + 1)
        if len(self.rules.called_from) >= _CACHED:
            self.rules.called_from.clear()
        known = self.rules.called_from[block] = tuple(targets)
        return known

    def _left_to(self, target: int) -> tuple[int | None, ...]:
        """Return where the function at ``target`` jumps to other functions; None if unknown."""
        known = self.rules.leaves_to.get(target)
        if known is None:
            if len(self.rules.leaves_to) >= _CACHED:
                self.rules.leaves_to.clear()
            known = self.rules.leaves_to[target] = tuple(self._jumps_from(target))
        return known

    def _jumps_from(self, target: int) -> Iterator[int | None]:
        """Yield where the function at ``target`` jumps to others; None for an unknown target."""
        from machtrace.unwinder.arch.x86.analysis import MODES
        from machtrace.unwinder.arch.x86.decoder import Decoder

        code = self.rules.read_padded_code(Avma(target), _LONGEST_TAIL, Avma(target))
        if not code.strip(b"\0"):
            yield None
            return
        decoder, at, reached = Decoder(MODES[self.arch]), 0, 0
        jumps: list[int] = []
        while at < len(code) and self.rules.budgets.code.spend(_STEPS_AN_INSTRUCTION):
            length, effects = decoder.decode(code, at)
            last = effects[-1]
            if isinstance(last, Jump):
                jumps.append(at + last.distance)
                reached = max(reached, at + last.distance) if at + last.distance < len(code) else 0
            elif isinstance(last, IndirectJump):
                yield self._in_slot(target + at, code[at : at + length])
            is_end = isinstance(last, (IndirectJump, Return, Trap)) or (
                isinstance(last, Jump) and not last.is_conditional
            )
            at += length
            if is_end and at > reached:
                break
        yield from (target + jump for jump in jumps if not 0 <= jump < at)

    def _in_slot(self, address: int, code: bytes) -> int | None:
        """Return where the jump at ``address`` through a word in memory leads; None if unknown."""
        code = code.removeprefix(_X86_BND)
        if code[:2] != _X86_JUMP_BY_RIP or self.arch is Arch.I386:
            return None
        slot = address + len(code) + int.from_bytes(code[2:6], "little", signed=True)
        try:
            word = self.memory.read(Avma(slot), self.arch.pointer_size)
        except MemoryReadError:
            return None
        return int.from_bytes(word, "little")

    def _is_unknown_stub(self, target: int) -> bool:
        """Return whether ``target`` branches on, to where is not computed here."""
        code = self.read(Avma(target), 16)
        if code is None:
            return True
        words = [int.from_bytes(code[at : at + 4], "little") for at in range(0, 16, 4)]
        return any(word & _ARM64_BR_MASK == _ARM64_BR or word >> 26 == _ARM64_B for word in words)
