"""``machtrace demo``: call stacks on any machine, without a target."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from machtrace.model.capture import Capture


@click.command()
def demo() -> None:
    """Show the threads of an emulated iOS-like process, then of a real one.

    The real process is started for this; on systems other than Linux it is left out.
    """
    _print(
        "An arm64 Mach-O process in an emulator, each thread stopped where stack walkers go wrong."
    )
    _show(_capture("emulated:demo"))
    if sys.platform != "linux":
        _print("\nA real process is shown on Linux only, where its parent may capture it.")
        return
    with _threaded_process() as pid:
        _print("\nA real process with five threads, started for this; it keeps running.")
        _show(_capture(pid))


def _capture(spec: int | str) -> Capture:
    from machtrace.pipeline.backtraces import build_capture, snapshot

    return build_capture(snapshot(spec))


def _show(report: Capture) -> None:
    from machtrace.cli.console import output, wants_colour
    from machtrace.render import text

    with output() as sink:
        text.write(report, sink, colour=wants_colour(sys.stdout))


def _print(line: str) -> None:
    from machtrace.cli.console import output

    with output() as sink:
        sink.write(f"{line}\n\n")


@contextmanager
def _threaded_process() -> Iterator[int]:
    """Start a process whose threads have reached their functions; kill it at the end."""
    command = [sys.executable, "-m", "machtrace.cli.threaded_process"]
    with subprocess.Popen(  # noqa: S603 - our own interpreter and module
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            if process.stdout is not None:
                process.stdout.readline()
            yield process.pid
        finally:
            process.kill()
