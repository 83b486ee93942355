"""Crash reports of captures: what a core states is in the report, and in its files."""

from __future__ import annotations

from dataclasses import replace

import pytest

from machtrace.errors import FormatError
from machtrace.model.arch import Arch
from machtrace.model.cause import linux_cause, mach_cause
from machtrace.model.report import (
    Adjustment,
    Report,
    ReportedRegister,
    ReportedRegisters,
    ReportedTermination,
    ReportedThread,
    ReportKind,
)
from machtrace.model.snapshot import LinuxFacts
from machtrace.model.stack import Gap
from machtrace.pipeline.backtraces import build_capture
from machtrace.reports.files import read_reports
from machtrace.reports.stacks.captures import capture_of
from machtrace.reports.stacks.crash_reports import crash_report_of
from machtrace.reports.writers import write_reports
from tests.support.writers.processes import synthetic_process

ACCESS = mach_cause(1, (1, 0x10), Arch.ARM64)


def capture_with(cause, linux=None):
    """Return a capture of a process whose second thread crashed."""
    snapshot = synthetic_process(Arch.ARM64, threads=3, images=3, depth=5).snapshot
    first, second, third = snapshot.threads
    second = replace(
        second,
        info=replace(second.info, crashed=True, cause=cause),
        other_registers=(("cpsr", 0x6000_0000), ("far", 0x10), ("esr", 0x9200_0046)),
    )
    return build_capture(replace(snapshot, threads=(first, second, third), linux=linux))


def written(report, form, tmp_path):
    """Return the report that is read from the file that ``report`` is written to."""
    path = tmp_path / "written"
    path.write_bytes(write_reports([report], form))
    (read,) = read_reports(path)
    return read


def test_frames_registers_and_images_are_the_capture_s():
    capture = capture_with(ACCESS)
    report = crash_report_of(capture)
    assert [len(thread.frames) for thread in report.threads] == [
        len(stack.frames) for stack in capture.stacks
    ]
    for thread, stack in zip(report.threads, capture.stacks, strict=True):
        assert [frame.address for frame in thread.frames] == [
            frame.address.address for frame in stack.frames
        ]
        assert [frame.adjustment for frame in thread.frames] == [
            Adjustment.EXACT,
            *[Adjustment.RETURN] * (len(stack.frames) - 1),
        ]
    crashed = report.crashed_thread
    assert crashed.index == 1
    assert [(name, value) for name, value, *_ in crashed.registers.registers] == [
        *capture.stacks[1].registers
    ]
    assert [thread.registers is None for thread in report.threads] == [True, False, True]
    assert [image.uuid for image in report.images] == [image.uuid for image in capture.images]
    again = capture_of(report)
    assert [[frame.symbol and frame.symbol.name for frame in s.frames] for s in again.stacks] == [
        [frame.symbol and frame.symbol.name for frame in s.frames] for s in capture.stacks
    ]
    assert again.stacks[1].cause.lldb_text == ACCESS.lldb_text


@pytest.mark.parametrize("form", ["json", "ips", "apple"])
def test_a_mach_exception_is_in_every_file(form, tmp_path):
    report = crash_report_of(capture_with(ACCESS))
    read = written(report, form, tmp_path)
    exception = read.exception
    assert (exception.type, exception.signal) == ("EXC_BAD_ACCESS", "SIGSEGV")
    assert exception.raw_codes == (1, 0x10)
    assert exception.subtype == "KERN_INVALID_ADDRESS at 0x0000000000000010"
    assert exception.address == 0x10
    assert read.termination == ReportedTermination(
        namespace="SIGNAL", code=11, indicator="Segmentation fault"
    )
    assert read.crashed_thread.index == 1
    assert [frame.address for frame in read.threads[2].frames] == [
        frame.address for frame in report.threads[2].frames
    ]
    registers = {name: value for name, value, *_ in read.crashed_thread.registers.registers}
    assert (registers["far"], registers["esr"]) == (0x10, 0x9200_0046)


def test_apple_s_text_has_apple_s_lines():
    text = write_reports([crash_report_of(capture_with(ACCESS))], "apple").decode()
    for line in (
        "Code Type:           ARM-64 (Native)",
        "Exception Type:  EXC_BAD_ACCESS (SIGSEGV)",
        "Exception Subtype: KERN_INVALID_ADDRESS at 0x0000000000000010",
        "Exception Codes: 0x0000000000000001, 0x0000000000000010",
        "Termination Reason: SIGNAL 11 Segmentation fault",
        "Triggered by Thread:  1",
        "Thread 1 crashed with ARM Thread State (64-bit):",
        "  far: 0x0000000000000010  esr: 0x92000046",
    ):
        assert line in [shown.rstrip() for shown in text.splitlines()] or f" {line}" in text


@pytest.mark.parametrize(
    ("register", "state"),
    [
        ("rip", "X86 Thread State (64-bit)"),
        ("eip", "X86 Thread State (32-bit)"),
        ("x0", "ARM Thread State (64-bit)"),
        ("r0", "ARM Thread State (32-bit)"),
    ],
)
def test_registers_without_a_flavor_are_those_of_their_names(register, state):
    registers = ReportedRegisters(registers=(ReportedRegister(register, 4096),))
    thread = ReportedThread(index=0, crashed=True, registers=registers)
    report = Report(kind=ReportKind.SWIFT, threads=(thread,))
    assert f"Thread 0 crashed with {state}:" in write_reports([report], "apple").decode()


def test_a_linux_signal_has_no_exception_of_mach(tmp_path):
    linux = LinuxFacts(name="program", parent=7, user=1000, signal=11)
    report = crash_report_of(capture_with(linux_cause(11, 1, 0x12345678), linux))
    text = write_reports([report], "apple").decode().splitlines()
    assert "Exception Type:  SIGSEGV" in text
    assert "Exception Codes: SEGV_MAPERR at 0x0000000012345678" in text
    assert "Exception Message: address not mapped to object" in text
    assert "OS Version:          Linux" in text
    assert (report.process.parent_pid, report.process.user_id) == (7, 1000)
    read = written(report, "json", tmp_path)
    assert read.exception == report.exception
    lldb = write_reports([read], "lldb").decode()
    assert (
        "stop reason = signal SIGSEGV: address not mapped to object (fault address: 0x12345678)"
        in lldb
    )


def test_the_sender_of_a_signal_is_who_ended_the_process():
    report = crash_report_of(capture_with(linux_cause(6, -6, 0, 42, 1000)))
    assert report.exception.codes == "SI_TKILL"
    assert report.termination.by_pid == 42


def test_omitted_frames_are_a_frame_without_an_address():
    capture = capture_with(None)
    stack = capture.stacks[0]
    deep = replace(stack, gap=Gap(after=2, count=1000))
    report = crash_report_of(replace(capture, stacks=(deep,)))
    frames = report.threads[0].frames
    assert len(frames) == len(stack.frames) + 1
    assert (frames[2].address, frames[2].symbol.name) == (None, "... 1,000 frames not shown")
    assert report.exception is None


def test_a_process_without_a_crash_is_a_report_of_threads():
    snapshot = synthetic_process(Arch.X86_64, threads=2, images=2, depth=3).snapshot
    report = crash_report_of(build_capture(snapshot))
    assert (report.exception, report.termination, report.crashed_thread) == (None, None, None)
    text = write_reports([report], "apple").decode()
    assert "Exception Type" not in text
    assert [image.load_address for image in report.images] == [
        image.load_address for image in snapshot.images
    ]


@pytest.mark.parametrize("arch", [Arch.ARM64, Arch.X86_64])
def test_a_core_among_reports_is_named_with_the_command_for_it(tmp_path, arch):
    path = tmp_path / "process.core"
    path.write_bytes(synthetic_process(arch, threads=1, images=1, depth=2).core())
    with pytest.raises(FormatError, match="a core, not a report") as raised:
        read_reports(path)
    assert "machtrace backtrace FILE --format apple" in raised.value.remedy
