"""``machtrace snapshot``: a target's threads, images and memory in a small core."""

from __future__ import annotations

import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from machtrace.cli import console
from machtrace.cli.options import (
    STDOUT,
    DocumentFormat,
    complete_files,
    enum_option,
    format_option,
    parse_path,
    quiet_option,
    stack_limit_option,
    target_argument,
    thread_option,
)
from machtrace.model.snapshot import Snapshot
from machtrace.model.text import counted

if TYPE_CHECKING:  # its package is imported when the command runs
    from machtrace.pipeline.snapshot_writer import SavedCore


class Images(StrEnum):
    """Which memory of images is saved."""

    USED = "used"
    NONE = "none"


@click.command()
@target_argument()
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    type=parse_path,
    shell_complete=complete_files,
    required=True,
    help="Core file to write; '-' for stdout.",
)
@thread_option
@stack_limit_option
@enum_option(
    "--images",
    members=Images,
    help="used: save the image memory that unwinding reads; none: rely on the images' files.",
)
@format_option()
@quiet_option
def snapshot(
    *,
    spec: str,
    output: Path,
    thread: str | tuple[str, ...],
    stack_limit: int,
    images: Images,
    form: DocumentFormat,
) -> int:
    """Save the threads of a target as a small core file.

    SPEC is {SPECS}.

    The file is a Mach-O core, or an ELF core for a Linux process. machtrace reads it back; lldb and
    gdb open it. An existing file is replaced. The exit status is 1 if a part of the process could
    not be read; the rest is saved. If the core goes to stdout, the summary goes to stderr.
    """
    from machtrace.pipeline.backtraces import snapshot as take
    from machtrace.pipeline.snapshot_writer import save_snapshot, write_snapshot

    if str(output) == STDOUT:
        with console.binary_output() as core:
            copied = take(spec, threads=thread, stack_limit=stack_limit)
            saved = replace(write_snapshot(copied, core, images=images.value), path=_STDOUT)
        sys.stderr.write(_summary(saved, copied, form))
    else:
        copied = take(spec, threads=thread, stack_limit=stack_limit)
        saved = save_snapshot(copied, output, images=images.value)
        with console.output() as sink:
            sink.write(_summary(saved, copied, form))
    if images is Images.NONE:
        console.warn(
            "the core holds no images: unwinding it needs their files",
            hint="pass them to machtrace backtrace with --search",
        )
    console.print_errors([problem.error for problem in copied.problems])
    return console.status_of(copied)


_STDOUT = "standard output"


def _summary(saved: SavedCore, copied: Snapshot, form: DocumentFormat) -> str:
    if form is DocumentFormat.TEXT:
        return _line(saved, copied)
    import json

    return json.dumps(_document(saved, copied), indent=2) + "\n"


def _line(saved: SavedCore, copied: Snapshot) -> str:
    from machtrace.model.text import printable

    process = copied.process
    pid = "" if process.pid is None else f" [{process.pid}]"
    parts = (
        f"{printable(process.name) or 'process'}{pid}",
        counted(len(copied.threads), "thread"),
        counted(len(copied.images), "image"),
        f"{saved.size:,} bytes",
    )
    return f"{printable(saved.path)}: {', '.join(parts)}\n"


def _document(saved: SavedCore, copied: Snapshot) -> dict[str, Any]:
    from machtrace.model.text import encodable

    return {
        "schema": 1,
        "path": encodable(saved.path),
        "format": saved.format.value,
        "size": saved.size,
        "process": {
            "pid": copied.process.pid,
            "name": encodable(copied.process.name),
            "path": encodable(copied.process.path),
            "arch": copied.process.arch.value,
        },
        "threads": [thread.info.id for thread in copied.threads],
        "images": len(copied.images),
        "problems": [
            {"thread": problem.thread, "error": str(problem.error)} for problem in copied.problems
        ],
    }
