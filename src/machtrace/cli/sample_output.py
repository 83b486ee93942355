"""Where a profile is written to, and in which format."""

from __future__ import annotations

import io
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TextIO

from machtrace.cli import console
from machtrace.errors import FileAccessError
from machtrace.model.profile import Profile

_STDOUT = "-"


class ProfileFormat(StrEnum):
    """How a profile can be written."""

    TEXT = "text"
    FOLDED = "folded"


def check_output(path: Path | None) -> None:
    """See, before anything is sampled, that a file could be written there.

    Raises:
        FileAccessError: it could not.
    """
    if path is None or str(path) == _STDOUT:
        return
    why = "is a directory" if path.is_dir() else ""
    if not path.parent.is_dir():
        why = "no such directory"
    if why:
        refused = FileAccessError(str(path), why)
        refused.remedy = "give the name of a file in a folder that can be written to"
        raise refused


def write_profile(
    profile: Profile, form: ProfileFormat, path: Path | None, *, merge_threads: bool
) -> None:
    """Write ``profile`` to a file, as a whole or not at all, or to standard output.

    Raises:
        FileAccessError: it cannot be written.
    """
    text = io.StringIO()
    _writer(form, merge_threads=merge_threads)(profile, text)
    if path is None or str(path) == _STDOUT:
        with console.output() as sink:
            sink.write(text.getvalue())
    else:
        from machtrace.capture.file_replacement import replace_file

        replace_file(str(path), [text.getvalue().encode("utf-8", "backslashreplace")])


def _writer(form: ProfileFormat, *, merge_threads: bool) -> Callable[[Profile, TextIO], None]:
    from functools import partial

    from machtrace.report import folded, sample_text

    match form:
        case ProfileFormat.TEXT:
            return partial(sample_text.write, merge_threads=merge_threads)
        case ProfileFormat.FOLDED:
            return partial(folded.write, merge_threads=merge_threads)
