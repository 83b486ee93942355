"""Code shapes of real programs that once caused a wrong stack or register."""

from __future__ import annotations

from pathlib import Path

import pytest

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.model.arch import Arch
from machtrace.unwinder.arch.arm64.analysis import keeps_own_frame
from machtrace.unwinder.arch.arm64.decoder import decode
from tests.support.compilers.executables import compile_macho
from tests.support.lab.policies import policies
from tests.support.lab.run import Conditions, run


def assembled(directory: Path, text: str, arch: Arch) -> MachOFileContents:
    """Assemble a program that ends at a trap."""
    source = directory / "program.S"
    source.write_text(f".text\n{text}\n.subsections_via_symbols\n")
    program = compile_macho([source], directory / "program", arch=arch)
    return MachOFileContents(program.read_bytes(), "program")


def assert_whole(contents: MachOFileContents, at_least: int) -> None:
    """Assert that all stacks are right at every instruction, and no register is wrong or lost."""
    chosen = {"everything": policies(contents)["everything"]}
    result = run(contents, chosen, Conditions())
    score = result.scores["everything"]
    assert score.executed >= at_least
    assert not score.wrong, {hex(pc): found for pc, found in score.examples.items()}
    assert not result.bad_registers
    assert not result.lost_registers


@pytest.mark.emulated
@pytest.mark.peer
def test_loads_of_one_lane_write_one_register(tmp_path: Path):
    """LD1 of one lane of v9 does not change d10 to d12, which nobody saved; LD3 writes three."""
    text = """
.globl _main
.p2align 2
_main:
    stp d9, d8, [sp, #-32]!
    stp x29, x30, [sp, #16]
    add x29, sp, #16
    ld1 {v9.b}[1], [sp]
    ld1r {v8.8b}, [sp]
    bl _inner
    ldp x29, x30, [sp, #16]
    ldp d9, d8, [sp], #32
    brk #1
.p2align 2
_inner:
    stp d8, d9, [sp, #-16]!
    ld3 {v7.s, v8.s, v9.s}[1], [sp]
    nop
    ldp d8, d9, [sp], #16
    ret
"""
    assert_whole(assembled(tmp_path, text, Arch.ARM64), 14)


@pytest.mark.emulated
@pytest.mark.peer
@pytest.mark.parametrize("arch", [Arch.ARM64, Arch.X86_64])
def test_a_call_of_the_next_function_that_never_returns(arch: Arch, tmp_path: Path):
    """The function begins at its own return address, with sp where its caller has it."""
    text = """
.globl _main
.p2align 2
_main:
    stp x29, x30, [sp, #-16]!
    mov x29, sp
    bl _last
.p2align 2
_last:
    stp x29, x30, [sp, #-16]!
    mov x29, sp
    brk #1
"""
    if arch is Arch.X86_64:
        text = """
.globl _main
_main:
    pushq %rbp
    movq %rsp, %rbp
    callq _last
_last:
    pushq %rbp
    movq %rsp, %rbp
    ud2
"""
    assert_whole(assembled(tmp_path, text, arch), 6)


@pytest.mark.emulated
@pytest.mark.peer
@pytest.mark.parametrize("arch", [Arch.ARM64, Arch.X86_64])
def test_scratch_registers_that_a_callee_leaves_alone(arch: Arch, tmp_path: Path):
    """Assembly (x264, dav1d) keeps its stack pointer or return address there during a call."""
    text = """
.globl _main
.p2align 2
_main:
    stp x29, x30, [sp, #-16]!
    mov x29, xzr
    bl _keeping
    brk #1
.p2align 2
_keeping:
    mov x15, x30
    bl _leaf
    nop
    ret x15
.p2align 2
_leaf:
    mov w0, #1
    ret
"""
    if arch is Arch.X86_64:
        text = """
.globl _main
_main:
    pushq %rbp
    xorl %ebp, %ebp
    callq _keeping
    ud2
_keeping:
    movq %rsp, %rcx
    andq $-32, %rsp
    subq $48, %rsp
    callq _leaf
    nop
    movq %rcx, %rsp
    retq
_leaf:
    movl $1, %eax
    retq
"""
    contents = assembled(tmp_path, text, arch)
    result = run(contents, {"everything": policies(contents)["everything"]}, Conditions())
    score = result.scores["everything"]
    assert score.executed >= 9
    assert not score.wrong, {hex(pc): found for pc, found in score.examples.items()}


@pytest.mark.emulated
@pytest.mark.peer
def test_scratch_registers_are_followed_through_two_calls_and_long_code(tmp_path: Path):
    """dav1d's transforms call each other, with the return addresses in x15 and x14."""
    nops = "nop\n" * 70
    text = f"""
.globl _main
.p2align 2
_main:
    stp x29, x30, [sp, #-16]!
    mov x29, xzr
    bl _outer
    brk #1
.p2align 2
_outer:
    mov x15, x30
    bl _middle
    nop
    ret x15
.p2align 2
_middle:
    mov x14, x30
    cbz x0, 1f
1:  bl _leaf
{nops}
    ret x14
.p2align 2
_leaf:
{nops}
    ret
"""
    contents = assembled(tmp_path, text, Arch.ARM64)
    result = run(contents, {"everything": policies(contents)["everything"]}, Conditions())
    score = result.scores["everything"]
    assert score.executed >= 100
    assert not score.wrong, {hex(pc): found for pc, found in score.examples.items()}


@pytest.mark.emulated
@pytest.mark.peer
def test_a_call_that_switches_stacks_is_not_a_piece_of_its_caller(tmp_path: Path):
    """Code after a call of ``longjmp`` that other paths lead to keeps its frame."""
    text = """
.globl _main
.p2align 2
_main:
    stp x29, x30, [sp, #-16]!
    mov x29, sp
    mov w0, #1
    bl _choose
    brk #1
.p2align 2
_choose:
    stp x20, x19, [sp, #-32]!
    stp x29, x30, [sp, #16]
    cbnz w0, 1f
    bl _jump_far
1:  mov x20, #2
    mov x19, #3
    ldp x29, x30, [sp, #16]
    ldp x20, x19, [sp], #32
    ret
.p2align 2
_jump_far:
    ldp x19, x20, [x0]
    ldp x29, x30, [x0, #80]
    ldr x2, [x0, #96]
    mov sp, x2
    ret
"""
    assert_whole(assembled(tmp_path, text, Arch.ARM64), 12)


@pytest.mark.emulated
@pytest.mark.peer
def test_frames_are_found_without_the_frame_pointer_that_a_callee_overwrote(tmp_path: Path):
    """In ``longjmp``, %rbp is another frame's before %rsp is: code is relative to %rsp."""
    text = """
.globl _main
_main:
    pushq %rbp
    movq %rsp, %rbp
    callq _throw
_throw:
    .cfi_startproc
    pushq %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
    movq %rsp, %rbp
    .cfi_def_cfa_register %rbp
    subq $32, %rsp
    leaq -32(%rbp), %rdi
    callq _jump
    ud2
    .cfi_endproc
_jump:
    movq (%rdi), %rbp
    nop
    ud2
"""
    contents = assembled(tmp_path, text, Arch.X86_64)
    chosen = {"everything": policies(contents)["everything"]}
    result = run(contents, chosen, Conditions())
    assert not result.scores["everything"].wrong
    assert result.lost_registers, "the caller's frame pointer is nowhere"


@pytest.mark.emulated
@pytest.mark.peer
def test_outlined_ends_of_functions_that_jump_to_a_pointer(tmp_path: Path):
    """Code that removes a frame and jumps has the frame of the functions that jump to it."""
    text = """
.globl _main
.p2align 2
_main:
    stp x29, x30, [sp, #-16]!
    mov x29, sp
    adrp x2, _target@PAGE
    add x2, x2, _target@PAGEOFF
    bl _one
    bl _two
    brk #1
.p2align 2
_one:
    stp x22, x21, [sp, #-48]!
    stp x20, x19, [sp, #16]
    stp x29, x30, [sp, #32]
    mov x19, #1
    mov x29, #7
    ldp x29, x30, [sp, #32]
    b _end
.p2align 2
_two:
    stp x22, x21, [sp, #-48]!
    stp x20, x19, [sp, #16]
    stp x29, x30, [sp, #32]
    mov x21, #1
    ldp x29, x30, [sp, #32]
    b _end
.p2align 2
_end:
    ldp x20, x19, [sp, #16]
    ldp x22, x21, [sp], #48
    br x2
.p2align 2
_target:
    ret
"""
    assert_whole(assembled(tmp_path, text, Arch.ARM64), 25)


@pytest.mark.emulated
@pytest.mark.peer
def test_short_functions_with_an_unknown_sp_keep_saved_registers(tmp_path: Path):
    text = """
.globl _main
.p2align 2
_main:
    stp x29, x30, [sp, #-16]!
    mov x29, sp
    bl _aligned
    brk #1
.p2align 2
_aligned:
    stp x20, x19, [sp, #-32]!
    stp x29, x30, [sp, #16]
    add x29, sp, #16
    sub x9, sp, #256
    and sp, x9, #0xffffffffffffff80
    mov x30, #0
    mov x19, #1
    mov x10, #0
    bl _short
    nop
    cbz x10, 1f
    bl _short
1:  sub sp, x29, #16
    ldp x29, x30, [sp, #16]
    ldp x20, x19, [sp], #32
    ret
.p2align 2
_short:
    stp x29, x30, [sp, #-16]!
    mov x29, sp
    mov x8, #8
    ldp x29, x30, [sp], #16
    ret
"""
    assert_whole(assembled(tmp_path, text, Arch.ARM64), 18)


def test_functions_with_their_own_frames_are_not_pieces_of_others():
    """They restore what they save; a piece that saves or restores for its caller does not."""
    push, load, pop = 0xA9BF7BFD, 0xF9400408, 0xA8C17BFD  # stp/ldp x29, x30 by way of sp; ldr
    assert keeps_own_frame([decode(word) for word in (push, load, pop)])
    assert not keeps_own_frame([decode(word) for word in (push, load)])
    assert not keeps_own_frame([decode(word) for word in (load, pop)])
    assert not keeps_own_frame([decode(load)])
