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
    SPEEDSCOPE = "speedscope"
    FIREFOX = "firefox"
    PPROF = "pprof"
    JSON = "json"


def check_output(path: Path | None, form: ProfileFormat) -> None:
    """See, before anything is sampled, that the profile could be written there.

    Raises:
        FileAccessError: it could not.
    """
    if path is None or str(path) == _STDOUT:
        if form is ProfileFormat.PPROF:
            with console.binary_output():
                return  # a terminal is refused
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
    to_stdout = path is None or str(path) == _STDOUT
    if to_stdout and form is ProfileFormat.PPROF:
        with console.binary_output() as bytes_sink:
            bytes_sink.write(_written(profile, form, merge_threads=merge_threads))
        return
    written = _written(profile, form, merge_threads=merge_threads)
    if to_stdout:
        with console.output() as sink:
            sink.write(written.decode())
        return
    from machtrace.reports.atomic_write import replace_file

    replace_file(str(path), [written])


def _written(profile: Profile, form: ProfileFormat, *, merge_threads: bool) -> bytes:
    if form is ProfileFormat.PPROF:
        from machtrace.render import pprof

        return pprof.data(profile)
    text = io.StringIO()
    _writer(form, merge_threads=merge_threads)(profile, text)
    return text.getvalue().encode("utf-8", "backslashreplace")


def _writer(form: ProfileFormat, *, merge_threads: bool) -> Callable[[Profile, TextIO], None]:
    """What writes text in that format; modules are loaded where they are needed."""
    from functools import partial

    match form:
        case ProfileFormat.FOLDED:
            from machtrace.render import folded

            return partial(folded.write, merge_threads=merge_threads)
        case ProfileFormat.SPEEDSCOPE:
            from machtrace.render import speedscope

            return speedscope.write
        case ProfileFormat.FIREFOX:
            from machtrace.render import firefox

            return firefox.write
        case ProfileFormat.JSON:
            from machtrace.render import profile_json

            return profile_json.write
        case _:
            from machtrace.render import sample_text

            return partial(sample_text.write, merge_threads=merge_threads)
