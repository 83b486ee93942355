"""The registers that the kernel saved before it called a signal handler, at C's offsets.

The oracle is ``offsetof`` in the systems' own headers, compiled for each architecture; Darwin's
``_sigtramp`` is not in an open header, so a function of its shape replaces it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import ziglang

from machtrace.errors import MemoryReadError
from machtrace.model.address import Avma, PacMask, Svma
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryRegion, RegionMemory
from machtrace.model.registers import RegisterSet
from machtrace.model.stack import AddressKind
from machtrace.unwinder.rules import RegisterOffset, UnwindRule, link_register_rule
from machtrace.unwinder.sources.darwin_signal_frame import DarwinSignalRules
from machtrace.unwinder.sources.linux_signal_frame import LinuxSignalRules
from machtrace.unwinder.step import step

pytestmark = pytest.mark.peer

DARWIN_HEADERS = Path(ziglang.__file__).parent / "lib/libc/include/any-darwin-any"
STACK = Avma(0x7000_0000)
CODE = Svma(0x1000)


@cache
def offsets(target: str, declarations: str, *members: str) -> tuple[int, ...]:
    """Return ``offsetof`` of each (type, member), by the headers of a system."""
    with TemporaryDirectory() as directory:
        source, output = Path(directory) / "offsets.c", Path(directory) / "offsets.s"
        listed = ", ".join(f"__builtin_offsetof({member})" for member in members)
        source.write_text(
            "#define _GNU_SOURCE\n#include <sys/types.h>\n#include <signal.h>\n"
            f"#include <sys/ucontext.h>\n{declarations}\nconst unsigned offsets[] = {{{listed}}};\n"
        )
        # Not as cc, which knows no headers for systems that it cannot link for.
        command = ["clang", "-isystem", str(DARWIN_HEADERS)] if "apple" in target else ["cc"]
        command += ["-target", target, "-S", "-o", str(output), str(source)]
        subprocess.run(
            [sys.executable, "-m", "ziglang", *command],
            check=True,
            capture_output=True,
        )
        text = output.read_text().partition("offsets:")[2]
        return tuple(map(int, re.findall(r"\.(?:long|word)\s+(\d+)", text)[: len(members)]))


class Code:
    """An image that contains only ``code``."""

    source = "code"

    def __init__(self, code: bytes) -> None:
        self.code = code

    def read_svma(self, address: Svma, size: int, /) -> memoryview:
        """See :meth:`ImageContents.read_svma`."""
        start = address - CODE
        if start < 0 or start + size > len(self.code):
            raise MemoryReadError(Avma(address), size)
        return memoryview(self.code)[start : start + size]


def place(words: dict[int, int], size: int) -> RegionMemory:
    """Build memory at :data:`STACK` with ``words`` of ``size`` bytes at offsets."""
    stack = bytearray(2048)
    for offset, value in words.items():
        stack[offset : offset + size] = value.to_bytes(size, "little")
    return RegionMemory([MemoryRegion(STACK, bytes(stack))])


def check(
    rule: UnwindRule | None, sp: int, saved: dict[int | str, int], size: int, arch: Arch, extra
):
    """Step over a stack with a distinct value for every register in ``saved``."""
    assert rule is not None
    assert rule.is_signal_frame
    assert rule.caller_kind is AddressKind.PROGRAM_COUNTER
    values = {name: 0x4000_0000 + 0x100 * n for n, name in enumerate(saved)}
    memory = place({saved[name]: values[name] for name in saved} | extra, size)
    registers = RegisterSet.of(arch, pc=0, sp=sp)
    caller = step(rule, registers, memory, PacMask())
    assert isinstance(caller, RegisterSet)
    assert caller.pc == values["pc"]
    assert {n: caller.get(n) for n in saved if n != "pc"} == {
        n: value for n, value in values.items() if n != "pc"
    }


UCONTEXT = "ucontext_t, uc_mcontext."
GREGS = "ucontext_t, uc_mcontext.gregs["
FRAME = "struct frame { siginfo_t info; ucontext_t uc; };"
LINUX = {
    Arch.X86_64: (
        "x86_64-linux-musl",
        ["48c7c00f0000000f05", "b80f0000000f05"],
        0,
        {
            number: f"{GREGS}REG_{name}]"
            for number, name in enumerate(["RAX", "RDX", "RCX", "RBX", "RSI", "RDI", "RBP", "RSP"])
        }
        | {number: f"{GREGS}REG_R{number}]" for number in range(8, 16)}
        | {"pc": f"{GREGS}REG_RIP]"},
    ),
    Arch.I386: (
        "x86-linux-musl",
        ["b8ad000000cd80"],
        4 + 4 + 4 + 128,  # sig, pinfo, puc and info lie before uc
        {
            number: f"{GREGS}REG_E{name}]"
            for number, name in enumerate(["AX", "CX", "DX", "BX", "SP", "BP", "SI", "DI"])
        }
        | {"pc": f"{GREGS}REG_EIP]"},
    ),
    Arch.ARM64: (
        "aarch64-linux-musl",
        ["681180d2010000d4"],
        128,
        {number: f"{UCONTEXT}regs[{number}]" for number in range(31)}
        | {31: f"{UCONTEXT}sp", "pc": f"{UCONTEXT}pc"},
    ),
    Arch.ARM: (
        "arm-linux-musleabihf",
        ["ad70a0e3000000ef", "ad2700df"],
        128,
        {number: f"{UCONTEXT}arm_r{number}" for number in range(11)}
        | {11: f"{UCONTEXT}arm_fp", 12: f"{UCONTEXT}arm_ip", 13: f"{UCONTEXT}arm_sp"}
        | {14: f"{UCONTEXT}arm_lr", "pc": f"{UCONTEXT}arm_pc"},
    ),
}


@pytest.mark.parametrize("arch", LINUX)
def test_linux_frames_have_the_kernels_offsets(arch: Arch):
    """At both instructions, and at the handler's return address, for each spelling."""
    target, spellings, before, members = LINUX[arch]
    found = offsets(target, FRAME, *members.values())
    saved = {name: before + offset for name, offset in zip(members, found, strict=True)}
    for spelling in spellings:
        code = bytes.fromhex(spelling)
        rules = LinuxSignalRules(Code(b"\0" * 16 + code), arch)
        start = Svma(CODE + 16)
        for rule in (
            rules.rule_for(start, interrupted=True),
            rules.rule_for(Svma(start - 1), interrupted=False),
        ):
            check(rule, STACK, saved, arch.pointer_size, arch, {})
        second = next(n for n in range(1, 8) if rules.rule_for(Svma(start + n), interrupted=True))
        assert second in (2, 4, 5, 7)
        assert rules.rule_for(Svma(start + second - 1), interrupted=False) is None
        assert rules.rule_for(Svma(start + 9), interrupted=True) is None


class FrameAt:
    """A source with the address of a function's canonical frame."""

    trust = None

    def __init__(self, cfa: RegisterOffset) -> None:
        self.cfa = cfa

    def rule_for(self, _lookup: Svma, /, *, interrupted: bool) -> UnwindRule:
        """See :meth:`RuleSource.rule_for`."""
        del interrupted
        return UnwindRule(self.cfa, link_register_rule(Arch.ARM64).return_address)


def darwin_arm64() -> dict[int | str, str]:
    """Return members of the saved state by register."""
    state = "struct __darwin_mcontext64, __ss."
    named = {29: f"{state}__fp", 30: f"{state}__lr", 31: f"{state}__sp", "pc": f"{state}__pc"}
    return {number: f"{state}__x[{number}]" for number in range(29)} | named


def test_darwin_arm64():
    """The frame that xnu builds: siginfo, ucontext and mcontext at the trampoline's entry."""
    target = "aarch64-apple-macos13"
    members = darwin_arm64()
    uc, pointer = offsets(target, FRAME, "struct frame, uc", "ucontext_t, uc_mcontext")
    found = offsets(target, "", *members.values())
    context = 0x200
    saved = {name: context + offset for name, offset in zip(members, found, strict=True)}
    rules = DarwinSignalRules(
        Code(b""), Arch.ARM64, range(CODE, CODE + 100), [FrameAt(RegisterOffset(31, 32))]
    )
    rule = rules.rule_for(Svma(CODE + 50), interrupted=False)
    # The trampoline has taken 32 bytes of its own.
    check(rule, STACK - 32, saved, 8, Arch.ARM64, {uc + pointer: STACK + context})
    assert rules.rule_for(Svma(CODE + 100), interrupted=True) is None


def test_darwin_x86_64():
    """The ucontext is an argument, and in rbx after an instruction has moved it there."""
    target = "x86_64-apple-macos13"
    state = "struct __darwin_mcontext64, __ss.__"
    names = [
        "rax",
        "rdx",
        "rcx",
        "rbx",
        "rsi",
        "rdi",
        "rbp",
        "rsp",
        "r8",
        "r9",
        "r10",
        "r11",
        "r12",
        "r13",
        "r14",
        "r15",
    ]
    members = {number: state + name for number, name in enumerate(names)} | {"pc": f"{state}rip"}
    found = offsets(target, "", *members.values())
    (pointer,) = offsets(target, "", "ucontext_t, uc_mcontext")
    context, ucontext = 0x200, 0x100
    saved = {name: context + offset for name, offset in zip(members, found, strict=True)}
    # push rbp; mov rbp, rsp; mov rbx, r8; call rax
    code = Code(bytes.fromhex("554889e5 4c89c3 ffd0 0f0b".replace(" ", "")))
    rules = DarwinSignalRules(code, Arch.X86_64, range(CODE, CODE + 11), [])
    for at, register in ((0, 8), (4, 8), (7, 3), (8, 3)):
        rule = rules.rule_for(Svma(CODE + at), interrupted=at != 8)
        memory = place(
            {offset: 0x4000_0000 + offset for offset in saved.values()}
            | {ucontext + pointer: STACK + context},
            8,
        )
        registers = RegisterSet.of(
            Arch.X86_64, pc=0, sp=STACK, general={register: STACK + ucontext}
        )
        assert rule is not None
        caller = step(rule, registers, memory, PacMask())
        assert isinstance(caller, RegisterSet)
        assert caller.pc == 0x4000_0000 + saved["pc"]
        for number in range(16):
            assert caller.get(number) == 0x4000_0000 + saved[number]


@pytest.mark.parametrize(
    ("target", "arch"), [("armv7-apple-ios9", Arch.ARMV7), ("i386-apple-macos10.9", Arch.I386)]
)
def test_darwin_32_bits(target: str, arch: Arch):
    """A pointer to the ucontext: on top of the stack on arm, the fifth argument on i386."""
    state = "struct __darwin_mcontext32, __ss.__"
    if arch is Arch.I386:
        names = ["eax", "ecx", "edx", "ebx", "esp", "ebp", "esi", "edi"]
        members = {number: state + name for number, name in enumerate(names)}
        members["pc"] = f"{state}eip"
        argument = 16
    else:
        members = {number: f"{state}r[{number}]" for number in range(13)}
        members |= {13: f"{state}sp", 14: f"{state}lr", "pc": f"{state}pc"}
        argument = 0
    found = offsets(target, "", *members.values())
    (pointer,) = offsets(target, "", "ucontext_t, uc_mcontext")
    context, ucontext = 0x200, 0x100
    saved = {name: context + offset for name, offset in zip(members, found, strict=True)}
    sp = arch.registers.sp
    rules = DarwinSignalRules(
        Code(b""), arch, range(CODE, CODE + 100), [FrameAt(RegisterOffset(sp, 8))]
    )
    rule = rules.rule_for(Svma(CODE + 50), interrupted=False)
    extra = {argument: STACK + ucontext, ucontext + pointer: STACK + context}
    check(rule, STACK - 8, saved, 4, arch, extra)
