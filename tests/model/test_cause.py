"""Causes of stops in words, as they are printed and as lldb prints them."""

from __future__ import annotations

import pytest

from machtrace.model.arch import Arch
from machtrace.model.cause import Cause, linux_cause, mach_cause


@pytest.mark.parametrize(
    ("cause", "text", "lldb"),
    [
        (
            linux_cause(11, 1, 0x12345678),
            "SIGSEGV (SEGV_MAPERR) at 0x12345678: address not mapped to object",
            "signal SIGSEGV: address not mapped to object (fault address: 0x12345678)",
        ),
        (
            linux_cause(11, 0x80, 0),
            "SIGSEGV (SI_KERNEL): invalid address, not stated by the processor",
            "signal SIGSEGV: invalid address",
        ),
        (
            linux_cause(7, 2, 0x7000),
            "SIGBUS (BUS_ADRERR) at 0x7000: illegal address",
            "signal SIGBUS: illegal address",
        ),
        (
            linux_cause(8, 1, 0x4000),
            "SIGFPE (FPE_INTDIV) at 0x4000: integer divide by zero",
            "signal SIGFPE: integer divide by zero",
        ),
        (
            linux_cause(6, -6, 7, 7, 1000),
            "SIGABRT (SI_TKILL): sent by process 7 of user 1000",
            "signal SIGABRT",
        ),
        (linux_cause(11, 77, 0x99999), "SIGSEGV at 0x99999", "signal SIGSEGV"),
        (
            linux_cause(31, 1, 0x4000),
            "SIGSYS (SYS_SECCOMP): system call refused by seccomp",
            "signal SIGSYS",
        ),
        (linux_cause(11), "SIGSEGV", "signal SIGSEGV"),
        (linux_cause(40), "SIGRTMIN+6", "signal SIGRTMIN+6"),
        (linux_cause(70), "signal 70", "signal 70"),
        (
            mach_cause(1, (1, 0x10), Arch.ARM64),
            "EXC_BAD_ACCESS (SIGSEGV) at 0x10: KERN_INVALID_ADDRESS, near null",
            "EXC_BAD_ACCESS (code=1, address=0x10)",
        ),
        (
            mach_cause(1, (2, 0x100004000), Arch.ARM64),
            "EXC_BAD_ACCESS (SIGBUS) at 0x100004000: KERN_PROTECTION_FAILURE",
            "EXC_BAD_ACCESS (code=2, address=0x100004000)",
        ),
        (
            mach_cause(1, (13, 0), Arch.X86_64),
            "EXC_BAD_ACCESS (SIGSEGV): EXC_I386_GPFLT",
            "EXC_BAD_ACCESS (code=EXC_I386_GPFLT, address=0x0)",
        ),
        (
            mach_cause(6, (1, 0x100003F6C), Arch.ARM64E),
            "EXC_BREAKPOINT (SIGTRAP): EXC_ARM_BREAKPOINT",
            "EXC_BREAKPOINT (code=1, subcode=0x100003f6c)",
        ),
        (mach_cause(1, (), Arch.ARM64), "EXC_BAD_ACCESS", "EXC_BAD_ACCESS"),
        (
            mach_cause(2, (1, 0), Arch.X86_64),
            "EXC_BAD_INSTRUCTION (SIGILL): EXC_I386_INVOP",
            "EXC_BAD_INSTRUCTION (code=EXC_I386_INVOP, subcode=0x0)",
        ),
        (Cause(exception="EXC_BREAKPOINT"), "EXC_BREAKPOINT", "EXC_BREAKPOINT"),
    ],
)
def test_a_cause_is_printed_as_far_as_it_is_known(cause, text, lldb):
    assert str(cause) == text
    assert cause.lldb_text == lldb


@pytest.mark.parametrize(
    ("cause", "is_fatal"),
    [
        (linux_cause(11), True),
        (linux_cause(19), False),
        (linux_cause(15, 0, 0, 1, 0), False),
        (Cause(exception="EXC_BAD_ACCESS"), True),
    ],
)
def test_signals_that_write_a_core_are_fatal(cause, is_fatal):
    assert cause.is_fatal == is_fatal
