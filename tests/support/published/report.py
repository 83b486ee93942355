"""The page of the published binaries, ``docs/accuracy-published.md``, and its rows."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

from machtrace.errors import MachtraceError
from machtrace.formats.object_file import ObjectFile, sniff
from machtrace.model.address import Svma
from tests.support.emulated.cpu import emulated_cpu
from tests.support.published.files import PublishedFile, Registry, Subject, compilers
from tests.support.published.peers import SAMPLES
from tests.support.published.results import Mismatch, PeerShare, Result, share

_FAILURES_SHOWN = 40
"""Failures shown for each row; the rest are counted."""
_MAX_SHOWN = 3
_MAX_SHOWN_STACK_LENGTH = 6
_BEFORE, _AFTER = 4, 3
"""Instructions of a failure that are shown."""
_REGISTRIES = {Registry.PYPI: "PyPI", Registry.NPM: "npm", Registry.DEBIAN: "Debian"}


@dataclass(frozen=True, slots=True)
class Failure:
    """One instruction at which compared stacks were wrong."""

    address: int
    """In the file."""
    example: Mismatch
    count: int
    code: Sequence[str] = ()
    """Instructions around it; marked is the one to run next, or the one after a call."""

    def __str__(self) -> str:
        example = self.example
        claims = "claimed" if example.claims else "not claimed"
        times = "once" if self.count == 1 else f"{self.count} times"
        return (
            f"{self.address:#x} {example.caller}, {times}: frame {example.frame},"
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
            Failure(address, rows[0], len(rows), self._code(address, rows[0].caller))
            for address, rows in sorted(by_address.items())
        ]

    def _code(self, address: int, label: str) -> list[str]:
        """Return the code around ``address``, whose label ends with its offset in a function."""
        offset = label.rpartition(" + ")[2]
        if self.contents is None or not offset.isdecimal():
            return []
        return code_around(self.contents, address - int(offset), address)


def row_of(subject: Subject, result: Result, peers: Mapping[str, PeerShare]) -> Row:
    """Return a row with what its file states."""
    path = subject.path
    contents = next(
        part.open()
        for part in sniff(path.read_bytes(), path.name)
        if part.arch_name == subject.architecture
    )
    return Row(subject, compilers(contents), result, peers, contents)


def code_around(contents: ObjectFile, start: int, address: int) -> list[str]:
    """Return the instructions around ``address``, which is marked, of the function at ``start``."""
    cpu = emulated_cpu(contents.image.arch)
    longest = cpu.longest_instruction
    for after in range(_AFTER * longest, 0, -1):  # less at the end of a segment
        try:
            code = bytes(contents.read_svma(Svma(start), address + after - start))
            break
        except (MachtraceError, ValueError, OverflowError):
            continue
    else:
        return []
    rows: list[tuple[int, str]] = []
    offset = 0
    while offset < len(code):
        for at, size, text in cpu.instructions(code[offset:], start + offset):
            rows.append((at, text))
            offset = at + size - start
        offset += 4 if contents.image.arch.is_arm64 else 1  # data among the code
    middle = next((index for index, (at, _) in enumerate(rows) if at >= address), len(rows))
    return [
        f"{'=>' if at == address else '  '} {at:#x}  {text}"
        for at, text in rows[max(0, middle - _BEFORE) : middle + _AFTER]
    ]


def _stack(addresses: tuple[int, ...]) -> str:
    shown = " ".join(f"{address:#x}" for address in addresses[:_MAX_SHOWN_STACK_LENGTH])
    return f"{shown} …" if len(addresses) > _MAX_SHOWN_STACK_LENGTH else shown


def page(
    rows: Sequence[Row],
    explanations: Path,
    seed: int,
    debuggers: str,
    missing: Sequence[PublishedFile] = (),
    errors: Mapping[str, str] | None = None,
) -> str:
    """Return the page: totals, a row for each slice, and every stack that was not exact.

    Args:
        rows: the measured rows, in the table's order.
        explanations: a TOML file with the reasons why stacks are not exact, by patterns of
            :attr:`Row.key` and the instruction's address in the file.
        seed: the seed of the runs.
        debuggers: their versions.
        missing: files that could not be fetched.
        errors: why rows could not be measured, by :attr:`Row.key`.
    """
    why = tomllib.loads(explanations.read_text())["explanations"]
    parts = [
        "# Accuracy on published binaries",
        "",
        *_introduction(rows, seed, debuggers, missing),
        *(f"{key} was not measured: {error}.\n" for key, error in (errors or {}).items()),
        *_results(rows),
        *_files(rows),
        *_ends(rows),
        *_failures(rows, why),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _introduction(
    rows: Sequence[Row], seed: int, debuggers: str, missing: Sequence[PublishedFile]
) -> list[str]:
    tools = ", ".join(f"{name} {version(name)}" for name in ("unicorn", "capstone"))
    runs = sum(row.result.runs for row in rows)
    compared = sum(row.result.compared for row in rows)
    exact = sum(row.result.exact for row in rows)
    of_each = max((row.result.runs for row in rows), default=0)
    seconds = sum(row.result.seconds for row in rows)
    speed = f"{runs / seconds:.0f} a second" if seconds else "–"
    text = f"""\
Pieces of programs and libraries that other people built and published, run from random states in an
emulator that records the true stack: a random function, some of its instructions, calls followed or
stepped over. At a random instruction the whole stack is compared with the walk's, every address of
it, and the callee-saved registers that were recovered for each caller.

`make published-lab` fetches the files, runs 16,000 pieces of each slice and writes this page; with
`RUNS=400`, it runs fewer. A run is determined by the seed, {seed}, and its number. Here are \
{of_each:,} runs of each slice, {runs:,} together; one processor executes {speed}, without the \
debuggers.
{compared:,} runs were compared, {exact:,} were exact: {share(exact, compared)} %. Shares are \
rounded down: 100.00 means every run.
This page was written with {tools}, {debuggers}.

- **dropped**: runs whose true stack was never certain; the reasons are below.
- **compared**, **exact**: runs with one or two compared stacks, and those of which every stack was
  right in every address.
- **registers**: values of callee-saved registers that were recovered wrong.
- **lldb**, **gdb**: the share of {SAMPLES} of these moments, evenly spread, at which the debugger
  finds all addresses that are in the image; it reads a core with the registers and the stack, and
  the file. What it reports beyond the image's outermost caller does not count.
"""
    lines = [*text.splitlines(), ""]
    for file in missing:
        lines += [f"Not fetched, and left out: {file.name}, from {file.archive}.", ""]
    return lines


def _results(rows: Sequence[Row]) -> list[str]:
    lines = [
        "## Results",
        "",
        "| file | runs | dropped | compared | exact, % | registers | lldb | gdb |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        result = row.result
        peers = " | ".join(str(row.peers.get(peer, "–")) for peer in ("lldb", "gdb"))
        lines.append(
            f"| {row.key} | {result.runs:,} | {sum(result.dropped.values()):,} |"
            f" {result.compared:,} | {row.exact_share} | {_registers(row)} | {peers} |"
        )
    missing = sorted({one.missing for row in rows for one in row.peers.values() if one.missing})
    return [*lines, "", *(f"– of a debugger: {reason}." for reason in missing), ""]


def _registers(row: Row) -> int:
    return len(row.result.wrong_registers)


def _files(rows: Sequence[Row]) -> list[str]:
    lines = [
        "## Files",
        "",
        "Names, hashes and paths in archives are in `tests/published/files.toml`. *Built with* is",
        "what the file itself states.",
        "",
        "| file | from | language | built with | why |",
        "|---|---|---|---|---|",
    ]
    seen: dict[str, list[Row]] = {}
    for row in rows:
        seen.setdefault(row.subject.name, []).append(row)
    for name, its_rows in seen.items():
        file = its_rows[0].subject.file
        assert file is not None
        architectures = ", ".join(dict.fromkeys(row.subject.architecture for row in its_rows))
        built = "; ".join(dict.fromkeys(row.compilers for row in its_rows))
        origin = (
            f"{file.archive.package} {file.archive.version} ({_REGISTRIES[file.archive.registry]})"
        )
        lines.append(
            f"| {name} ({architectures}) | {origin} | {file.language} | {built} | {file.why} |"
        )
    return [*lines, ""]


def _ends(rows: Sequence[Row]) -> list[str]:
    ended: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    for row in rows:
        ended.update(row.result.ended)
        dropped.update(row.result.dropped)
    lines = [
        "## Why runs ended",
        "",
        "A run is compared before its end. It is dropped if it ended at once, or left its stack.",
        "",
        "| reason | runs | dropped | most in |",
        "|---|--:|--:|---|",
    ]
    for reason in sorted(ended | dropped, key=lambda reason: (-ended[reason], reason)):
        most = sorted(rows, key=lambda row: -row.result.ended.get(reason, 0))[:_MAX_SHOWN]
        names = ", ".join(
            f"{row.key} {row.result.ended[reason]:,}" for row in most if row.result.ended[reason]
        )
        lines.append(f"| {reason} | {ended[reason]:,} | {dropped[reason]:,} | {names} |")
    return [*lines, ""]


def _failures(rows: Sequence[Row], why: Mapping[str, str]) -> list[str]:
    lines = ["## Where the stack is not exact", ""]
    if all(row.is_whole for row in rows):
        return [*lines, "Nowhere: every row is whole.", ""]
    for row in rows:
        if row.is_whole:
            continue
        lines += [f"### {row.key}", ""]
        for failure in row.failures[:_FAILURES_SHOWN]:
            lines += _failure(row, failure, why)
        if len(row.failures) > _FAILURES_SHOWN:
            lines.append(f"- and {len(row.failures) - _FAILURES_SHOWN} more")
        lines += _wrong_registers(row, why)
        lines.append("")
    return lines


def _failure(row: Row, failure: Failure, why: Mapping[str, str]) -> list[str]:
    key = f"{row.key} {failure.address:#x}"
    reasons = [text for pattern, text in why.items() if fnmatchcase(key, pattern)]
    return [
        f"- {failure}",
        *(f"  {reason}" for reason in reasons or ["The reason is not known."]),
        *("", "  ```asm", *(f"  {line}" for line in failure.code), "  ```", ""),
    ]


def _wrong_registers(row: Row, why: Mapping[str, str]) -> list[str]:
    by_function: dict[str, Counter[str]] = {}
    for _, function, register in row.result.wrong_registers:
        by_function.setdefault(function, Counter())[register] += 1
    lines = []
    for function, registers in list(by_function.items())[:_FAILURES_SHOWN]:
        names = ", ".join(f"{name} {count} times" for name, count in registers.items())
        lines.append(f"- registers of the caller of {function}: {names}")
        key = f"{row.key} {function}"
        lines += [f"  {text}" for pattern, text in why.items() if fnmatchcase(key, pattern)]
    return lines
