"""Entries of functions, and callees that do not return or change their caller's frame."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from tests.support.published.image import PublishedImage
from tests.support.published.instructions import (
    Decode,
    Instruction,
    Kind,
    decoder_of,
    linear,
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
    r"go_panic.*|runtime\.(gopanic|panic\w*|goPanic\w*|throw|fatal\w*|goexit\w*|abort|"
    r"bad(systemstack|morestack\w+|mcall2?|ctxt|reflectcall|unlockosthread)\w*)(\.abi0)?|"
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
_OTHER_STACKS = re.compile(
    r"^runtime\.(mstart\w*|goexit\w*|mcall|systemstack\w*|gogo|gosave\w*|asmcgocall\w*|cgocallback\w*|"
    r"morestack\w*|sig\w*|rt0_go|gcWriteBarrier\w*|asyncPreempt\w*|debugCall\w*)(\.abi0)?$|_?rt0_"
)
"""Go's functions that switch stacks, preserve registers, or have no caller."""
_STRAIGHT = 48
"""Instructions after which a function without a branch is no outlined piece."""
MAX_SCAN_SIZE = 1 << 15
_MAX_DEPTH = 8
COPIES_OF_LR = tuple(0xAA1E03E0 | number for number in range(9, 18))
"""``mov xN, x30``."""
_RESTORES_OF_LR = tuple(0xAA0003FE | number << 16 for number in range(18))
"""``mov x30, xN``."""
OTHER_RETURNS = tuple(0xD65F0000 | number << 5 for number in range(9, 18))
"""``ret xN``."""
_COPIES_OF_SP = {
    0x910003E0 | number: (0x9100001F | number << 5, 0xEB2063FF | number << 16)
    for number in range(9, 18)
}
"""``mov xN, sp``, and what uses the copy later: ``mov sp, xN`` and ``cmp sp, xN``."""
_COPIES_OF_RSP = (
    *(bytes((0x48, 0x89, 0xE0 | number)) for number in (0, 1, 2)),
    *(bytes((0x49, 0x89, 0xE0 | number)) for number in range(4)),
    *(bytes((0x48, 0x8D, 0x04 | number << 3, 0x24)) for number in (0, 1, 2)),
    *(bytes((0x4C, 0x8D, 0x04 | number << 3, 0x24)) for number in range(4)),
)
"""``mov rax, rsp`` and the same of rcx, rdx, r8 to r11; ``lea rax, [rsp]`` likewise."""


class Functions:
    """Facts of an image's functions that its code shows; results are cached."""

    def __init__(self, image: PublishedImage) -> None:
        self._image = image
        self.decode: Decode = decoder_of(image.arch)
        self.start_set = frozenset(image.starts.tolist())
        self._instructions: dict[int, Instruction] = {}
        self._no_return: dict[int, bool] = {}
        self._straight: dict[int, bool] = {}
        self._private: dict[int, bool] = {}
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
        if not image.holds_code(target) or image.is_stub(target) or depth > _MAX_DEPTH:
            return False
        function = image.function_at(target)
        if function is None or function[0] != target or function[1] - target > MAX_SCAN_SIZE:
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
        return any(row.ends_flow for _, row in self.straight_code(target))

    def straight_code(self, start: int) -> Iterator[tuple[int, Instruction]]:
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

    def switches_stacks(self, target: int) -> bool:
        """Return whether a function of Go's runtime runs on another stack, or has no caller."""
        return self._image.is_go and bool(_OTHER_STACKS.match(self.name(target)))

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
            code = self._image.bytes_at(start, min(end - start, MAX_SCAN_SIZE))
            if self._image.arch.is_arm64:
                words = np.frombuffer(code[: len(code) & -4], "<u4")
                returns = (*COPIES_OF_LR, *_RESTORES_OF_LR, *OTHER_RETURNS)
                known = bool(np.isin(words, returns).any()) or any(
                    np.isin(words, users).any()
                    for copy, users in _COPIES_OF_SP.items()
                    if (words == copy).any()
                )
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
