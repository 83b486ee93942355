"""The results of runs: counts by reason, every stack that was not exact, and stored parts."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from machtrace.model.address import Avma
from machtrace.model.memory import MemoryRegion
from machtrace.model.registers import RegisterSet
from tests.support.published.files import REPOSITORY, TABLE

_SOURCES = (
    REPOSITORY / "src" / "machtrace" / "unwinder",
    REPOSITORY / "src" / "machtrace" / "formats",
    REPOSITORY / "tests" / "support" / "emulated",
    REPOSITORY / "tests" / "support" / "published",
)
_UNRELATED = frozenset({"fetch.py", "listing.py", "report.py"})


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
        """The share of compared runs that were exact, in percent."""
        return share(self.exact, self.compared)

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


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive runs of a slice."""

    seed: int
    first: int
    count: int
    entry: int | None = None
    """The stated address of the function that they begin at; None: random ones."""


@dataclass(frozen=True, slots=True)
class PeerShare:
    """How often a debugger's stack was right."""

    right: int
    of: int
    missing: str = ""
    """The reason why nothing was measured, if so."""

    def __str__(self) -> str:
        return f"{100 * self.right / self.of:.1f}" if self.of else "–"


class ResultStore:
    """Finished parts, a line of JSON each, so that an interrupted lab can be continued."""

    def __init__(self, path: Path | None) -> None:
        """Read what ``path`` holds, unless sources changed since then; None stores nothing."""
        self._path = path
        self._parts: dict[tuple[str, Part], Result] = {}
        self._peers: dict[tuple[str, Part], dict[str, PeerShare]] = {}
        self.errors: dict[str, str] = {}
        """Why a row was not measured, by its key."""
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        first = {"sources": _sources()}
        lines = path.read_text().splitlines() if path.exists() else []
        if lines and json.loads(lines[0]) == first:
            for line in lines[1:]:
                self._read(json.loads(line))
        else:
            path.write_text(json.dumps(first) + "\n")

    def _read(self, row: dict[str, Any]) -> None:
        key = (row["key"], Part(**row["part"]))
        if "peers" in row:
            self._peers[key] = {name: PeerShare(**one) for name, one in row["peers"].items()}
        else:
            self._parts[key] = _result_of(row["result"])

    def has(self, key: str, part: Part) -> bool:
        """Return whether a part is finished."""
        return (key, part) in self._parts

    def has_peers(self, key: str, part: Part) -> bool:
        """Return whether the debuggers' shares of a part are known."""
        return (key, part) in self._peers

    def add(self, key: str, part: Part, result: Result) -> None:
        """Store a finished part."""
        self._parts[key, part] = result
        self._append({"key": key, "part": asdict(part), "result": result.to_json()})

    def add_peers(self, key: str, part: Part, shares: Mapping[str, PeerShare]) -> None:
        """Store the debuggers' shares of a part."""
        self._peers[key, part] = dict(shares)
        rows = {name: asdict(share) for name, share in shares.items()}
        self._append({"key": key, "part": asdict(part), "peers": rows})

    def result(self, key: str, parts: Iterable[Part]) -> Result:
        """Return finished parts of a row together."""
        first, *rest = (self._parts[key, part] for part in parts)
        for result in rest:
            first = first + result
        return first

    def peers(self, key: str, part: Part) -> dict[str, PeerShare]:
        """Return the debuggers' shares of a part, by name."""
        return self._peers.get((key, part), {})

    def _append(self, row: object) -> None:
        if self._path is not None:
            with self._path.open("a") as sink:
                sink.write(json.dumps(row) + "\n")


def share(right: int, of: int) -> str:
    """Format a share as percent, rounded down: only all are 100.00."""
    return f"{10_000 * right // of / 100:.2f}" if of else "–"


def _result_of(stored: Mapping[str, Any]) -> Result:
    """Return a result from what :meth:`Result.to_json` stored, without samples."""
    values = dict(stored)
    for name in ("dropped", "ended", "refused", "lost_registers"):
        values[name] = Counter(values[name])
    values["wrong"] = [_mismatch_of(row) for row in values["wrong"]]
    values["wrong_registers"] = [tuple(row) for row in values["wrong_registers"]]
    return Result(**values)


def _mismatch_of(stored: Mapping[str, Any]) -> Mismatch:
    lists = {name: tuple(stored[name]) for name in ("truth", "walk", "methods")}
    return Mismatch(**{**stored, **lists})


def _sources() -> str:
    """Return a hash of what results depend on, besides the files."""
    digest = hashlib.sha256(TABLE.read_bytes())
    for folder in _SOURCES:
        for path in sorted(folder.rglob("*.py")):
            if path.name not in _UNRELATED:
                digest.update(path.read_bytes())
    return digest.hexdigest()
