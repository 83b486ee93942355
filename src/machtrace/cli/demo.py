"""``machtrace demo``: call stacks on any machine, without a target."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from machtrace.cli.console import warn
from machtrace.errors import MissingExtraError
from machtrace.model.capture import Capture
from machtrace.model.options import NameOptions, WalkOptions


@click.command()
@click.option("--all", "every", is_flag=True, help="Show every thread of both, in full.")
def demo(*, every: bool) -> None:
    """Show the threads of an emulated iOS-like process, then of a real one.

    The real process is started for this; on systems other than Linux it is left out.
    """
    try:
        _show_emulated(every=every)
    except MissingExtraError as error:
        if sys.platform != "linux":
            raise
        warn(f"the emulated process is left out: {error}", hint=error.remedy)
    if sys.platform != "linux":
        _print("\nA real process is shown on Linux only, where its parent may capture it.")
    else:
        with threaded_process() as pid:
            if every:
                _print(_OF_REAL)
                _show(_capture(pid))
            else:
                walk = WalkOptions(limit=_PYTHON_FRAMES)
                heading = f"{_OF_REAL}{_OF_PYTHON}"
                _show_stacks(pid, _REAL_THREAD, walk, heading=heading, python=True)
    if not every:
        _print(_TRY.format(machtrace=command_name(sys.argv[0])))


_OF_REAL = "\nA real process of five threads, started for this; it keeps running."
_OF_PYTHON = " Python functions\n(--python) are listed with the frame of C that runs them."
_TRY = """
Now with a process of your own; machtrace demo --all shows every thread of these:

  {machtrace} backtrace PID    its stacks; --explain shows why each frame is right
  {machtrace} sample PID       where it spends its time
  {machtrace} doctor           what can be captured on this machine, and how to enable more"""


def command_name(program: str) -> str:
    """Return what to type for machtrace, if this one runs as ``program``: a name, else a path."""
    if shutil.which("machtrace") is not None:
        return "machtrace"
    if Path(program).name == "__main__.py":
        return f"{sys.executable} -m machtrace"
    return program


_WALK = WalkOptions()
_REAL_THREAD = "compressor"
_COLUMNS = 100
_PYTHON_FRAMES = 8


def _show_emulated(*, every: bool) -> None:
    if every:
        captured = _capture("emulated:demo")
        _print("An arm64 Mach-O process in an emulator, each thread stopped where unwinders fail.")
        _show(captured)
        return
    _show_stacks(
        "emulated:demo",
        "com.machtrace.prologue",
        heading="An arm64 Mach-O program in an emulator. This thread stopped where a function\n"
        "has not saved its caller yet: by frame pointers alone, decode_all would be missing.",
    )
    _show_stacks(
        "emulated:demo",
        "com.machtrace.async",
        heading="\nA Swift task has two stacks: the async functions that wait for one another, and"
        " the machine's\nframes that run the innermost.",
    )


def _show_stacks(
    spec: int | str, thread: str, walk: WalkOptions = _WALK, *, heading: str, python: bool = False
) -> None:
    """Capture a thread, then print a heading and the stack, its lines cut to a page's width."""
    from machtrace.cli.console import output
    from machtrace.pipeline.backtraces import build_capture, capture_snapshot

    names = NameOptions(lines=False, python=python)
    copied, runs = capture_snapshot(spec, thread, walk, names)
    with output() as sink:
        sink.write(f"{heading}\n\n")
        for stack in build_capture(copied, walk, names, python=runs).stacks:
            for line in str(stack).splitlines():
                sink.write(line if len(line) <= _COLUMNS else f"{line[: _COLUMNS - 1]}…")
                sink.write("\n")


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
def threaded_process() -> Iterator[int]:
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
