"""The results of published binaries: stored parts, and the rows that they make."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from machtrace.errors import MachtraceError
from machtrace.formats.object_file import ObjectFile, sniff
from machtrace.model.address import Svma
from tests.support.emulated.cpu import emulated_cpu
from tests.support.published.compilers import compilers
from tests.support.published.files import REPOSITORY, TABLE, Subject
from tests.support.published.peers import PeerShare
from tests.support.published.result import Mismatch, Result

_LONGEST_STACK_SHOWN = 6
_SOURCES = (
    REPOSITORY / "src" / "machtrace" / "unwinder",
    REPOSITORY / "src" / "machtrace" / "formats",
    REPOSITORY / "tests" / "support" / "emulated",
    REPOSITORY / "tests" / "support" / "published",
)
_UNRELATED = frozenset({"compilers.py", "fetch.py", "report.py", "results.py"})


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """Consecutive runs of a slice."""

    seed: int
    first: int
    count: int


class ResultStore:
    """Finished parts, a line of JSON each, so that an interrupted lab can be continued."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        """Read the stored parts; without ``resume``, or if sources changed, begin with none."""
        self._path = path
        self._parts: dict[str, dict[Part, Result]] = {}
        self._peers: dict[str, dict[str, PeerShare]] = {}
        self._sampled: dict[str, Result] = {}
        self.errors: dict[str, str] = {}
        """Why a row was not measured, by its key."""
        path.parent.mkdir(parents=True, exist_ok=True)
        first = {"sources": _sources()}
        lines = path.read_text().splitlines() if resume and path.exists() else []
        if lines and json.loads(lines[0]) == first:
            for line in lines[1:]:
                self._read(json.loads(line))
        else:
            path.write_text(json.dumps(first) + "\n")

    def _read(self, row: dict[str, Any]) -> None:
        key: str = row["key"]
        if "peers" in row:
            self._peers[key] = {name: PeerShare(**one) for name, one in row["peers"].items()}
            return
        self._parts.setdefault(key, {})[Part(**row["part"])] = _result_of(row["result"])

    def has(self, key: str, part: Part) -> bool:
        """Return whether a part is finished."""
        return part in self._parts.get(key, {})

    def has_peers(self, key: str) -> bool:
        """Return whether the debuggers' shares of a row are there."""
        return key in self._peers

    def add(self, key: str, part: Part, result: Result) -> None:
        """Store a finished part."""
        if result.samples:
            self._sampled[key] = result
        self._parts.setdefault(key, {})[part] = result
        self._append({"key": key, "part": asdict(part), "result": result.to_json()})

    def add_peers(self, key: str, shares: Mapping[str, PeerShare]) -> None:
        """Store the debuggers' shares of a row."""
        self._peers[key] = dict(shares)
        self._append({"key": key, "peers": {name: asdict(one) for name, one in shares.items()}})

    def sampled(self, key: str) -> Result | None:
        """Return the part of a row that has samples, if it was executed now."""
        return self._sampled.get(key)

    def result(self, key: str) -> Result:
        """Return all parts of a row together."""
        first, *rest = (result for _, result in sorted(self._parts[key].items()))
        for result in rest:
            first = first + result
        return first

    def peers(self, key: str) -> dict[str, PeerShare]:
        """Return the debuggers' shares of a row, by name."""
        return self._peers.get(key, {})

    def _append(self, row: object) -> None:
        with self._path.open("a") as sink:
            sink.write(json.dumps(row) + "\n")


@dataclass(frozen=True, slots=True)
class Failure:
    """One instruction at which compared stacks were wrong."""

    address: int
    """In the file."""
    example: Mismatch
    count: int
    instruction: str = ""
    """Disassembled: the one to run next, or in a caller the one after its call."""

    def __str__(self) -> str:
        example = self.example
        claims = "claimed" if example.claims else "not claimed"
        return (
            f"{self.address:#x} {example.caller}, `{self.instruction}`, {self.count} times:"
            f" frame {example.frame},"
            f" {claims}; found {_stack(example.walk)}, true is {_stack(example.truth)};"
            f" run {example.run}{'; ' if example.disagreement else ''}{example.disagreement}"
        )


@dataclass(frozen=True)
class Row:
    """One slice of a file, in tables."""

    subject: Subject
    compilers: str
    result: Result
    peers: Mapping[str, PeerShare] = field(default_factory=dict)
    contents: ObjectFile | None = None
    """For the disassembly of failures."""

    @property
    def key(self) -> str:
        """The name by which explanations refer to it."""
        return self.subject.key

    @property
    def is_whole(self) -> bool:
        """Whether all that was compared was right, registers too."""
        return self.result.exact == self.result.compared and not self.result.wrong_registers

    @property
    def exact_share(self) -> str:
        """The exact runs in percent, rounded down: only all are 100.00."""
        return share(self.result.exact, self.result.compared)

    @cached_property
    def failures(self) -> list[Failure]:
        """The wrong instructions: those at which the walk left the true stack."""
        by_address: dict[int, list[Mismatch]] = {}
        for mismatch in self.result.wrong:
            last_right = min(max(0, mismatch.frame - 1), len(mismatch.truth) - 1)
            by_address.setdefault(mismatch.truth[last_right], []).append(mismatch)
        return [
            Failure(address, mismatches[0], len(mismatches), _disassembled(self.contents, address))
            for address, mismatches in sorted(by_address.items())
        ]


def share(right: int, of: int) -> str:
    """Format a share as percent, rounded down."""
    return f"{10_000 * right // of / 100:.2f}" if of else "–"


def row_of(subject: Subject, result: Result, peers: Mapping[str, PeerShare]) -> Row:
    """Return a row with what its file states."""
    path = subject.file.path()
    contents = next(
        part.open()
        for part in sniff(path.read_bytes(), path.name)
        if part.arch_name == subject.architecture
    )
    return Row(subject, compilers(contents), result, peers, contents)


def _disassembled(contents: ObjectFile | None, address: int) -> str:
    if contents is None:
        return ""
    cpu = emulated_cpu(contents.image.arch)
    for size in range(cpu.longest_instruction, 0, -1):  # less at the end of a segment
        try:
            code = bytes(contents.read_svma(Svma(address), size))
        except (MachtraceError, ValueError, OverflowError):
            continue
        return next((text for _, _, text in cpu.instructions(code, address)), code.hex())
    return "no code"


def _stack(addresses: tuple[int, ...]) -> str:
    shown = " ".join(f"{address:#x}" for address in addresses[:_LONGEST_STACK_SHOWN])
    return f"{shown} …" if len(addresses) > _LONGEST_STACK_SHOWN else shown


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
