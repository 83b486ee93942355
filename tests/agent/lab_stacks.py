"""The agent's stacks at the first instruction of every function of the lab (``tests/lab``).

The walk is that of a hook: the return address, by the convention of the call, and then the frame
records, by ``native/walk/frame_records.c``. The truth is recorded by the emulator.

``python -m tests.agent.lab_stacks [arm64 ...]`` prints the calls and functions of each build, and
those whose stack differs. ``python -m tests.agent.lab_stacks hooks`` hooks 480 functions of the C
library at their first instruction, and prints the times, in microseconds.
"""

from __future__ import annotations

import ctypes
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from machtrace.errors import MemoryReadError
from machtrace.model.address import Avma
from tests.agent.build import PROJECT, compiler, run
from tests.agent.test_hooks import linked
from tests.support.emulated.run import EmulatedRun, Moment, main_stack
from tests.support.lab.builds import Build, builds, make
from tests.support.lab.policies import MASK

PROGRAMS = PROJECT / "tests/lab/programs"
ARCHITECTURES = ("arm64", "arm64e", "x86_64")
OPTIMISATIONS = ("-O0", "-O2")
FRAMES_MAX = 16384
WITHOUT_RECORD = {
    "frames": {"___chkstk_darwin", "_touch"},
    "pushes": {"_called", "_leaf", "_opaque"},
    "fibers": {"_fiber_start"},
    "stubs": {"_bind", "_work", "dyld_stub_binder"},
}
"""Functions whose stacks may differ, by program. All have a caller in assembly: one without a frame
pointer; one that has another value in its register; a switch of stacks, which is no call; and, on
x86-64, a linker stub that pushes arguments above the return address.
"""
EACH_FUNCTION = 200
"""Calls of a function that are compared."""


class _Stack(ctypes.Structure):
    _fields_ = (
        ("low", ctypes.c_uint64),
        ("high", ctypes.c_uint64),
        ("bytes", ctypes.c_char_p),
        ("code_bits", ctypes.c_uint64),
    )


class _Walk(ctypes.Structure):
    _fields_ = (("fp", ctypes.c_uint64), ("count", ctypes.c_size_t), ("end", ctypes.c_int))


def build_walk(folder: Path) -> ctypes.CDLL:
    """Return the walk along frame records."""
    output = folder / "frame_records.so"
    if not output.exists():
        options = ["-O2", "-std=c11", "-fPIC", "-shared", f"-I{PROJECT / 'native'}"]
        source = str(PROJECT / "native/walk/frame_records.c")
        subprocess.run([compiler(), *options, source, "-o", str(output)], check=True)
    return ctypes.CDLL(str(output))


@dataclass
class Outcome:
    """The calls of one build's functions."""

    build: Build
    functions: set[str] = field(default_factory=set)
    calls: Counter[str] = field(default_factory=Counter)
    """Compared ones, by function."""
    wrong: Counter[str] = field(default_factory=Counter)
    interrupted: int = 0
    """Calls below a frame that a signal interrupted, which are not compared."""
    deepest: int = 0
    examples: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    """Stacks and true stacks, by function."""


def stack_of(walk: ctypes.CDLL, moment: Moment, end: int) -> tuple[int, ...]:
    """Return the stack that a hook takes at a function's first instruction."""
    registers, memory = moment.registers, moment.memory
    sp = registers.sp
    assert sp is not None
    size = end - sp
    data = memory.read(Avma(sp), size)
    caller = registers.lr if registers.arch.is_arm64 else int.from_bytes(data[:8], "little")
    addresses = (ctypes.c_uint64 * FRAMES_MAX)()
    addresses[0] = (caller or 0) & MASK.bits
    stack = _Stack(sp, end, data, MASK.bits)
    state = _Walk(registers.fp or 0, 1, 0)
    walk.machtrace_frame_records(
        ctypes.byref(stack), ctypes.byref(state), addresses, ctypes.c_size_t(FRAMES_MAX)
    )
    return tuple(addresses[: state.count])


def end_of_stack(moment: Moment, main: range) -> int:
    """Return the end of the stack that a moment is on."""
    sp = moment.registers.sp
    assert sp is not None
    if sp in main:
        return main.stop
    end = sp
    try:
        while end - sp < 1 << 16:
            moment.memory.read(Avma(end), 8)
            end += 8
    except MemoryReadError:
        pass
    return end


def compare(build: Build, walk: ctypes.CDLL, folder: Path) -> Outcome:
    """Run a build, and compare the stack at each function's first instruction with the true one."""
    made = make(build, PROGRAMS, folder)
    outcome, conditions = Outcome(build), made.conditions
    starts = {start: name for name, start in made.symbols.items() if start in made.function_starts}
    main = main_stack(made.contents)

    def visit(moment: Moment) -> None:
        name = starts.get(moment.registers.pc)
        if name is None:
            return
        if any(frame.is_interrupted for frame in moment.callers):
            outcome.interrupted += 1
            return
        outcome.functions.add(name)
        if outcome.calls[name] >= EACH_FUNCTION:
            return
        outcome.calls[name] += 1
        truth = moment.addresses[1:]
        outcome.deepest = max(outcome.deepest, len(truth))
        actual = stack_of(walk, moment, end_of_stack(moment, main))
        if actual != truth:
            outcome.wrong[name] += 1
            outcome.examples.setdefault(name, (actual, truth))

    emulated = EmulatedRun(
        made.contents, conditions.patches, prepare=conditions.prepare, signals=conditions.signals
    )
    emulated.run(visit, limit=conditions.limit)
    return outcome


def outcomes(
    folder: Path, architectures: tuple[str, ...] = (), programs: tuple[str, ...] = ()
) -> Iterator[Outcome]:
    """Compare every program that is compiled with frame pointers, two ways each."""
    walk = build_walk(folder)
    for number, build in enumerate(
        builds(programs, architectures or ARCHITECTURES, OPTIMISATIONS, ["compact"])
    ):
        if build.program.name == "async":
            continue  # continuations are its stacks: tests/agent/test_darwin.py
        directory = folder / f"{number}-{build.architecture.name}-{build.program.name}"
        directory.mkdir()
        yield compare(build, walk, directory)


def c_library_functions() -> list[str]:
    """Return the names of functions that the C library exports; none if there is no such file."""
    folders = (f"/lib/{machine}-linux-gnu" for machine in ("x86_64", "aarch64"))
    path = next(
        (path for path in (Path(folder, "libc.so.6") for folder in folders) if path.exists()), None
    )
    if path is None:
        return []
    command = ["nm", "-D", "--defined-only", str(path)]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in listing.splitlines()]
    return sorted({row[2].partition("@")[0] for row in rows if row[1] in "TWi"})


def print_hooks() -> None:
    """Hook functions of the C library, five times others."""
    with TemporaryDirectory() as name:
        program = linked(Path(name), "entries.c", "library")
        for seed in range(5):
            chosen = random.Random(seed).sample(c_library_functions(), 480)  # noqa: S311
            print(run(program, Path(name) / "app.spool", "many", *chosen), end="")  # noqa: T201


def main(arguments: list[str]) -> None:
    """Print a line for each build, and the functions whose stacks differ."""
    if arguments == ["hooks"]:
        print_hooks()
        return
    total = wrong = functions = interrupted = 0
    with TemporaryDirectory() as name:
        for outcome in outcomes(Path(name), tuple(arguments)):
            calls, differing = outcome.calls.total(), outcome.wrong.total()
            total, wrong = total + calls, wrong + differing
            functions += len(outcome.functions)
            interrupted += outcome.interrupted
            print(  # noqa: T201
                f"{outcome.build}: {len(outcome.functions)} functions, {calls} calls,"
                f" {differing} differ, {outcome.interrupted} not compared,"
                f" to {outcome.deepest} frames",
                *sorted(outcome.wrong),
            )
    print(f"{functions} functions, {total} calls, {wrong} differ, {interrupted} not compared")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
