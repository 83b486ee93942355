"""Entries of functions, and callees that do not return or change their caller's frame."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from tests.support.published.image import PublishedImage
from tests.support.published.instructions import (
    Decode,
    Instruction,
    Kind,
    decoder_of,
    linear,
    stack_use,
    written,
)

NO_RETURN = re.compile(
    r"^_*(stack_chk_fail|abort(_msg|_report.*)?|exit|Exit|_exit|quick_exit|pthread_exit|thr_exit|"
    r"assert_rtn|assert_fail|assert|assert13|eprintf|fortify_fail|chk_fail|longjmp|siglongjmp|"
    r"longjmp_chk|terminate|cxa_(throw|rethrow|bad_.*|pure_virtual|deleted_virtual|"
    r"throw_bad_array_new_length|call_terminate|call_unexpected)|clang_call_terminate|"
    r"Unwind_Resume(_or_Rethrow)?|Unwind_SjLj_Resume|objc_exception_(re)?throw|objc_terminate|"
    r"ZSt\d+(__throw_\w+|terminatev|unexpectedv)|ZNSt3__1\d+__throw_.*|"
    r"ZNSt3__1\d+__libcpp_verbose_abort.*|ZSt9terminatev|ZSt17rethrow_exception.*|"
    r"ZSt17current_exceptionv_fail|ZNSt15__exception_ptr\d+.*rethrow.*|"
    r"swift_(unexpectedError|runtime_unreachable|abort.*|fatalError.*|deletedMethodError|"
    r"deletedAsyncMethodError.*|dynamicCastFailure|willThrow_fail)|"
    r"\$ss(17_assertionFailure|18_fatalErrorMessage|25_unimplementedInitializer|"
    r"23_diagnoseUnexpectedEnumCaseValue|19_diagnoseUnexpectedEnumCase|"
    r"5fatalError|10fatalError).*|"
    r"Py_(FatalError|ExitStatusException|Exit)|_?Py_FatalErrorFunc|err|errx|verr|verrx|"
    r"dl_(fatal_printf|signal_error|signal_exception|reloc_bad_type)|libc_fatal|"
    r"assert_perror_fail|dyld_fatal_error|gfortran_(stop_\w+|error_stop_\w+|runtime_error(_at)?|os_error(_at)?)|"
    r"go_panic.*|runtime\.(gopanic|panic\w*|goPanic\w*|throw|fatal\w*|goexit\w*|abort)(\.abi0)?|"
    r"(core|std)::panicking::.*|rust_panic.*|rust_begin_unwind|rust_start_panic|"
    r"NSExceptionRaise|xpc_api_misuse|os_crash.*|os_assert_.*|dispatch_abort|dispatch_main|"
    r"CFRunLoopRun_forever|mach_port_fail|stack_smash_handler)$"
)
_RUST_PANIC = re.compile(
    r"(core|std)\d*9panicking|4core6option13(unwrap|expect)_failed|"
    r"4core6result13unwrap_failed|4core5slice5index\w*fail|4core3str16slice_error_fail|"
    r"5alloc7raw_vec(17capacity_overflow|12handle_error)|18handle_alloc_error|"
    r"4core4cell\w*panic|_fail(ed)?(17h[0-9a-f]{16}E)?$"
)
_PRESERVING = re.compile(r"chkstk|rust_probestack|tlv_bootstrap|tls_get_addr_preserve")
_STRAIGHT = 48
"""Instructions after which a function without a branch is no outlined piece."""
_LARGEST_SCAN = 1 << 15
_DOUBLES = 64
_FIRST = 32
_DEEPEST = 8
_COPIES_OF_LR = tuple(0xAA1E03E0 | number for number in range(9, 18))
"""``mov xN, x30``."""
_OTHER_RETURNS = tuple(0xD65F0000 | number << 5 for number in range(9, 18))
"""``ret xN``."""
_COPIES_OF_RSP = tuple(bytes((0x48, 0x89, 0xE0 | number)) for number in (0, 1, 2)) + tuple(
    bytes((0x49, 0x89, 0xE0 | number)) for number in range(4)
)
"""``mov rax, rsp`` and the same of rcx, rdx, r8 to r11."""
_LOADS_OF_RSP = tuple(
    bytes((prefix, 0x89, 0xC4 | number << 3)) for prefix in (0x48, 0x4C) for number in range(8)
)
"""``mov rsp, register``."""
_SCRATCH = frozenset((*range(19), 30, 31))
"""AArch64 registers that calls need not preserve."""


class Functions:
    """Facts of an image's functions that its code shows; results are cached."""

    def __init__(self, image: PublishedImage) -> None:
        self._image = image
        self.decode: Decode = decoder_of(image.arch)
        self.start_set = frozenset(image.starts.tolist())
        self._instructions: dict[int, Instruction] = {}
        self._no_return: dict[int, bool] = {}
        self._straight: dict[int, bool] = {}
        self._entries: dict[int, str] = {}
        self._private: dict[int, bool] = {}
        self._whole: dict[int, list[tuple[int, Instruction]]] = {}
        self._blocks: dict[int, frozenset[int]] = {}

    def instruction(self, address: int) -> Instruction:
        """Return the instruction at ``address``; a trap outside of the image."""
        known = self._instructions.get(address)
        if known is None:
            known = self.decode(self._image.bytes_at(address, 16), address)
            self._instructions[address] = known
        return known

    # --- callees ---

    def name(self, address: int) -> str:
        """Return the name of a function, stub or import; empty if it has none."""
        image = self._image
        return (
            image.import_names.get(address)
            or image.stub_names.get(address)
            or image.names.get(address, "")
        )

    def never_returns(self, target: int, depth: int = 0) -> bool:
        """Return whether the function at ``target`` does not return, by name or by its code."""
        known = self._no_return.get(target)
        if known is None:
            self._no_return[target] = False  # for recursion
            known = self._no_return[target] = self._is_no_return(target, depth)
        return known

    def _is_no_return(self, target: int, depth: int) -> bool:
        name = self.name(target)
        if name and (NO_RETURN.match(name) or _RUST_PANIC.search(name)):
            return True
        image = self._image
        if not image.holds_code(target) or image.is_stub(target) or depth > _DEEPEST:
            return False
        function = image.function_at(target)
        if function is None or function[0] != target or function[1] - target > _LARGEST_SCAN:
            return False
        start, end = function
        outside: list[int] = []
        for _, instruction in linear(self.decode, image.bytes_at(start, end - start), start):
            if instruction.kind in (Kind.RETURN, Kind.INDIRECT_JUMP):
                return False
            if instruction.kind in (Kind.JUMP, Kind.BRANCH):
                assert instruction.target is not None
                if not start <= instruction.target < end:
                    outside.append(instruction.target)
        return all(self.never_returns(other, depth + 1) for other in outside)

    def ends_at(self, address: int) -> bool:
        """Return whether a call whose return address is ``address`` cannot return, by what follows.

        That is a trap, the start of another function, or no code.
        """
        if not self._image.holds_code(address) or address in self.start_set:
            return True
        instruction = self.instruction(address)
        while instruction.kind is Kind.PADDING:
            address += instruction.size
            if not self._image.holds_code(address) or address in self.start_set:
                return True
            instruction = self.instruction(address)
        return instruction.kind is Kind.TRAP

    def must_follow(self, target: int) -> bool:
        """Return whether a callee may change its caller's frame: an outlined piece.

        Those are straight code without a frame of its own. Calls of what is no function's start
        are followed, too.
        """
        known = self._straight.get(target)
        if known is None:
            known = self._straight[target] = self._is_straight(target)
        return known

    def _is_straight(self, target: int) -> bool:
        if target not in self.start_set or "OUTLINED" in self._image.names.get(target, ""):
            return True
        return any(row.ends_flow for _, row in self._straight_code(target))

    def _straight_code(self, start: int) -> Iterator[tuple[int, Instruction]]:
        """Yield instructions from ``start`` up to a transfer, an end of flow or the limit.

        A branch over a trap is passed: it checks a return address before a tail call (arm64e).
        """
        address = start
        for _ in range(_STRAIGHT):
            instruction = self.instruction(address)
            after = address + instruction.size
            if instruction.kind is Kind.BRANCH:
                trap = self.instruction(after)
                if trap.kind is not Kind.TRAP or instruction.target != after + trap.size:
                    return
                address = after + trap.size
                continue
            yield address, instruction
            if instruction.ends_flow:
                return
            address = after

    def preserves_all(self, target: int, after: int) -> bool:
        """Return whether a callee preserves all registers: probes of the stack, and similar."""
        name = self.name(target)
        return bool(name and _PRESERVING.search(name)) or self.instruction(after).allocates

    def keeps_scratch(self, address: int) -> bool:
        """Return whether the function at ``address`` has its return address in a scratch register.

        Or its stack pointer: assembly does that, and knows which registers its callees preserve.
        """
        function = self._image.function_at(address)
        if function is None:
            return False
        start, end = function
        known = self._private.get(start)
        if known is None:
            code = self._image.bytes_at(start, min(end - start, _LARGEST_SCAN))
            if self._image.arch.is_arm64:
                words = np.frombuffer(code[: len(code) & -4], "<u4")
                known = bool(np.isin(words, (*_COPIES_OF_LR, *_OTHER_RETURNS)).any())
            else:
                known = any(copy in code for copy in _COPIES_OF_RSP)
            self._private[start] = known
        return known

    # --- targets of jumps ---

    def is_block(self, target: int, function: tuple[int, int]) -> bool:
        """Return whether a block of ``function`` may start at ``target``, by its code.

        It is the target of a direct jump, or what precedes it does not run on.
        """
        start, end = function
        blocks = self._blocks.get(start)
        if blocks is None:
            blocks = self._blocks[start] = self._block_starts(start, end)
        return target in blocks

    def _block_starts(self, start: int, end: int) -> frozenset[int]:
        blocks = {start}
        code = self._image.bytes_at(start, end - start)
        for address, instruction in linear(self.decode, code, start):
            if instruction.kind in (Kind.JUMP, Kind.BRANCH) and instruction.target is not None:
                blocks.add(instruction.target)
            after = address + instruction.size
            if instruction.ends_flow or (
                instruction.kind is Kind.CALL
                and instruction.target is not None
                and self.never_returns(instruction.target)
            ):
                blocks.add(after)
                while self.instruction(after).kind is Kind.PADDING and after < end:
                    after += self.instruction(after).size
                    blocks.add(after)
        return frozenset(blocks)

    # --- entries ---

    def entry_problem(self, start: int) -> str:
        """Return why ``start`` is no function's entry; empty if it seems to be one."""
        known = self._entries.get(start)
        if known is None:
            known = self._entries[start] = self._entry_problem(start)
        return known

    def _entry_problem(self, start: int) -> str:  # noqa: PLR0911 (one return a case)
        image = self._image
        function = image.function_at(start)
        if function is None:
            return "not in code"
        if self.instruction(start).kind is Kind.TRAP:
            return "no instruction at the start"
        name = image.names.get(start, "")
        if image.is_part(start) or name.endswith(".cold") or name.startswith(".L"):
            return "a part of another function"
        if self._uses_unsaved(start):
            return "a label: it uses callee-saved registers"
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
        if not self._image.arch.is_arm64 or not self.must_follow(start):
            return False
        depth = 0
        saved: set[int] = set()
        for address, instruction in self._straight_code(start):
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
        if self.instruction(address).stored:
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
            instruction = self.instruction(address)
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

    def _falls_in(self, start: int) -> bool:
        """Return whether the instruction before ``start`` is followed by it."""
        last = self._before(start)
        return last is not None and not (last.ends_flow or last.kind in (Kind.CALL, Kind.PADDING))

    def _switches_stacks(self, start: int) -> bool:
        """Return whether a function loads its stack pointer and jumps, or returns to elsewhere."""
        function = self._image.function_at(start)
        assert function is not None
        code = self._image.bytes_at(start, min(function[1] - start, _LARGEST_SCAN))
        if self._image.arch.is_arm64:
            words = set(np.frombuffer(code[: len(code) & -4], "<u4").tolist())
            returns_elsewhere = not words.isdisjoint(_OTHER_RETURNS)
            loads = any(word & 0xFFFFFC1F == 0x9100001F and word >> 5 & 31 < 29 for word in words)
            if returns_elsewhere and words.isdisjoint(_COPIES_OF_LR):
                return True
            return loads and 0xD65F03C0 not in words
        if not any(load in code for load in _LOADS_OF_RSP):
            return False
        rows = [row for _, row in linear(self.decode, code, start)]
        return not any(row.kind is Kind.RETURN for row in rows) and any(
            row.kind is Kind.INDIRECT_JUMP for row in rows
        )

    def _before(self, start: int) -> Instruction | None:
        """Return the instruction that runs before ``start``, padding aside; None if unknown."""
        if self._image.arch.is_arm64:
            before = start - 4
            while self._image.holds_code(before):
                instruction = self.instruction(before)
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
            code = self._image.bytes_at(function[0], min(start - function[0], _LARGEST_SCAN))
            known = self._whole[function[0]] = list(linear(self.decode, code, function[0]))
        return known

    def _is_branched_to(self, start: int) -> bool:
        """Return whether the x86-64 function before ``start`` branches to it, or ends amid it."""
        if self._image.arch.is_arm64:
            return start in self._branch_targets
        rows = self._preceding(start)
        if not rows:
            return False
        end = rows[-1][0] + rows[-1][1].size
        is_whole = start - rows[0][0] < _LARGEST_SCAN
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
