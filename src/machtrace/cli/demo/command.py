"""``machtrace demo``: the main job, seen on any machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from machtrace.model.capture import Capture


def demo() -> None:
    """Show the threads of an emulated iOS-like process, then of a real one that is started here."""
    _say(
        "An arm64 Mach-O process in an emulator, each thread stopped where stack walkers go wrong."
    )
    _show(_capture("emulated:demo"))
    if sys.platform != "linux":
        _say("\nA real process is shown on Linux, where it can be captured from outside.")
        return
    with _threaded_process() as pid:
        _say("\nA real process with five threads, started for this and running on.")
        _show(_capture(pid))


def _capture(spec: int | str) -> Capture:
    from machtrace.pipeline.backtraces import build_capture, snapshot

    return build_capture(snapshot(spec))


def _show(report: Capture) -> None:
    from machtrace.cli.console import output, wants_colour
    from machtrace.render import text

    with output() as sink:
        text.write(report, sink, colour=wants_colour(sys.stdout))


def _say(line: str) -> None:
    from machtrace.cli.console import output

    with output() as sink:
        sink.write(f"{line}\n\n")


@contextmanager
def _threaded_process() -> Iterator[int]:
    """A process whose threads are all where they are going; it is ended on leaving."""
    command = [sys.executable, "-m", "machtrace.cli.demo.threaded_process"]
    with subprocess.Popen(  # noqa: S603 - our own interpreter and module
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            if process.stdout is not None:
                process.stdout.readline()
            yield process.pid
        finally:
            process.kill()
