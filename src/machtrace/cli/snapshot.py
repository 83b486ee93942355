"""``machtrace snapshot``: a target's threads, images and memory in a small core."""

from __future__ import annotations

import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from machtrace.cli.options import Spec
from machtrace.model.options import DEFAULT_STACK_LIMIT
from machtrace.model.snapshot import Snapshot

if TYPE_CHECKING:  # it brings what walks and names, which the command line's help can do without
    from machtrace.pipeline.snapshot_writer import SavedCore


class SnapshotOutput(StrEnum):
    """How to print what was saved."""

    TEXT = "text"
    JSON = "json"


class Images(StrEnum):
    """What of images is saved."""

    USED = "used"
    NONE = "none"


def snapshot(
    spec: Spec,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to write the core; - is standard output.",
        ),
    ],
    thread: Annotated[
        str, typer.Option(help="Which threads: all, main, a name, an id, or #N as lldb counts.")
    ] = "all",
    stack_limit: Annotated[
        int, typer.Option(min=4096, metavar="BYTES", help="Bytes copied of each stack at most.")
    ] = DEFAULT_STACK_LIMIT,
    images: Annotated[
        Images,
        typer.Option(
            help="Save what walking takes of images too, or leave it to the images' files."
        ),
    ] = Images.USED,
    format: Annotated[  # noqa: A002 - the option's name
        SnapshotOutput, typer.Option(help="How to print what was saved.")
    ] = SnapshotOutput.TEXT,
) -> None:
    """Save the threads of a process, a core or an emulated program as a small core file.

    It is a Mach-O core, or an ELF core of a Linux process: machtrace reads it back, and lldb or
    gdb opens it. A file of that name is replaced. The status is 1 where a part of the process
    could not be read; the rest is saved. Where the core goes to standard output, what was saved is
    told on standard error.
    """
    from machtrace.cli import console
    from machtrace.pipeline.backtraces import snapshot as take
    from machtrace.pipeline.snapshot_writer import save_snapshot, write_snapshot

    if str(output) == "-":
        with console.binary_output() as core:
            copied = take(spec, threads=thread, stack_limit=stack_limit)
            saved = replace(write_snapshot(copied, core, images=images.value), path=_STDOUT)
        sys.stderr.write(_told(saved, copied, format))
    else:
        copied = take(spec, threads=thread, stack_limit=stack_limit)
        saved = save_snapshot(copied, output, images=images.value)
        with console.output() as sink:
            sink.write(_told(saved, copied, format))
    if images is Images.NONE:
        console.warn("walks of it need its images' files: give them to backtrace with --search")
    if copied.problems:
        console.print_errors([problem.error for problem in copied.problems])
        raise typer.Exit(1)


_STDOUT = "standard output"


def _told(saved: SavedCore, copied: Snapshot, form: SnapshotOutput) -> str:
    if form is SnapshotOutput.TEXT:
        return _line(saved, copied)
    import json

    return json.dumps(_document(saved, copied), indent=2) + "\n"


def _line(saved: SavedCore, copied: Snapshot) -> str:
    from machtrace.model.text import printable

    process = copied.process
    pid = "" if process.pid is None else f" [{process.pid}]"
    parts = (
        f"{printable(process.name) or 'process'}{pid}",
        f"{len(copied.threads)} thread{'s' * (len(copied.threads) != 1)}",
        f"{len(copied.images)} image{'s' * (len(copied.images) != 1)}",
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
