"""Entries of functions among the starts that tables list: not labels, parts or outlined pieces."""

from __future__ import annotations

import re
from collections import Counter
from functools import cached_property
from random import Random
from typing import Any

import numpy as np

from machtrace.errors import FormatError
from tests.support.published.functions import (
    COPIES_OF_LR,
    MAX_SCAN_SIZE,
    OTHER_RETURNS,
    Functions,
)
from tests.support.published.image import PublishedImage
from tests.support.published.instructions import Instruction, Kind, linear, stack_use, written

_ATTEMPTS = 10_000
_DOUBLES = 64
_FIRST = 32
"""Instructions of a function that are examined."""
_LOADS_OF_RSP = tuple(
    bytes((prefix, 0x89, 0xC4 | number << 3)) for prefix in (0x48, 0x4C) for number in range(8)
)
"""``mov rsp, register``."""
_FRAME_LAST = 512
"""Instructions of a function that are searched for the use of a frame."""
_MAX_ARGUMENTS = 0x100
"""Bytes above the stack pointer that a function may read at its entry: arguments."""
_RSP_OFFSET = re.compile(r"\[rsp \+ 0x([0-9a-f]+)\]")
_CHANGES_RSP = re.compile(r"(push|pop|leave|enter|\w+(?= rsp\b))")
_SCRATCH = frozenset((*range(19), 30, 31))
"""AArch64 registers that calls need not preserve."""


class Entries:
    """Selects the starts of an image's functions that can be called; results are cached."""

    def __init__(self, image: PublishedImage, functions: Functions) -> None:
        self._image = image
        self._functions = functions
        self._problems: dict[int, str] = {}
        self._resuming: dict[int, bool] = {}
        self._whole: dict[int, list[tuple[int, Instruction]]] = {}

    def pick(self, random: Random, refused: Counter[str]) -> int:
        """Return the entry of a random function; count starts that are none in ``refused``.

        Raises:
            FormatError: the image seems to have none.
        """
        starts = self._image.starts
        for _ in range(_ATTEMPTS):
            start = int(starts[random.randrange(len(starts))])
            problem = self.problem(start)
            if not problem:
                return start
            refused[problem] += 1
        raise FormatError("no start of a function can be called", source=self._image.name, offset=0)

    def resumes_another_stack(self, target: int) -> bool:
        """Return whether a callee is ``longjmp`` or similar, by its code."""
        if target not in self._functions.start_set:
            return False
        known = self._resuming.get(target)
        if known is None:
            known = self._resuming[target] = self._switches_stacks(target)
        return known

    def problem(self, start: int) -> str:
        """Return why ``start`` is no function's entry; empty if it seems to be one."""
        known = self._problems.get(start)
        if known is None:
            self._problems[start] = ""  # for recursion
            known = self._problems[start] = self._problem(start)
        return known

    def _problem(self, start: int) -> str:  # noqa: C901, PLR0911 (one return a case)
        image = self._image
        function = image.function_at(start)
        if function is None:
            return "not in code"
        if self._functions.instruction(start).kind is Kind.TRAP:
            return "no instruction at the start"
        name = image.names.get(start, "")
        if image.is_part(start) or name.endswith(".cold") or name.startswith(".L"):
            return "a part of another function"
        if self._uses_unsaved(start):
            return "a label: it uses callee-saved registers"
        if self._uses_frame(start):
            return "a label: it uses the frame of the code before it"
        if self._functions.switches_stacks(start):
            return "a function of Go's runtime that switches stacks, or has no caller"
        if self._switches_stacks(start):
            return "it resumes another stack: longjmp, or similar"
        if self._is_branched_to(start):
            return "a label: another function branches to it conditionally"
        if self._is_outlined(start):
            return "an outlined piece: it changes its caller's frame or registers"
        if self._falls_in(start):
            return "a label: the code before it continues"
        return ""

    def _is_outlined(self, start: int) -> bool:
        """Return whether straight code uses the frame or the registers of its caller (AArch64)."""
        if "OUTLINED" in self._image.names.get(start, ""):
            return True
        if not self._image.arch.is_arm64 or not self._functions.must_follow(start):
            return False
        depth = 0
        saved: set[int] = set()
        for address, instruction in self._functions.straight_code(start):
            word = int.from_bytes(self._image.bytes_at(address, 4), "little")
            change, lowest = stack_use(word)
            saved.update(instruction.stored)
            if lowest is not None and lowest >= depth:
                return True
            depth -= change
            if depth < 0 or (written(word) | self._read(address)) - saved - _SCRATCH:
                return True
            if instruction.ends_flow:
                return depth != 0
        return False

    def _read(self, address: int) -> set[int]:
        """Return the callee-saved general registers that an AArch64 instruction reads.

        Stores save theirs.
        """
        if self._functions.instruction(address).stored:
            return set()
        return {number for number in self._access(address)[0] if number < _DOUBLES}

    def _access(self, address: int) -> tuple[set[int], set[int]]:
        """Return the callee-saved registers that an instruction reads, and those that it writes."""
        row = next(self._detailed.disasm(self._image.bytes_at(address, 16), address, 1), None)
        if row is None:
            return set(), set()
        read, changed = (
            {
                self._callee_saved[name]
                for name in map(row.reg_name, rows)
                if name in self._callee_saved
            }
            for rows in row.regs_access()
        )
        return read, changed

    @cached_property
    def _detailed(self) -> Any:
        import capstone  # type: ignore[import-untyped]

        decoder = (
            capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)
            if self._image.arch.is_arm64
            else capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
        )
        decoder.detail = True
        return decoder

    @cached_property
    def _callee_saved(self) -> dict[str, int]:
        """Names of callee-saved registers and of their parts."""
        if self._image.arch.is_arm64:
            general = {f"{size}{number}": number for number in range(19, 29) for size in "xw"}
            return general | {
                f"{size}{number}": _DOUBLES + number for number in range(8, 16) for size in "bhsdqv"
            }
        return {
            name: number
            for number, names in {
                3: ("rbx", "ebx", "bx", "bl", "bh"),
                6: ("rbp", "ebp", "bp", "bpl"),
                **{n: (f"r{n}", f"r{n}d", f"r{n}w", f"r{n}b") for n in range(12, 16)},
            }.items()
            for name in names
        }

    def _uses_unsaved(self, start: int) -> bool:
        """Return whether the first instructions use a callee-saved register that they did not save.

        Functions do not, but for those of Swift and Go.
        """
        if self._image.is_swift or self._image.is_go:
            return False
        saved: set[int] = set()
        address = start
        for _ in range(_FIRST):
            instruction = self._functions.instruction(address)
            if instruction.kind not in (Kind.PLAIN, Kind.PADDING):
                return False
            if instruction.stored:
                saved.update(instruction.stored)
            else:
                read, changed = self._access(address)
                if (read | changed) - saved:
                    return True
            address += instruction.size
        return False

    def _uses_frame(self, start: int) -> bool:
        """Return whether code uses or releases a frame that it did not create, or leaves for one.

        A function accesses nothing far above its unchanged stack pointer, lowers it before it
        raises it (on x86-64, before calls, too), saves its return address before calls that return
        (AArch64), and branches conditionally into itself alone.
        """
        is_saved = not self._image.arch.is_arm64
        function = self._image.function_at(start)
        assert function is not None
        code = self._image.bytes_at(start, min(function[1] - start, MAX_SCAN_SIZE))
        for number, (address, instruction) in enumerate(
            linear(self._functions.decode, code, start)
        ):
            target = instruction.target
            if (
                instruction.kind is Kind.BRANCH
                and target is not None
                and target not in range(*function)
            ):
                return target not in self._functions.start_set or bool(self.problem(target))
            if instruction.ends_flow or number == _FRAME_LAST:
                return False
            is_saved = is_saved or 30 in instruction.stored or self._word(address) in COPIES_OF_LR
            if not is_saved and instruction.kind is Kind.CALL and self._overwrites(target):
                return True
            use = (
                self._use_arm64(address)
                if self._image.arch.is_arm64
                else self._use_x86(address, instruction)
            )
            if use is not None:
                return use
        return False

    def _overwrites(self, target: int | None) -> bool:
        """Return whether a callee returns, and is no piece that saves its caller's registers."""
        if target is None or not self._returns(target):
            return False
        saves = (30 in row.stored for _, row in self._functions.straight_code(target))
        return not (self._functions.must_follow(target) and any(saves))

    def _use_arm64(self, address: int) -> bool | None:
        """Return whether an instruction releases stack; None if it does not change sp."""
        change, _ = stack_use(int.from_bytes(self._image.bytes_at(address, 4), "little"))
        return None if change == 0 else change > 0

    def _use_x86(self, address: int, instruction: Instruction) -> bool | None:
        """Return that, or whether it calls or accesses a frame above; None if neither."""
        if instruction.kind is Kind.CALL:
            return not self._functions.preserves_all(instruction.target or 0, address)
        row = next(self._detailed.disasm(self._image.bytes_at(address, 15), address, 1), None)
        if row is None:
            return False
        text = f"{row.mnemonic} {row.op_str}"
        if change := _CHANGES_RSP.match(text):
            return change[1] in ("pop", "add", "leave")
        access = _RSP_OFFSET.search(row.op_str)
        return True if access and int(access[1], 16) > _MAX_ARGUMENTS else None

    def _falls_in(self, start: int) -> bool:
        """Return whether the instruction before ``start`` is followed by it."""
        last = self._before(start)
        if last is None or last.ends_flow or last.kind is Kind.PADDING:
            return False
        return last.kind is not Kind.CALL or self._returns(last.target)

    def _returns(self, target: int | None) -> bool:
        """Return whether a callee certainly returns: a function of the image, by its code."""
        return (
            target is not None
            and self._image.holds_code(target)
            and not self._image.is_stub(target)
            and not self._functions.never_returns(target)
        )

    def _switches_stacks(self, start: int) -> bool:
        """Return whether a function loads its stack pointer and jumps, or returns to elsewhere."""
        function = self._image.function_at(start)
        assert function is not None
        code = self._image.bytes_at(start, min(function[1] - start, MAX_SCAN_SIZE))
        if self._image.arch.is_arm64:
            words = set(np.frombuffer(code[: len(code) & -4], "<u4").tolist())
            returns_elsewhere = not self._continued(start, code, words).isdisjoint(OTHER_RETURNS)
            if returns_elsewhere and words.isdisjoint(COPIES_OF_LR):
                return True
            if any(map(_loads_sp, words)) and 0xD65F03C0 not in words:
                return True
            is_loaded = False
            for address, instruction in linear(self._functions.decode, code, start):
                is_loaded = is_loaded or _loads_sp(self._word(address))
                if instruction.kind not in (Kind.PLAIN, Kind.PADDING):
                    return is_loaded and instruction.kind is Kind.INDIRECT_JUMP
            return False
        if not any(load in code for load in _LOADS_OF_RSP):
            return False
        rows = [row for _, row in linear(self._functions.decode, code, start)]
        return not any(row.kind is Kind.RETURN for row in rows) and any(
            row.kind is Kind.INDIRECT_JUMP for row in rows
        )

    def _word(self, address: int) -> int:
        return int.from_bytes(self._image.bytes_at(address, 4), "little")

    def _continued(self, start: int, code: bytes, words: set[int]) -> set[int]:
        """Return the words of AArch64 code, and of the functions that it jumps to."""
        continued = set(words)
        for _, instruction in linear(self._functions.decode, code, start):
            if instruction.kind is Kind.JUMP and instruction.target is not None:
                function = self._image.function_at(instruction.target)
                if function is not None and function[0] != start:
                    size = min(function[1] - instruction.target, MAX_SCAN_SIZE)
                    more = self._image.bytes_at(instruction.target, size)
                    continued.update(np.frombuffer(more[: len(more) & -4], "<u4").tolist())
        return continued

    def _before(self, start: int) -> Instruction | None:
        """Return the instruction that runs before ``start``, padding aside; None if unknown."""
        if self._image.arch.is_arm64:
            before = start - 4
            while self._image.holds_code(before):
                instruction = self._functions.instruction(before)
                if instruction.kind is not Kind.PADDING:
                    return instruction
                before -= 4
            return None
        last: Instruction | None = None
        for _, instruction in self._preceding(start):
            last = last if instruction.kind is Kind.PADDING else instruction
        return last

    def _preceding(self, start: int) -> list[tuple[int, Instruction]]:
        """Return instructions of x86-64 code before ``start``, at best of the whole function."""
        function = self._image.function_at(start - 1)
        if function is None:
            return []
        known = self._whole.get(function[0])
        if known is None:
            code = self._image.bytes_at(function[0], min(start - function[0], MAX_SCAN_SIZE))
            known = self._whole[function[0]] = list(
                linear(self._functions.decode, code, function[0])
            )
        return known

    def _is_branched_to(self, start: int) -> bool:
        """Return whether the x86-64 function before ``start`` branches to it, or ends amid it."""
        if self._image.arch.is_arm64:
            return start in self._branch_targets
        rows = self._preceding(start)
        if not rows:
            return False
        end = rows[-1][0] + rows[-1][1].size
        is_whole = start - rows[0][0] < MAX_SCAN_SIZE
        return (is_whole and end != start) or any(
            row.kind is Kind.BRANCH and row.target == start for _, row in rows
        )

    @cached_property
    def _branch_targets(self) -> frozenset[int]:
        """Starts of functions that other functions branch to conditionally (AArch64)."""
        labels: set[int] = set()
        starts = self._image.starts
        for low, high in self._image.code:
            words = np.frombuffer(self._image.bytes_at(low, (high - low) & -4), "<u4")
            at = np.arange(len(words), dtype=np.int64) * 4 + low
            for mask, value, bits in (
                (0xFF000000, 0x54000000, 19),
                (0x7E000000, 0x34000000, 19),
                (0x7E000000, 0x36000000, 14),
            ):
                rows = np.flatnonzero(words & np.uint32(mask) == np.uint32(value))
                distance = (words[rows] >> np.uint32(5)).astype(np.int64) & ((1 << bits) - 1)
                distance -= (distance >> (bits - 1)) << bits
                targets = (at[rows] + 4 * distance).astype(np.uint64)
                places = starts.searchsorted(targets).clip(max=len(starts) - 1)
                hits = starts[places] == targets
                sources = starts.searchsorted(at[rows][hits].astype(np.uint64), "right") - 1
                others = starts[sources.clip(min=0)] != targets[hits]
                labels.update(targets[hits][others].tolist())
        return frozenset(labels)


def _loads_sp(word: int) -> bool:
    """Return whether an AArch64 instruction sets sp to another register than the frame pointer."""
    return word & 0xFFFFFC1F == 0x9100001F and word >> 5 & 31 < 29
