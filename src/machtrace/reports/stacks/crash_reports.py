"""A capture as crash reports have it: Apple's words, who ended the process, its registers."""

from __future__ import annotations

from dataclasses import replace

from machtrace.model.arch import Arch
from machtrace.model.capture import Capture
from machtrace.model.cause import Cause
from machtrace.model.report import (
    Report,
    ReportedFrame,
    ReportedSymbol,
    ReportedSystem,
    ReportedTermination,
    ReportedThread,
)
from machtrace.model.symbol import CallStack
from machtrace.model.text import counted
from machtrace.reports.stacks.captures import GAP
from machtrace.reports.stacks.reported import report_of_capture

_CODE_TYPES = {
    Arch.X86_64: "X86-64",
    Arch.X86_64H: "X86-64",
    Arch.I386: "X86",
    Arch.ARM64: "ARM-64",
    Arch.ARM64E: "ARM-64",
}
"""Apple's names; others of 32-bit arm are ``ARM``."""
_SIGNAL = "SIGNAL"
"""Apple's namespace of terminations by signals."""
_SIGNAL_WORDS = {
    "SIGQUIT": "Quit",
    "SIGILL": "Illegal instruction",
    "SIGTRAP": "Trace/BPT trap",
    "SIGABRT": "Abort trap",
    "SIGBUS": "Bus error",
    "SIGFPE": "Floating point exception",
    "SIGSEGV": "Segmentation fault",
    "SIGSYS": "Bad system call",
}
"""The indicators of Apple's reports."""


def crash_report_of(capture: Capture) -> Report:
    """Return the report of a capture for formats of crash reports."""
    capture = capture.of_each_thread
    report = report_of_capture(capture)
    linux = capture.linux
    crashed = next((stack for stack in capture.stacks if stack.thread.crashed), None)
    cause = None if crashed is None else crashed.cause
    return replace(
        report,
        process=replace(
            report.process,
            code_type=_CODE_TYPES.get(capture.process.arch, "ARM"),
            parent_pid=None if linux is None or not linux.parent else linux.parent,
            user_id=None if linux is None or not linux.name else linux.user,
        ),
        system=ReportedSystem(os_name=None if linux is None else "Linux"),
        termination=None if cause is None else _termination(cause),
        threads=tuple(
            _thread(thread, number, stack, capture.process.arch)
            for number, (thread, stack) in enumerate(
                zip(report.threads, capture.stacks, strict=True)
            )
        ),
    )


def _termination(cause: Cause) -> ReportedTermination | None:
    if cause.signal_number is None:
        return None
    return ReportedTermination(
        namespace=_SIGNAL,
        code=cause.signal_number,
        indicator=_SIGNAL_WORDS.get(cause.signal or ""),
        by_pid=cause.sender,
    )


def _thread(thread: ReportedThread, number: int, stack: CallStack, arch: Arch) -> ReportedThread:
    """Return the thread with consecutive numbers, and with the crashed one's registers alone."""
    registers = thread.registers
    if registers is not None:
        registers = replace(registers, flavor=_flavor(arch)) if thread.crashed else None
    frames = thread.frames
    if stack.gap is not None:
        after = sum(1 + len(frame.inlined) for frame in stack.frames[: stack.gap.after])
        text = f"... {counted(stack.gap.count, 'frame')} not shown"
        omitted = ReportedFrame(None, None, None, symbol=ReportedSymbol(text, None))
        frames = (*frames[:after], omitted, *frames[after:])
    details = {key: value for key, value in thread.details.items() if key != GAP}
    return replace(thread, index=number, registers=registers, frames=frames, details=details)


def _flavor(arch: Arch) -> str:
    if arch.is_arm64:
        return "ARM_THREAD_STATE64"
    if arch.is_arm:
        return "ARM_THREAD_STATE"
    return "x86_THREAD_STATE32" if arch is Arch.I386 else "x86_THREAD_STATE"
