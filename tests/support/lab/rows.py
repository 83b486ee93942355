"""One build of the lab, measured: the rows that it has in the table."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.model.address import Avma, Svma
from tests.support.emulated.cpu import emulated_cpu
from tests.support.emulated.dyld import symbols_of
from tests.support.emulated.run import OUTSIDE, main_stack
from tests.support.lab.builds import Build, Built, make
from tests.support.lab.lldb import Caller, MomentRecorder, lldb_walks
from tests.support.lab.policies import policies
from tests.support.lab.run import Result, Score, run
from tests.support.writers.function_lists import with_function_starts

EVERYTHING, STRIPPED, LLDB = "everything", "stripped", "lldb"
METHODS = ("documents", "frame pointer", "compact", "CFI", EVERYTHING, LLDB)
"""The columns."""


@dataclass(frozen=True, slots=True)
class Share:
    """The number of compared moments that were wholly right."""

    right: int
    of: int

    def __str__(self) -> str:
        """Format as percent, rounded down: only all is 100.00."""
        return f"{10_000 * self.right // self.of / 100:.2f}" if self.of else "–"


@dataclass(frozen=True, slots=True)
class Failure:
    """One instruction at which a walk was wrong."""

    pc: int
    place: str
    """The function and the distance from its start."""
    instruction: str
    count: int
    found: tuple[int, ...]
    truth: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    architecture: str
    program: str
    optimisation: str
    tables: str
    is_stripped: bool
    instructions: int = 0
    """That were run."""
    shares: Mapping[str, Share] = field(default_factory=dict)
    """By method; a method that was not measured has none."""
    wrong_registers: int = 0
    lost_registers: int = 0
    failures: tuple[Failure, ...] = ()
    """Failures of all methods together."""
    error: str = ""
    """Why there is nothing to show, if so."""

    @property
    def key(self) -> str:
        """How explanations name it."""
        return f"{self.architecture} {self.program} {self.optimisation} {self.tables}"

    @property
    def is_whole(self) -> bool:
        """Whether all that was compared was right, registers too."""
        share = self.shares.get(EVERYTHING)
        return share is not None and share.right == share.of and not self.wrong_registers


def measured(build: Build, programs: Path, directory: Path, lldb: str | None) -> list[Row]:
    """Make, run and score a build, with symbols and stripped.

    Args:
        build: what to measure.
        programs: the directory of the sources.
        directory: an empty one, for files.
        lldb: the program; None to leave it out.
    """
    try:
        built = make(build, programs, directory)
        result, walked = _scored(built, programs, directory, lldb)
    except (AssertionError, OSError, subprocess.SubprocessError, KeyError, ValueError) as error:
        said = getattr(error, "stderr", None) or str(error)
        return [_empty(build, f"{type(error).__name__}: {said.strip()[-500:]}")]
    return [_row(built, result, walked, is_stripped=stripped) for stripped in (False, True)]


def _scored(
    built: Built, programs: Path, directory: Path, lldb: str | None
) -> tuple[Result, Mapping[bool, Score]]:
    contents = built.contents
    chosen = policies(contents)
    chosen[STRIPPED] = policies(built.stripped)[EVERYTHING]
    recorder = None
    if lldb is not None and built.build.architecture.is_for_lldb:
        recorder = MomentRecorder(contents, main_stack(contents).stop)
    result = run(contents, chosen, built.conditions, recorder)
    if recorder is None or lldb is None:
        return result, {}
    scores: dict[bool, Score] = {}
    caller = _caller(built.build, programs, directory)
    for is_stripped in (False, True):
        file = built.stripped if is_stripped else contents
        path = directory / f"{file.source}.{'stripped' if is_stripped else 'symbols'}"
        path.write_bytes(with_function_starts(bytes(file.data), built.function_starts))
        score = scores[is_stripped] = Score()
        moments = recorder.chosen()
        walks = lldb_walks(lldb, moments, file, path, caller)
        for moment, found in zip(moments, walks, strict=True):
            score.add(found, *moment.truths)
    return result, scores


def _caller(build: Build, programs: Path, directory: Path) -> Caller:
    output, made = directory / "start.o", directory / "start"
    build.architecture.compile(programs / "start.S", output, ())
    build.architecture.link([output], made, (), is_stripped=False)
    contents = MachOFileContents(made.read_bytes(), "start")
    called = symbols_of(contents)["_called_main"]
    return Caller(made, OUTSIDE - called)


def _empty(build: Build, error: str) -> Row:
    return Row(
        architecture=build.architecture.name,
        program=build.program.name,
        optimisation=build.optimisation,
        tables=build.tables,
        is_stripped=False,
        error=error,
    )


def _row(built: Built, result: Result, lldb: Mapping[bool, Score], *, is_stripped: bool) -> Row:
    build = built.build
    scores = {name: result.scores[name] for name in METHODS if name in result.scores}
    if is_stripped:
        # The others read only unwind tables and the code, which are the same in both files.
        scores[EVERYTHING] = result.scores[STRIPPED]
    if is_stripped in lldb:
        scores[LLDB] = lldb[is_stripped]
    return Row(
        architecture=build.architecture.name,
        program=build.program.name,
        optimisation=build.optimisation,
        tables=build.tables,
        is_stripped=is_stripped,
        instructions=result.instructions,
        shares={name: Share(score.right, score.executed) for name, score in scores.items()},
        wrong_registers=result.bad_registers.total(),
        lost_registers=result.lost_registers.total(),
        failures=tuple(_failures(built, scores[EVERYTHING], result.bad_registers)),
    )


def _failures(built: Built, score: Score, registers: Counter[tuple[int, int]]) -> list[Failure]:
    failures = []
    for pc, count in sorted(score.wrong.items()):
        walked, truth = score.examples[pc]
        failures.append(_failure(built, pc, count, walked, truth))
    wrong = Counter(pc for pc, _ in registers.elements() if pc not in score.wrong)
    failures += [_failure(built, pc, count, (), ()) for pc, count in sorted(wrong.items())]
    return failures


def _failure(
    built: Built, pc: int, count: int, walked: tuple[Avma, ...], truth: tuple[Avma, ...]
) -> Failure:
    start, name = max(
        ((value, name) for name, value in built.symbols.items() if value <= pc), default=(pc, "?")
    )
    return Failure(
        pc=pc,
        place=f"{name}+{pc - start:#x}",
        instruction=disassembled(built.contents, pc),
        count=count,
        found=walked,
        truth=truth,
    )


def disassembled(contents: MachOFileContents, pc: int) -> str:
    """Disassemble one instruction with capstone."""
    cpu = emulated_cpu(contents.image.arch)
    segment = contents.image.segment_at(Svma(pc))
    size = cpu.longest_instruction
    if segment is not None:
        size = min(size, segment.vmaddr + segment.vmsize - pc)
    code = bytes(contents.read_svma(Svma(pc), size))
    return next((text for _, _, text in cpu.instructions(code, pc)), code.hex())
