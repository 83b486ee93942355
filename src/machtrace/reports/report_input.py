"""What reports come by, and what is said where there are none."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from machtrace.errors import FileAccessError
from machtrace.reports.packed_inputs import InputLimits, ReportInput, read_within, unpacked


def none_found(what: str, given: str) -> str:
    """A line for where ``given``, what the user named, has nothing: ``what`` says of what."""
    return f"{what} in {given}; give reports, or folders or archives that have some"


def standard_input() -> Iterator[ReportInput]:
    """The file that is piped in, or the files that are packed in it. Raises nothing."""
    name, limits = "standard input", InputLimits()
    try:
        data = read_within(sys.stdin.buffer, limits.file_bytes)
    except (AttributeError, OSError, ValueError):  # it was closed
        error = FileAccessError(name, "cannot be read")
        error.remedy = "pipe a report into it, or give the names of files"
        yield ReportInput(name, error, is_named=True)
        return
    if len(data) > limits.file_bytes:
        error = FileAccessError(name, f"larger than {limits.file_bytes} bytes")
        yield ReportInput(name, error, is_named=True)
        return
    yield from unpacked(name, data, limits, is_named=True)
