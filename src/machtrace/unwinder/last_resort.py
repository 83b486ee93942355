"""The caller of a frame without unwind information or code, and what ends a stack behind a guess.

Four heuristics serve frames without unwind information or code. All require evidence.

A link register that no call has overwritten: after a call has returned, the link register holds the
address after that call, in the very function whose register it is. So if it is in another image
than the function, the function has not called yet, or is about to return, and its caller is there.
If it is in the same image it proves nothing and is ignored; walkers that trust it report frames
that never called.

A call through a null or an overwritten function pointer: the processor has called, and no
instruction of the callee ran. So the callee has no frame: the return address is in the link
register or on top of the stack.

A frame pointer that is the last resort is followed only if a call precedes the return address that
it leads to; else the stack is scanned for a word that is in code and follows a call, which must be
able to lead to the frame if its target is known. Which of several such words is the return address
is not known; the lowest one is used, and unwinding resumes above it. Neither can reach the root:
only what knows the root reports it (decision 0034).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from struct import unpack_from

from machtrace.errors import MemoryReadError
from machtrace.frozen import dataclass
from machtrace.model.address import Avma, PacMask
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryReader
from machtrace.model.registers import RegisterSet
from machtrace.model.stack import AddressKind, FrameAddress, FrameTrust, Stop, StopReason
from machtrace.unwinder.code.effects import IndirectJump, Jump, Return, Trap
from machtrace.unwinder.rule_cache import RuleCache
from machtrace.unwinder.rules import (
    AtCfa,
    Lost,
    RegisterOffset,
    UnwindRule,
    link_register_rule,
)
from machtrace.unwinder.step import NULL_PAGE, THUMB_BIT, step

# --- Recognise return addresses: whether the instruction before one is a call, and to where ---
#
# A return address follows a call. A word that follows a call need not be one: stacks also hold the
# return addresses of calls that have returned. So this refutes a guess, and never proves it.

_X86_CALL = 0xE8
_X86_CALL_SIZE = 5
_X86_INDIRECT = 0xFF
_X86_INDIRECT_SIZES = (2, 3, 4, 6, 7)
_X86_INDIRECT_CALL = 2
"""The middle bits of the ModRM byte: ``FF /2`` is a call."""
_X86_JUMP_BY_RIP = b"\xff\x25"
"""``jmp *offset(%rip)``, as in linkage stubs."""
_X86_BND = b"\xf2"
_MAX_TAIL_LENGTH = 1 << 10
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

MAX_FUNCTION_LENGTH = 1 << 20
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
        if not 0 <= callee - target < MAX_FUNCTION_LENGTH:
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

        code = self.rules.read_padded_code(Avma(target), _MAX_TAIL_LENGTH, Avma(target))
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


# --- The caller of a frame without unwind information, and the end of a stack behind a guess ---

SCANNED = 1 << 14
"""Bytes that are scanned for one frame without a request: more than nearly every frame has."""
SCANNED_ON_REQUEST = 1 << 24
_CHUNK = 1 << 12
_CANDIDATES = 256
"""Words in code that are checked for one frame."""


def scan(
    sites: CallSites,
    registers: RegisterSet,
    memory: MemoryReader,
    mask: PacMask,
    callee: Avma,
    *,
    size: int = SCANNED,
) -> UnwindRule | None:
    """Return the rule by which a word on the stack is the return address; None without one.

    On x86 the word's address is exact: the caller's stack pointer is above it. Elsewhere the frame
    record is searched, and the stack pointer is only a lower bound.

    Args:
        sites: the calls in the process's code.
        registers: those of the frame.
        memory: the snapshot's.
        mask: removes signatures.
        callee: an address in the frame's function.
        size: bytes to scan.
    """
    arch, sp = registers.arch, registers.sp
    if sp is None:
        return None
    word = arch.pointer_size
    sp += -sp % word
    checked = 0
    previous = 0
    for offset, value in _words(memory, sp, size, word):
        address = mask.strip(value)
        record, previous = previous, value
        if not sites.rules.is_code(Avma(address - 1)):
            continue
        at = sp + offset
        if arch.has_link_register and not (record > at and record % word == 0):
            continue
        checked += 1
        if checked > _CANDIDATES:
            return None
        if sites.match(address, callee) <= CallMatch.UNKNOWN:
            continue
        return _rule(registers, offset + sp - (registers.sp or 0), record)
    return None


def _rule(registers: RegisterSet, offset: int, record: int) -> UnwindRule:
    """Return the rule for a return address ``offset`` bytes above sp, after the word ``record``."""
    arch = registers.arch
    word = arch.pointer_size
    at = (registers.sp or 0) + offset
    numbers = arch.registers
    is_record = arch.has_link_register or (
        # The frame pointer was pushed if it does not point upwards and the word does.
        at < record < at + SCANNED and record % word == 0 and not (registers.fp or 0) > at
    )
    saved = ((numbers.fp, AtCfa(-2 * word)),) if is_record and offset else ()
    return UnwindRule(RegisterOffset(numbers.sp, offset + word), AtCfa(-word), saved)


def _words(memory: MemoryReader, start: int, size: int, word: int) -> Iterator[tuple[int, int]]:
    """Yield the offset and value of words, up to the end of the stack."""
    form = "Q" if word == 8 else "I"  # noqa: PLR2004 - bytes
    at, chunk = start, _CHUNK
    while at < start + size:
        try:
            data = memory.read(Avma(at), chunk)
        except MemoryReadError:
            if chunk == word:
                return
            chunk = max(word, chunk >> 3)
            continue
        for index, value in enumerate(unpack_from(f"<{chunk // word}{form}", data)):
            yield at - start + index * word, value
        at += chunk


_WORD = 4
_MAX_LEAF_LENGTH = 1 << 12
"""Bytes that are searched for calls."""
_MAX_START_LENGTH = 16 * _WORD
"""Bytes of a start routine."""
_RETURNS = frozenset(map(bytes.fromhex, ("c0035fd6", "ff0b5fd6", "ff0f5fd6")))
"""RET, RETAA, RETAB."""
_BRANCHES, _MEMORY = 0b101, 0b0100
"""Bits of an arm64 instruction that distinguish groups of encodings."""
_HINT, _HINT_MASK = 0xD503201F, 0xFFFFF01F
"""NOP, BTI, PACIBSP and similar."""


def entry_rule(arch: Arch) -> UnwindRule:
    """Return the rule before the first instruction of a function."""
    if arch.has_link_register:
        return link_register_rule(arch)
    word = arch.pointer_size
    return UnwindRule(RegisterOffset(arch.registers.sp, word), AtCfa(-word))


def unsaved_caller(
    registers: RegisterSet, memory: MemoryReader, rules: RuleCache, mask: PacMask
) -> FrameTrust | None:
    """Return the trust that a frame without unwind information is as at its function's entry.

    None if its frame pointer is likelier to lead to the caller.
    """
    trust = _called_bad_pointer(registers, memory, rules, mask)
    if trust is FrameTrust.PROLOGUE or (
        trust and (not rules.is_code(registers.pc) or cannot_run(registers.pc, registers))
    ):
        return trust
    if cannot_run(registers.pc, registers):
        return None
    is_fresh = _lr_is_live(registers, memory, rules, mask)
    is_fresh = is_fresh or _has_not_called(registers, memory, rules, mask)
    return FrameTrust.LINK_REGISTER if is_fresh else None


def _has_not_called(
    registers: RegisterSet, memory: MemoryReader, rules: RuleCache, mask: PacMask
) -> bool:
    """Return whether the link register is from a call of this function, which has not called yet.

    Only AArch64 is supported.
    """
    if registers.lr is None or not registers.arch.is_arm64:
        return False
    address = mask.strip(registers.lr)
    sites = CallSites(rules, memory, registers.arch)
    before = sites.read(Avma(address - _WORD), _WORD)
    target = None if before is None else arm64_call_target(address, before)
    if target is None or not 0 <= registers.pc - target <= _MAX_LEAF_LENGTH:
        return False
    code = sites.read(Avma(target), registers.pc - target)
    return code is not None and not any(
        is_arm64_call(int.from_bytes(code[at : at + _WORD], "little"))
        for at in range(0, len(code), _WORD)
    )


def _called_bad_pointer(
    registers: RegisterSet, memory: MemoryReader, rules: RuleCache, mask: PacMask
) -> FrameTrust | None:
    """Return the trust that ``registers`` are at the target of a call, and nothing has run there.

    A null pointer is one. Other code may be generated at run time, or be a function without tables;
    so the presumed return address must follow a call that leads here, or may lead here: a call
    through a register, whose caller is in the link register, or on top of the stack. If the code
    there is unavailable, it must be in an image's code, and the pc must not. None otherwise. Raises
    nothing.
    """
    if registers.pc < NULL_PAGE:
        return FrameTrust.PROLOGUE
    arch = registers.arch
    return_address = _return_address(registers, memory, mask)
    if return_address is None:
        return None
    sites = CallSites(rules, memory, arch)
    match = sites.match(return_address, registers.pc, is_entry=True)
    if match is CallMatch.DIRECT and not arch.is_arm:
        return FrameTrust.PROLOGUE
    guess = FrameTrust.LINK_REGISTER if arch.has_link_register else FrameTrust.SCAN
    if match is CallMatch.INDIRECT or rules.is_code(registers.pc):
        return guess if match is CallMatch.INDIRECT else None
    caller = Avma(return_address - 1)
    if match is CallMatch.UNKNOWN:
        return guess if rules.is_code(caller) else None
    # The kernel calls a signal's handler: its trampoline follows no call.
    is_handler = rules.find(caller, interrupted=False)[0].is_signal_frame
    return FrameTrust.PROLOGUE if is_handler else None


def _return_address(registers: RegisterSet, memory: MemoryReader, mask: PacMask) -> int | None:
    if registers.arch.has_link_register:
        return None if registers.lr is None else mask.strip(registers.lr)
    if registers.sp is None:
        return None
    return _word(memory, Avma(registers.sp), registers.arch.pointer_size)


def _lr_is_live(
    registers: RegisterSet, memory: MemoryReader, rules: RuleCache, mask: PacMask
) -> bool:
    """Return whether an interrupted function's caller is in the link register, not in its record.

    Only AArch64 is supported.
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


def cannot_run(pc: Avma, registers: RegisterSet) -> bool:
    """Return whether no instruction can be at ``pc``."""
    return registers.arch.is_arm64 and pc % 4 != 0


def checked_chain(
    here: FrameAddress,
    registers: RegisterSet,
    caller: RegisterSet | Stop,
    memory: MemoryReader,
    rules: RuleCache,
) -> RegisterSet | Stop:
    """Return ``caller``, which the frame pointer leads to as the last resort, if it is plausible.

    The chain must rise: nothing else locates the next frame. Unless the ABI reserves the register,
    a call must precede the return address, and the end of the chain is not known to be the root.
    """
    if isinstance(caller, RegisterSet) and (caller.sp or 0) <= (registers.sp or 0):
        return Stop(StopReason.NO_PROGRESS, registers.pc)
    is_guess = here.kind is AddressKind.PROGRAM_COUNTER and rules.image_at(here.lookup) is None
    if rules.keeps_frame_pointers(here.lookup) and not is_guess:
        return caller
    if isinstance(caller, Stop):
        return known_end(caller, here, rules)
    if rules.has_frame_pointers:
        return caller
    sites = CallSites(rules, memory, registers.arch)
    if sites.match(caller.pc, here.lookup) is CallMatch.NONE and not sites.ends_stacks(caller.pc):
        return Stop(StopReason.NO_RULE, here.address)
    return caller


def _starts_threads(here: FrameAddress, rules: RuleCache) -> bool:
    """Return whether an arm64 function has called and saved no return address before that.

    The call overwrote it, and the function has no instruction to return or to jump: Darwin's
    ``thread_start`` and ``start_wqthread``.
    """
    bounds = rules.function_at(here.lookup) if rules.has_frame_pointers else None
    if bounds is None:
        return False
    size, called = bounds[1] - bounds[0], here.address - bounds[0]
    code = rules.read_code(bounds[0], size) if 0 < called <= size <= _MAX_START_LENGTH else None
    if code is None or called % _WORD:
        return False
    words = [int.from_bytes(code[at : at + _WORD], "little") for at in range(0, called, _WORD)]
    returns = any(code[at : at + _WORD] in _RETURNS for at in range(0, size, _WORD))
    has_called = any(map(is_arm64_call, words))
    return has_called and not returns and not any(map(_saves_or_jumps, words))


def _saves_or_jumps(word: int) -> bool:
    """Return whether an arm64 instruction jumps, or loads or stores anything."""
    is_branch = word >> 26 & 0b111 == _BRANCHES and not is_arm64_call(word)
    return (is_branch and word & _HINT_MASK != _HINT) or word >> 25 & 0b0101 == _MEMORY


def scanned_caller(
    here: FrameAddress,
    registers: RegisterSet,
    memory: MemoryReader,
    rules: RuleCache,
    mask: PacMask,
    trust: FrameTrust,
) -> tuple[UnwindRule, FrameTrust, RegisterSet] | None:
    """Return the caller that a scan of the stack finds.

    Without a request, only where nothing but the frame pointer describes the frame, and only in
    images: in generated code, no target of a call can be checked.
    """
    is_last = trust is FrameTrust.FRAME_POINTER and not rules.has_frame_pointers
    if not rules.scans and (not is_last or rules.image_at(here.lookup) is None):
        return None
    size = SCANNED_ON_REQUEST if rules.scans else SCANNED
    sites = CallSites(rules, memory, registers.arch)
    rule = scan(sites, registers, memory, mask, here.lookup, size=size)
    caller = (
        None if rule is None else step(rule, registers, memory, mask, rules.budgets.expressions)
    )
    if rule is None or caller is None or isinstance(caller, Stop):
        return None
    return rule, FrameTrust.SCAN, caller


_GUESSES = frozenset({FrameTrust.FRAME_POINTER, FrameTrust.LINK_REGISTER, FrameTrust.SCAN})


def guesses(trust: FrameTrust, here: FrameAddress, rules: RuleCache) -> bool:
    """Return whether the callers of ``here``, the first of which was found so, may be others'."""
    if trust is FrameTrust.FRAME_POINTER:
        return not rules.keeps_frame_pointers(here.lookup)
    return trust in _GUESSES


def known_end(stop: Stop, here: FrameAddress, rules: RuleCache) -> Stop:
    """Return ``stop``, the end of a stack behind a guess, unless only a zero makes it the root.

    Zero is what a walk reads that lost the stack, too. An undefined return address is known.
    """
    interrupted = here.kind is AddressKind.PROGRAM_COUNTER
    rule, _ = rules.find(here.lookup, interrupted=interrupted)
    is_known = isinstance(rule.return_address, Lost) or _starts_threads(here, rules)
    if stop.is_complete and not is_known:
        return Stop(StopReason.NO_RULE, here.address)
    return stop
