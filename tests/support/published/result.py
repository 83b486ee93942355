"""The results of runs: counts by reason, and every compared stack that was not exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from machtrace.model.address import Avma
from machtrace.model.memory import MemoryRegion
from machtrace.model.registers import RegisterSet


@dataclass(frozen=True, slots=True)
class Sample:
    """A compared moment, for other unwinders."""

    run: int
    registers: RegisterSet
    stack: MemoryRegion
    """From below the stack pointer to the end of the stack."""
    truth: tuple[Avma, ...]
    """Pc and return addresses, innermost first."""
    slide: int
    """The emulated less the stated address of the image."""
    is_exact: bool
    """Whether machtrace's walk is the truth."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A walk that is not the truth. Addresses are stated ones, but those in no image."""

    run: int
    step: int
    """Executed instructions before it."""
    function: str
    """The innermost function, and the offset in it."""
    caller: str
    """The function of the last right frame, from which the walk goes wrong, and the offset."""
    frame: int
    """The number of the first wrong frame."""
    truth: tuple[int, ...]
    walk: tuple[int, ...]
    methods: tuple[str, ...]
    """How each address of the walk was found."""
    stop: str
    claims: bool
    """Whether the wrong frame, or the end of the stack, is given as certain."""
    disagreement: str = ""
    """The difference between the walkers in C and in Python."""


@dataclass(slots=True)
class Result:
    """The counts and mismatches of runs of one file."""

    file: str
    arch: str
    seed: int
    runs: int = 0
    compared: int = 0
    """Runs with a compared stack."""
    exact: int = 0
    """Runs of which every compared stack was exact."""
    stacks: int = 0
    """Compared stacks, up to two a run."""
    instructions: int = 0
    seconds: float = 0.0
    """Processor time, of all processes together."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Runs without a compared stack, by reason."""
    ended: Counter[str] = field(default_factory=Counter)
    """Why runs ended."""
    refused: Counter[str] = field(default_factory=Counter)
    """Starts of functions that were drawn and not run, by reason."""
    wrong: list[Mismatch] = field(default_factory=list)
    wrong_registers: list[tuple[int, str, str]] = field(default_factory=list)
    """Run, function and register of callers' callee-saved registers with another value."""
    lost_registers: Counter[str] = field(default_factory=Counter)
    """Callee-saved registers that the walk does not recover."""
    samples: list[Sample] = field(default_factory=list)

    def __add__(self, other: Result) -> Result:
        """Return the results of both, which are of the same file."""
        return Result(
            file=self.file,
            arch=self.arch,
            seed=self.seed,
            runs=self.runs + other.runs,
            compared=self.compared + other.compared,
            exact=self.exact + other.exact,
            stacks=self.stacks + other.stacks,
            instructions=self.instructions + other.instructions,
            seconds=self.seconds + other.seconds,
            dropped=self.dropped + other.dropped,
            ended=self.ended + other.ended,
            refused=self.refused + other.refused,
            wrong=self.wrong + other.wrong,
            wrong_registers=self.wrong_registers + other.wrong_registers,
            lost_registers=self.lost_registers + other.lost_registers,
            samples=self.samples + other.samples,
        )

    @property
    def unclaimed(self) -> int:
        """Wrong stacks whose wrong frame was not given as certain."""
        return sum(not mismatch.claims for mismatch in self.wrong)

    @property
    def share(self) -> str:
        """The share of compared runs that were exact, rounded down, in per cent."""
        if not self.compared:
            return "–"
        return f"{10000 * self.exact // self.compared / 100:.2f} %"

    def to_json(self) -> Mapping[str, Any]:
        """Return all but the samples, as JSON has it."""
        return {
            "file": self.file,
            "arch": self.arch,
            "seed": self.seed,
            "runs": self.runs,
            "compared": self.compared,
            "exact": self.exact,
            "stacks": self.stacks,
            "instructions": self.instructions,
            "seconds": round(self.seconds, 1),
            "dropped": dict(self.dropped.most_common()),
            "ended": dict(self.ended.most_common()),
            "refused": dict(self.refused.most_common()),
            "wrong": [asdict(mismatch) for mismatch in self.wrong],
            "wrong_registers": [list(row) for row in self.wrong_registers],
            "lost_registers": dict(self.lost_registers.most_common()),
        }
