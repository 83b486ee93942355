"""Stacks and profiles in any format, as the commands that took them write them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from io import StringIO

from machtrace.model.arch import Arch
from machtrace.model.capture import Capture
from machtrace.model.image import ImageList
from machtrace.model.profile import Profile
from machtrace.model.snapshot import ProcessInfo
from machtrace.model.symbol import CallStack
from machtrace.reports.stacks.crash_reports import crash_report_of
from machtrace.reports.stacks.reported import report_of_capture, report_of_profile
from machtrace.reports.writers import as_shown, encoded, report_format, write_reports

_OF_PROFILES = {
    "text": "sample_text",
    "sample": "sample_text",
    "json": "profile_json",
    "profile-json": "profile_json",
    "folded": "folded",
    "speedscope": "speedscope",
    "firefox": "firefox",
}
_OF_STACKS = {
    "text": "text",
    "json": "json_document",
    "stacks-json": "json_document",
    "lldb": "lldb",
    "nsthread": "nsthread",
    "bs": "bs",
}
"""Formats of ``sample`` and ``backtrace`` by name, with their modules in machtrace.render."""
_OF_CRASHES = frozenset({"apple", "ips", "html", "kscrash", "plcrash"})


def stacks_bytes(stacks: Profile | Capture, form: str) -> bytes:
    """Return a profile or stacks in a format, as a file's bytes.

    ``text`` and ``json`` are those of the command that takes them; other formats are written from
    a report.

    Raises:
        ArgumentError: the format is unknown, or has no place for a profile.
    """
    report_format(form)
    modules = _OF_PROFILES if isinstance(stacks, Profile) else _OF_STACKS
    if form == "pprof" and isinstance(stacks, Profile):
        data: bytes = import_module("machtrace.render.pprof").data(stacks)
        return data
    if form in modules:
        write: Callable[[Profile | Capture, StringIO], None]
        write = import_module(f"machtrace.render.{modules[form]}").write
        sink = StringIO()
        write(stacks, sink)
        return encoded(sink.getvalue())
    if isinstance(stacks, Profile):
        report = report_of_profile(stacks)
    elif form in _OF_CRASHES:
        report = crash_report_of(stacks)
    else:
        report = report_of_capture(stacks)
    return write_reports(as_shown([report], report_format(form)), form)


def capture_of_stacks(stacks: list[CallStack]) -> Capture:
    """Return stacks without their process as a capture: its images are those of the frames."""
    frames = [frame for stack in stacks for frame in stack.frames]
    images = ImageList(dict.fromkeys(frame.image for frame in frames if frame.image is not None))
    arch = next((image.arch for image in images), None) or _NATIVE
    process = ProcessInfo(pid=None, path="", arch=arch)
    return Capture(process=process, images=images, stacks=tuple(stacks))


_NATIVE = Arch.X86_64
"""The architecture of stacks without images: only the width of addresses depends on it."""
