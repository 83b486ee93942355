"""Shapes of code in published programs, at every instruction.

Each shape is a disassembly: offset, bytes, instruction.
"""

from __future__ import annotations

import pytest

from machtrace.errors import MemoryReadError
from machtrace.model.address import Avma, FileOffset, PacMask, Svma
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryRegion
from machtrace.model.registers import RegisterSet
from machtrace.unwinder.arch.arm64.analysis import InstructionRules
from machtrace.unwinder.arch.x86.analysis import X86InstructionRules
from machtrace.unwinder.code.code_check import CodeCheck
from machtrace.unwinder.rules import AtCfa, InRegister, RegisterOffset, UnwindRule, describe
from machtrace.unwinder.sources.of_elf import CallFrameCorrections
from machtrace.unwinder.step import step

START = 0x4000
"""The address of the first instruction."""
STACK, DATA, RETURN_ADDRESS = 0x7000_0000, 0x10_0000, 0x60_0000

ARM64_FORMATTER = """
   0 f9400008  ldr x8, [x0]
   4 1000008b  adr x11, 0x14
   8 3868694c  ldrb w12, [x10, x8]
   c 8b0c096b  add x11, x11, x12, lsl #2
  10 d61f0160  br x11
  14 a9402020  ldp x0, x8, [x1]
  18 f9400d03  ldr x3, [x8, #0x18]
  1c 1400000f  b 0x58
  20 a9402020  ldp x0, x8, [x1]
  24 f9400d03  ldr x3, [x8, #0x18]
  28 528003c2  mov w2, #0x1e
  2c d61f0060  br x3
  30 d10083ff  sub sp, sp, #0x20
  34 a9017bfd  stp x29, x30, [sp, #0x10]
  38 910043fd  add x29, sp, #0x10
  3c f90007e8  str x8, [sp, #0x8]
  40 94000400  bl 0x1040
  44 a9417bfd  ldp x29, x30, [sp, #0x10]
  48 910083ff  add sp, sp, #0x20
  4c d65f03c0  ret
  50 a9402020  ldp x0, x8, [x1]
  54 f9400d03  ldr x3, [x8, #0x18]
  58 52800162  mov w2, #0xb
  5c d61f0060  br x3
"""
"""A Rust formatter (``<&CertificateError as Debug>::fmt`` of rustls): a switch without a frame,
whose cases call a virtual function as their last action; one case makes a frame."""

X86_64_FORMATTER = """
   0 488b07  movq (%rdi), %rax
   3 488d0d64000000  leaq 0x64(%rip), %rcx
   a 48630481  movslq (%rcx,%rax,4), %rax
   e 4801c8  addq %rcx, %rax
  11 ffe0  jmpq *%rax
  13 488b3e  movq (%rsi), %rdi
  16 488b4608  movq 0x8(%rsi), %rax
  1a ba0b000000  movl $0xb, %edx
  1f ff6018  jmpq *0x18(%rax)
  22 50  pushq %rax
  23 e85f000000  callq 0x87
  28 59  popq %rcx
  29 c3  retq
  2a 488b3e  movq (%rsi), %rdi
  2d 488b4608  movq 0x8(%rsi), %rax
  31 488b4818  movq 0x18(%rax), %rcx
  35 eb05  jmp 0x3c
  37 ba07000000  movl $0x7, %edx
  3c ffe1  jmpq *%rcx
"""

ARM64_OUTLINED = """
   0 a9bd57f6  stp x22, x21, [sp, #-0x30]!
   4 a9014ff4  stp x20, x19, [sp, #0x10]
   8 a9027bfd  stp x29, x30, [sp, #0x20]
   c 910083fd  add x29, sp, #0x20
  10 94000007  bl 0x2c
  14 94000009  bl 0x38
  18 f9000328  str x8, [x25]
  1c a9427bfd  ldp x29, x30, [sp, #0x20]
  20 a9414ff4  ldp x20, x19, [sp, #0x10]
  24 a8c357f6  ldp x22, x21, [sp], #0x30
  28 d65f03c0  ret
  2c aa0203f3  mov x19, x2
  30 aa0003f5  mov x21, x0
  34 14000800  b 0x2034
  38 aa1503f6  mov x22, x21
  3c f10002df  cmp x22, #0x0
  40 d65f03c0  ret
"""
"""Two pieces of a function that were outlined write its callee-saved registers; the first of them
ends with a jump to another function."""

X86_64_ALIGNED = """
   0 4889e0  movq %rsp, %rax
   3 53  pushq %rbx
   4 55  pushq %rbp
   5 4883ec60  subq $0x60, %rsp
   9 4883e4c0  andq $-0x40, %rsp
   d 48897c2440  movq %rdi, 0x40(%rsp)
  12 4889442458  movq %rax, 0x58(%rsp)
  17 8b07  movl (%rdi), %eax
  19 8b5f04  movl 0x4(%rdi), %ebx
  1c eb01  jmp 0x1f
  1e 90  nop
  1f 8b2e  movl (%rsi), %ebp
  21 01eb  addl %ebp, %ebx
  23 4839d6  cmpq %rdx, %rsi
  26 72f7  jb 0x1f
  28 488b742458  movq 0x58(%rsp), %rsi
  2d 488b6ef0  movq -0x10(%rsi), %rbp
  31 488b5ef8  movq -0x8(%rsi), %rbx
  35 488d26  leaq (%rsi), %rsp
  38 c3  retq
"""
"""OpenSSL's ``sha256_block_data_order``: sp is aligned, and its value before is stored."""

X86_64_ARRAY = """
   0 4589c9  movl %r9d, %r9d
   3 4889e0  movq %rsp, %rax
   6 53  pushq %rbx
   7 55  pushq %rbp
   8 49f7d9  negq %r9
   b 4989e3  movq %rsp, %r11
   e 4e8d54ccf0  leaq -0x10(%rsp,%r9,8), %r10
  13 49f7d9  negq %r9
  16 4981e200fcffff  andq $-0x400, %r10
  1d 4d29d3  subq %r10, %r11
  20 4981e300f0ffff  andq $-0x1000, %r11
  27 4b8d241a  leaq (%r10,%r11), %rsp
  2b 4c8b1c24  movq (%rsp), %r11
  2f 4c39d4  cmpq %r10, %rsp
  32 7703  ja 0x37
  34 eb12  jmp 0x48
  36 90  nop
  37 488da42400f0ffff  leaq -0x1000(%rsp), %rsp
  3f 4c8b1c24  movq (%rsp), %r11
  43 4c39d4  cmpq %r10, %rsp
  46 77ef  ja 0x37
  48 4a8944cc08  movq %rax, 0x8(%rsp,%r9,8)
  4d 4831ed  xorq %rbp, %rbp
  50 4831db  xorq %rbx, %rbx
  53 eb03  jmp 0x58
  55 0f1f00  nopl (%rax)
  58 488954dcf0  movq %rdx, -0x10(%rsp,%rbx,8)
  5d 4883c301  addq $0x1, %rbx
  61 4c39cb  cmpq %r9, %rbx
  64 75f2  jne 0x58
  66 4a8b74cc08  movq 0x8(%rsp,%r9,8), %rsi
  6b 488b6ef0  movq -0x10(%rsi), %rbp
  6f 488b5ef8  movq -0x8(%rsi), %rbx
  73 488d26  leaq (%rsi), %rsp
  76 c3  retq
"""
"""OpenSSL's ``bn_mul_mont``: an array of a size known at run time, probed a page at a time, and the
caller's sp behind it."""

X86_64_POPPED = """
   0 55  pushq %rbp
   1 4889e5  movq %rsp, %rbp
   4 4155  pushq %r13
   6 50  pushq %rax
   7 488b4508  movq 0x8(%rbp), %rax
   b 48897d10  movq %rdi, 0x10(%rbp)
   f 48894538  movq %rax, 0x38(%rbp)
  13 4883c408  addq $0x8, %rsp
  17 415d  popq %r13
  19 5d  popq %rbp
  1a 4883c430  addq $0x30, %rsp
  1e e9fb0f0000  jmp 0x101e
"""
"""A Swift async function (``swifttailcc``): before its tail call it moves its return address over
arguments that the callee does not have."""

ARM64_SWITCH = """
   0 a9be4ff4  stp x20, x19, [sp, #-0x20]!
   4 a9017bfd  stp x29, x30, [sp, #0x10]
   8 910043fd  add x29, sp, #0x10
   c b40000e1  cbz x1, 0x28
  10 aa0103f3  mov x19, x1
  14 aa0003f4  mov x20, x0
  18 1000008a  adr x10, 0x28
  1c 7868792b  ldrh w11, [x9, x8, lsl #1]
  20 8b0b094a  add x10, x10, x11, lsl #2
  24 d61f0140  br x10
  28 a9417bfd  ldp x29, x30, [sp, #0x10]
  2c a8c24ff4  ldp x20, x19, [sp], #0x20
  30 d65f03c0  ret
"""
"""hermesc: a case of a switch returns, as does a condition before the registers are changed."""

X86_64_LABELS = """
   0 4883ec40  subq $0x40, %rsp
   4 48891c24  movq %rbx, (%rsp)
   8 4889e3  movq %rsp, %rbx
   b 4883e480  andq $-0x80, %rsp
   f 4885ff  testq %rdi, %rdi
  12 7e0d  jle 0x21
  14 ff0e  decl (%rsi)
  16 48ffcf  decq %rdi
  19 75f9  jne 0x14
  1b 48ffca  decq %rdx
  1e 7ff4  jg 0x14
  20 90  nop
  21 4889dc  movq %rbx, %rsp
  24 488b1c24  movq (%rsp), %rbx
  28 4883c440  addq $0x40, %rsp
  2c c3  retq
  2d 0000  addb %al, (%rax)
  2f 0f0b  ud2
"""
"""OpenBLAS: a kernel whose labels the linker lists as functions; zeros are between functions."""

ARM64_TWO = """
   0 a9bf7bfd  stp x29, x30, [sp, #-0x10]!
   4 910003fd  mov x29, sp
   8 94000400  bl 0x1008
   c a9be7bfd  stp x29, x30, [sp, #-0x20]!
  10 910003fd  mov x29, sp
  14 a90153f3  stp x19, x20, [sp, #0x10]
  18 aa0003f4  mov x20, x0
  1c 94000400  bl 0x101c
  20 a94153f3  ldp x19, x20, [sp, #0x10]
  24 a8c27bfd  ldp x29, x30, [sp], #0x20
  28 d65f03c0  ret
"""
"""musl: a call that never returns, and the next function behind it without a symbol."""

X86_64_TWO = """
   0 4883ec08  subq $0x8, %rsp
   4 e8fb0f0000  callq 0x1004
   9 0f1f00  nopl (%rax)
   c 55  pushq %rbp
   d 53  pushq %rbx
   e 4883ec18  subq $0x18, %rsp
  12 e8fb0f0000  callq 0x1012
  17 4883c418  addq $0x18, %rsp
  1b 5b  popq %rbx
  1c 5d  popq %rbp
  1d c3  retq
"""
"""The same with padding between them."""


ARM64_ENDS = """
   0 910103ff  add sp, sp, #0x40
   4 d65f03c0  ret
   8 a9414ff4  ldp x20, x19, [sp, #0x10]
   c a8c357f6  ldp x22, x21, [sp], #0x30
  10 d65f03c0  ret
  14 a9427bfd  ldp x29, x30, [sp, #0x20]
  18 9100c3ff  add sp, sp, #0x30
  1c d65f03c0  ret
"""
"""Outlined ends of functions (Bun), which jump to them from tens of megabytes away."""

X86_64_PROBE = """
   0 55  pushq %rbp
   1 4157  pushq %r15
   3 50  pushq %rax
   4 b828600000  movl $0x6028, %eax
   9 e8f20f0000  callq 0x1000
   e 4829c4  subq %rax, %rsp
  11 4881c430600000  addq $0x6030, %rsp
  18 415f  popq %r15
  1a 5d  popq %rbp
  1b c3  retq
"""
"""Clang's prologue of a large frame: the call probes the stack, which is not allocated yet."""

X86_64_LANDING_PAD = """
   0 53  pushq %rbx
   1 4883ec10  subq $0x10, %rsp
   5 e8f60f0000  callq 0x5000
   a 4883c410  addq $0x10, %rsp
   e 5b  popq %rbx
   f c3  retq
  10 4889c3  movq %rax, %rbx
  13 e9e81f0000  jmp 0x6000
"""

X86_64_MOVED_RELEASE = """
   0 4156  pushq %r14
   2 53  pushq %rbx
   3 50  pushq %rax
   4 4885c0  testq %rax, %rax
   7 4883c408  addq $0x8, %rsp
   b 4883f802  cmpq $0x2, %rax
   f 7504  jne 0x15
  11 5b  popq %rbx
  12 415e  popq %r14
  14 c3  retq
  15 5b  popq %rbx
  16 415e  popq %r14
  18 c3  retq
"""
"""LLVM moved the release of the frame in front of the comparison, and its description did not."""

X86_64_LATE_PUSH = """
   0 85ff  testl %edi, %edi
   2 740a  je 0xe
   4 55  pushq %rbp
   5 4831ed  xorq %rbp, %rbp
   8 48ffc5  incq %rbp
   b 75fb  jne 0x8
   d 5d  popq %rbp
   e c3  retq
"""
"""Inline assembly of FFmpeg that pushes without call-frame information."""

X86_64_RECORD_PUSH = """
   0 55  pushq %rbp
   1 4889e5  movq %rsp, %rbp
   4 4883e4e0  andq $-0x20, %rsp
   8 4155  pushq %r13
   a 4989fd  movq %rdi, %r13
   d 415d  popq %r13
   f 4889ec  movq %rbp, %rsp
  12 5d  popq %rbp
  13 c3  retq
"""
"""glibc's libmvec raises the CFA by the push, although it is relative to rbp."""

X86_64_BEHIND_RETURN = """
   0 4881ec00010000  subq $0x100, %rsp
   7 4885d2  testq %rdx, %rdx
   a 7408  je 0x14
   c 4881c400010000  addq $0x100, %rsp
  13 c3  retq
  14 31c0  xorl %eax, %eax
  16 ebf4  jmp 0xc
"""
"""glibc's ``strtok`` has the row of the return for the code behind it, too."""

X86_64_BEHIND_ASSERTION = """
   0 8b5710  movl 0x10(%rdi), %edx
   3 85d2  testl %edx, %edx
   5 740c  je 0x13
   7 53  pushq %rbx
   8 85d2  testl %edx, %edx
   a 7402  je 0xe
   c 5b  popq %rbx
   d c3  retq
   e e8ed0f0000  callq 0x1000
  13 85d2  testl %edx, %edx
  15 7701  ja 0x18
  17 c3  retq
  18 ebfd  jmp 0x17
"""
"""A function without a frame on one path, behind a call that never returns on another."""

ARM64_SYNCHRONOUS = """
   0 d10103ff  sub sp, sp, #0x40
   4 a9027bfd  stp x29, x30, [sp, #0x20]
   8 f9001bf3  str x19, [sp, #0x30]
   c 910083fd  add x29, sp, #0x20
  10 94000400  bl 0x1010
  14 a9427bfd  ldp x29, x30, [sp, #0x20]
  18 f9401bf3  ldr x19, [sp, #0x30]
  1c 910103ff  add sp, sp, #0x40
  20 d65f03c0  ret
"""
"""LLVM's synchronous tables describe the prologue as one step, and no epilogue."""

ARM64_TABLE_LOOP = """
   0 f81f0ffe  str x30, [sp, #-0x10]!
   4 d61f0160  br x11
   8 4cdf70c0  ld1 {v0.16b}, [x6], #16
   c 94000400  bl 0x100c
  10 4f000400  movi v0.4s, #0
  14 54ffffac  b.gt 0x8
  18 14000006  b 0x30
  1c d503201f  nop
  20 d503201f  nop
  24 d503201f  nop
  28 d503201f  nop
  2c d503201f  nop
  30 f84107fe  ldr x30, [sp], #0x10
  34 d65f03c0  ret
"""
"""dav1d: a loop that only a jump table leads to; the linker lists it as a function."""


X86_64_SHARED_FRAME = """
   0 83e107  andl $0x7, %ecx
   3 83c908  orl $0x8, %ecx
   6 eb0b  jmp 0x13
   8 4883ec28  subq $0x28, %rsp
   c f7c100040000  testl $0x400, %ecx
  12 90  nop
  13 01c8  addl %ecx, %eax
  15 4883c428  addq $0x28, %rsp
  19 c3  retq
"""
"""dav1d: a label before the function whose frame it has, listed as a function."""


class _Table:
    """Call-frame information by the offset of an instruction."""

    def __init__(self, size: int, rules: dict[int, UnwindRule]) -> None:
        self._size = size
        self._rules = rules

    def described_at(self, lookup: Svma) -> range | None:
        """Return the addresses of the function."""
        function = range(START, START + self._size)
        return function if lookup in function else None

    def rule_for(self, lookup: Svma, *, interrupted: bool) -> UnwindRule | None:
        """Return the rule of the last row at or before an address."""
        assert interrupted
        return self._rules[max(at for at in self._rules if at <= lookup - START)]


class _Shape:
    """Code as an image; functions begin at ``starts``."""

    source = "shape"

    def __init__(self, text: str, starts: tuple[int, ...] = (0,), *, unreadable: int = 0) -> None:
        """``unreadable``: bytes of arm64 code behind the shape."""
        lines = [line.split() for line in text.split("\n") if line]
        self.offsets = [int(line[0], 16) for line in lines]
        words = [bytes.fromhex(line[1]) for line in lines]
        is_arm64 = "%" not in text
        self.code = b"".join(word[::-1] if is_arm64 else word for word in words)
        self._starts = (*starts, len(self.code))
        analysis = InstructionRules if is_arm64 else X86InstructionRules
        self.arch = Arch.ARM64 if is_arm64 else Arch.X86_64
        self.rules = analysis(self, self.function_at)
        if unreadable:
            sections = [(START, START + len(self.code) + unreadable)]
            self.rules = InstructionRules(self, self.function_at, sections)

    def read_svma(self, address: Svma, size: int, /) -> memoryview:
        """See :meth:`ImageContents.read_svma`."""
        start = address - START
        if start < 0 or start + size > len(self.code):
            raise MemoryReadError(Avma(address), size)
        return memoryview(self.code)[start : start + size]

    def read_file(self, offset: FileOffset, size: int, /) -> memoryview:
        """See :meth:`ImageContents.read_file`."""
        raise MemoryReadError(offset, size)

    def function_at(self, address: Svma) -> tuple[Svma, Svma] | None:
        """Return the bounds of one of the functions."""
        for start, end in zip(self._starts, self._starts[1:], strict=False):
            if start <= address - START < end:
                return Svma(START + start), Svma(START + end)
        return None

    def rule(self, offset: int) -> UnwindRule | None:
        return self.rules.rule_for(Svma(START + offset), interrupted=True)

    def text(self, offset: int) -> str:
        rule = self.rule(offset)
        return "" if rule is None else describe(rule, dict(enumerate(self.arch.registers.names)))


def test_the_cases_of_a_switch_that_end_in_tail_calls_have_the_entry_s_frame():
    """The target of a tail call is no return address."""
    shape = _Shape(ARM64_FORMATTER)
    with_frame = range(0x34, 0x4C)
    assert {shape.text(at) for at in shape.offsets if at not in with_frame} == {"cfa = sp, pc = lr"}
    assert shape.text(0x40) == "cfa = sp + 32, pc = *(cfa - 8), fp = *(cfa - 16)"
    shape = _Shape(X86_64_FORMATTER)
    entry = "cfa = rsp + 8, pc = *(cfa - 8)"
    pushed = {0x23, 0x28}
    assert {shape.text(at) for at in shape.offsets if at not in pushed} == {entry}
    assert {shape.text(at) for at in pushed} == {"cfa = rsp + 16, pc = *(cfa - 8)"}


def test_registers_that_outlined_pieces_write_are_recovered():
    """The function's own code does not change them."""
    shape = _Shape(ARM64_OUTLINED, (0, 0x2C, 0x38))
    saved = {0x10: "fp", 0x14: "x19 x21 fp", 0x18: "x19 x21 x22 fp"}
    for at, registers in saved.items():
        for register in registers.split():
            assert f"{register} = *(cfa" in shape.text(at)


def test_the_end_of_functions_that_jump_to_it_removes_their_frame():
    """It is known by itself, where not all code could be searched for the jumps."""
    shape = _Shape(ARM64_ENDS, (0, 8, 0x14), unreadable=64 << 20)
    saved = "x19 = *(cfa - 24), x20 = *(cfa - 32), x21 = *(cfa - 40), x22 = *(cfa - 48)"
    assert [shape.text(at) for at in shape.offsets] == [
        "cfa = sp + 64, pc = lr",
        "cfa = sp, pc = lr",
        f"cfa = sp + 48, pc = lr, {saved}",
        f"cfa = sp + 48, pc = lr, {saved}",
        "cfa = sp, pc = lr",
        "cfa = sp + 48, pc = *(cfa - 8), fp = *(cfa - 16)",
        "cfa = sp + 48, pc = *(cfa - 8), fp = *(cfa - 16)",
        "cfa = sp, pc = lr",
    ]
    called = _Shape(ARM64_ENDS, (0, 8, 0x14))
    assert called.text(4) == "cfa = sp - 64, pc = lr"  # nothing jumps there, so a call does


def test_saved_registers_are_recovered_from_the_frame_until_it_is_released():
    """A switch may lead to where only paths were followed that leave them unchanged."""
    shape = _Shape(ARM64_SWITCH)
    for at in (0x28, 0x2C):
        assert shape.text(at) == (
            "cfa = sp + 32, pc = *(cfa - 8), x19 = *(cfa - 24), x20 = *(cfa - 32), fp = *(cfa - 16)"
        )
    assert shape.text(0x30) == "cfa = sp, pc = lr"


def test_labels_that_are_listed_as_functions_are_followed_with_the_code_before():
    """The code before continues into them; none of them returns as a function does."""
    listed = _Shape(X86_64_LABELS, (0, 0x14, 0x1B, 0x21, 0x2F))
    whole = _Shape(X86_64_LABELS, (0, 0x2F))
    for at in reversed(listed.offsets):
        assert listed.text(at) == whole.text(at)
    assert listed.text(0x19) == "cfa = rbx + 72, pc = *(cfa - 8), rbx = *(cfa - 72)"


@pytest.mark.emulated
@pytest.mark.parametrize("text", [X86_64_ALIGNED, X86_64_ARRAY], ids=["aligned", "array"])
@pytest.mark.parametrize("below", [0, 16, 40])
def test_a_saved_stack_pointer_leads_to_the_frame(text: str, below: int):
    """While rbp has data; wherever the caller's sp is."""
    unicorn = pytest.importorskip("unicorn")
    shape = _Shape(text)
    cpu = unicorn.Uc(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
    cpu.mem_map(START, 0x1000)
    cpu.mem_write(START, shape.code)
    cpu.mem_map(STACK, 0x10000)
    cpu.mem_map(DATA, 0x1000)
    cpu.mem_map(RETURN_ADDRESS, 0x1000)
    names = [name for name in Arch.X86_64.registers.names[:16] if name]
    numbers = [getattr(unicorn.x86_const, f"UC_X86_REG_{name.upper()}") for name in names]
    sp = STACK + 0xF000 - below - 8
    entry = dict.fromkeys(names, DATA) | {"rsp": sp, "r9": 16, "rbx": 0xB, "rbp": 0xEB}
    cpu.mem_write(sp, RETURN_ADDRESS.to_bytes(8, "little"))
    for name, number in zip(names, numbers, strict=True):
        cpu.reg_write(number, entry[name])
    executed = []
    pc = START
    while pc != RETURN_ADDRESS:
        executed.append(pc - START)
        rule = shape.rule(pc - START)
        assert rule is not None, hex(pc - START)
        registers = RegisterSet(Arch.X86_64, Avma(pc), tuple(map(cpu.reg_read, numbers)))
        stack = MemoryRegion(Avma(STACK), bytes(cpu.mem_read(STACK, 0x10000)))
        caller = step(rule, registers, stack, PacMask())
        assert isinstance(caller, RegisterSet), hex(pc - START)
        found = (caller.pc, caller.sp, caller.get(3), caller.get(6))
        assert found == (RETURN_ADDRESS, sp + 8, 0xB, 0xEB), hex(pc - START)
        cpu.emu_start(pc, 0, count=1)
        pc = cpu.reg_read(unicorn.x86_const.UC_X86_REG_RIP)
    assert len(set(executed)) > 15


def test_a_moved_return_address_is_no_pushed_one():
    """Code that is jumped to after pushes pops them, too, but leaves the return address."""
    shape = _Shape(X86_64_POPPED)
    assert shape.text(0) == "cfa = rsp + 8, pc = *(cfa - 8)"
    assert shape.text(4).startswith("cfa = rsp + 16, pc = *(cfa - 8)")
    assert shape.text(shape.offsets[-1]).startswith("cfa = rsp - 40")


@pytest.mark.parametrize(
    ("text", "first", "rule"),
    [(ARM64_TWO, 0xC, "cfa = sp, pc = lr"), (X86_64_TWO, 0xC, "cfa = rsp + 8, pc = *(cfa - 8)")],
    ids=["arm64", "x86_64"],
)
def test_a_prologue_behind_a_call_begins_another_function(text: str, first: int, rule: str):
    """The call never returns."""
    assert _Shape(text).text(first) == rule


def test_a_call_that_probes_the_stack_has_the_frame_before_the_allocation():
    """Compact unwind describes what follows the prologue."""
    shape = _Shape(X86_64_PROBE)
    stated = UnwindRule(RegisterOffset(7, 0x6048), AtCfa(-8), ((6, AtCfa(-16)),))
    check = CodeCheck(shape.rules, shape, Arch.X86_64)

    objection = check.objection(Svma(START + 0xD), stated)

    assert objection is not None
    assert objection.is_later
    assert objection.rule.cfa == RegisterOffset(7, 32)


def _corrected(
    text: str, rules: dict[int, UnwindRule], at: int, starts: tuple[int, ...] = (0,)
) -> str:
    shape = _Shape(text, starts)
    table = _Table(len(shape.code), rules)
    source = CallFrameCorrections(shape, shape.arch, table, shape.rules)
    rule = source.rule_for(Svma(START + at), interrupted=True)
    return "" if rule is None else str(describe(rule, dict(enumerate(shape.arch.registers.names))))


def test_a_release_that_was_moved_from_its_description_is_recognised():
    """All paths and the straight one to the return contradict the table, which is right before."""
    rules = {
        at: UnwindRule(RegisterOffset(7, size), AtCfa(-8))
        for at, size in ((0, 8), (2, 16), (3, 24), (4, 32), (0x11, 24), (0x12, 16), (0x14, 8))
    }
    for at in (0xB, 0xF):
        assert _corrected(X86_64_MOVED_RELEASE, rules, at).startswith("cfa = rsp + 24")
    for at in (0, 2, 3, 4, 7, 0x11, 0x12, 0x14):
        assert _corrected(X86_64_MOVED_RELEASE, rules, at) == ""


def test_code_behind_a_described_return_keeps_its_description():
    """A landing pad jumps out of the function, and is listed as one here."""
    rules = {
        at: UnwindRule(RegisterOffset(7, size), AtCfa(-8))
        for at, size in ((0, 8), (1, 16), (5, 32), (0xE, 16), (0xF, 8), (0x10, 32))
    }
    for at in (0xE, 0xF, 0x10, 0x13):
        assert _corrected(X86_64_LANDING_PAD, rules, at, (0, 0x10)) == ""


def test_pushes_that_a_table_omits_after_the_prologue_are_recognised():
    """Only what runs behind the push contradicts the function's single row."""
    rules = {0: UnwindRule(RegisterOffset(7, 8), AtCfa(-8))}
    for at in (5, 8, 0xB, 0xD):
        assert _corrected(X86_64_LATE_PUSH, rules, at).startswith("cfa = rsp + 16")
    for at in (0, 2, 4, 0xE):
        assert _corrected(X86_64_LATE_PUSH, rules, at) == ""


def test_a_push_does_not_move_a_cfa_that_is_relative_to_the_frame_pointer():
    """The rows on either side are right, and remain."""
    registers = ((6, AtCfa(-16)),)
    rows = ((0, 7, 8), (1, 7, 16), (4, 6, 16), (0xA, 6, 24), (0xF, 6, 16), (0x13, 7, 8))
    rules = {
        at: UnwindRule(RegisterOffset(base, size), AtCfa(-8), registers if size > 8 else ())
        for at, base, size in rows
    }
    for at in (0xA, 0xD):
        assert _corrected(X86_64_RECORD_PUSH, rules, at).startswith("cfa = rbp + 16")
    for at in (0, 1, 4, 8, 0xF, 0x12, 0x13):
        assert _corrected(X86_64_RECORD_PUSH, rules, at) == ""


def test_code_behind_a_return_has_the_frame_of_the_code_that_jumps_there():
    """No straight path leads there or to the return; the whole function agrees."""
    rules = {
        at: UnwindRule(RegisterOffset(7, size), AtCfa(-8))
        for at, size in ((0, 8), (7, 264), (0x13, 8))
    }
    for at in (0x14, 0x16):
        assert _corrected(X86_64_BEHIND_RETURN, rules, at).startswith("cfa = rsp + 264")
    for at in (0, 7, 0xA, 0xC, 0x13):
        assert _corrected(X86_64_BEHIND_RETURN, rules, at) == ""


def test_code_behind_a_call_that_never_returns_contradicts_no_table():
    """The row of the entry is right there again."""
    rules = {
        at: UnwindRule(RegisterOffset(7, size), AtCfa(-8))
        for at, size in ((0, 8), (8, 16), (0xD, 8), (0xE, 16), (0x13, 8))
    }
    for at in (3, 5, 8, 0xD, 0xE, 0x13, 0x15, 0x17, 0x18):
        assert _corrected(X86_64_BEHIND_ASSERTION, rules, at) == ""


def test_a_part_of_a_function_has_the_row_of_its_start():
    """Cold parts begin with the frame of the function that jumps there."""
    rules = {0: UnwindRule(RegisterOffset(7, 160), AtCfa(-8))}
    for at in (2, 4, 5, 8, 0xD, 0xE):
        assert _corrected(X86_64_LATE_PUSH, rules, at) == ""


def test_prologues_and_epilogues_that_a_table_omits_are_recognised():
    """The rows are those of the entry and of the body."""
    body = UnwindRule(RegisterOffset(29, 32), AtCfa(-24), ((19, AtCfa(-16)), (29, AtCfa(-32))))
    rules = {0: UnwindRule(RegisterOffset(31, 0), InRegister(30)), 0x10: body}
    for at in (4, 8, 0xC):
        assert _corrected(ARM64_SYNCHRONOUS, rules, at).startswith("cfa = sp + 64")
    assert _corrected(ARM64_SYNCHRONOUS, rules, 0x10) == ""
    for at in (0x18, 0x1C):
        assert _corrected(ARM64_SYNCHRONOUS, rules, at).startswith("cfa = sp + 64")
    assert _corrected(ARM64_SYNCHRONOUS, rules, 0x20).startswith("cfa = sp, pc = lr")


def test_a_loop_that_only_a_jump_table_leads_to_has_the_frame_that_it_releases():
    """All paths lead to the load of the return address."""
    shape = _Shape(ARM64_TABLE_LOOP, (0, 8))
    for at in (8, 0x10, 0x14, 0x18):
        assert shape.text(at) == "cfa = sp + 16, pc = *(cfa - 16)"
    call = shape.rules.rule_at_call(Svma(START + 0xC))
    assert call is not None
    assert call.cfa == RegisterOffset(31, 16)


def test_a_label_that_jumps_into_a_function_has_its_frame():
    """It neither creates a frame nor returns."""
    shape = _Shape(X86_64_SHARED_FRAME, (0, 8))
    for at in (0, 3, 6):
        assert shape.text(at).startswith("cfa = rsp + 48, pc = *(cfa - 8)")
    assert shape.text(8).startswith("cfa = rsp + 8")
