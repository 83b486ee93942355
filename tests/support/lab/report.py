"""The lab's page, ``docs/accuracy.md``: written from rows, with no result typed by hand."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path

from tests.support.lab.lldb import MOMENTS, lldb_program, lldb_version
from tests.support.lab.programs import PROGRAMS
from tests.support.lab.rows import EVERYTHING, LLDB, METHODS, Failure, Row, Share

_FAILURES_SHOWN = 40
"""Failures shown for each row; the rest are counted."""
_MAX_SHOWN_STACK_LENGTH = 6
_REGISTERS = """\
**registers**: values of the caller's registers that calls preserve (for a frame that a signal
interrupted: of all general registers) that were recovered wrong, and that were reported lost."""


def page(rows: Sequence[Row], explanations: Path, seconds: float, left_out: int = 0) -> str:
    """Return the page: the totals of each architecture, and every row that is not whole.

    Args:
        rows: the measured rows, in the table's order.
        explanations: a TOML file with the reasons why rows are not whole, by patterns of
            :attr:`Row.key`.
        seconds: the duration of the run.
        left_out: the number of the lab's builds that were not requested.
    """
    why = tomllib.loads(explanations.read_text())["explanations"]
    parts = [
        "# Accuracy",
        "",
        *_introduction(rows, seconds, left_out),
        *_totals(rows),
        "## Where everything is not right",
        "",
        *_failures(rows, why),
    ]
    return "\n".join(parts).rstrip() + "\n"


def details(rows: Sequence[Row]) -> str:
    """Return a page with a row for each build, a table for each architecture."""
    parts = ["# Accuracy of each build", "", *_REGISTERS.splitlines(), ""]
    by_architecture: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_architecture[row.architecture].append(row)
    for architecture, its_rows in by_architecture.items():
        parts += [f"## {architecture}", "", *_table(its_rows)]
    return "\n".join(parts).rstrip() + "\n"


def _introduction(rows: Sequence[Row], seconds: float, left_out: int) -> list[str]:
    program = lldb_program()
    peer = lldb_version(program) if program else "no lldb was installed"
    tools = ", ".join(f"{name} {version(name)}" for name in ("ziglang", "unicorn", "capstone"))
    executed = sum(row.instructions for row in rows if not row.is_stripped)
    builds = len({row.key for row in rows})
    missing = ""
    if left_out:
        tables = " and ".join(sorted({row.tables for row in rows}))
        missing = f"\n{left_out} builds were left out of this run, which has {tables} tables.\n"
    text = f"""\
The share of executed instructions at which a walk finds the whole stack: every address of it, in
order, with none missing and none invented. Programs are compiled to Mach-O executables and run in
an emulator, which records the true stack from calls and returns.

`make accuracy` writes this page, and a row for each build to `build/accuracy-rows.md`; this page
was written with {tools} and {peer}.
{executed:,} instructions were run in {builds} builds, in {seconds / 60:.0f} minutes. Shares are
rounded down: 100.00 means every instruction.
{missing}
- **documents**: pc, link register, then the chain of frame pointers, as BSBacktraceLogger has it;
  **frame pointer**: the chain alone.
- **compact**, **CFI**: only `__unwind_info`, or only `__eh_frame`, and the frame pointer where they
  have no entry. These two and the two before read no symbols.
- **everything**: all methods, as machtrace combines them. No register of a caller that calls
  preserve (for a frame that a signal interrupted: no general register) may be wrong either.
- **lldb**: through a Mach-O core of the moment and the program's file, whose `LC_FUNCTION_STARTS`,
  which ziglang's linker leaves empty, is filled in for lldb alone. lldb unwinds at up to {MOMENTS}
  instructions of each build, evenly spread over those that were run, at the first time of each: the
  share is of those, and not of the time.
- **rows**: a build with its symbols, and the same build stripped.

The programs:
"""
    programs = [f"- `{program.name}`: {program.shapes}." for program in PROGRAMS.values()]
    return [*text.splitlines(), "", *programs, ""]


def _totals(rows: Sequence[Row]) -> list[str]:
    lines = [
        "## Totals",
        "",
        f"| architecture | builds | {' | '.join(METHODS)} | rows with everything at 100.00 |",
        f"|---|--:|{'--:|' * len(METHODS)}--:|",
    ]
    for architecture in dict.fromkeys(row.architecture for row in rows):
        its = [row for row in rows if row.architecture == architecture]
        shares = [_total(row.shares.get(method) for row in its) for method in METHODS]
        builds = len({row.key for row in its})
        whole = sum(row.is_whole for row in its)
        cells = " | ".join(map(str, shares))
        lines.append(f"| {architecture} | {builds} | {cells} | {whole} of {len(its)} |")
    return [*lines, ""]


def _total(shares: Iterable[Share | None]) -> Share:
    present = [share for share in shares if share is not None]
    return Share(sum(share.right for share in present), sum(share.of for share in present))


def _table(rows: Sequence[Row]) -> list[str]:
    methods = " | ".join(METHODS)
    lines = [
        f"| program | built with | tables | symbols | run | compared | {methods} | registers |",
        f"|---|---|---|---|--:|--:|{'--:|' * len(METHODS)}--:|",
    ]
    for row in rows:
        symbols = "stripped" if row.is_stripped else "present"
        start = f"| {row.program} | {row.optimisation} | {row.tables} | {symbols} |"
        if row.error:
            lines.append(f"{start} not measured: {_inline(row.error)} |")
            continue
        cells = [_cell(method, row.shares.get(method)) for method in METHODS]
        compared = row.shares[EVERYTHING].of
        registers = f"{row.wrong_registers} wrong, {row.lost_registers} lost"
        lines.append(
            f"{start} {row.instructions:,} | {compared:,} | {' | '.join(cells)} | {registers} |"
        )
    return [*lines, ""]


def _cell(method: str, share: Share | None) -> str:
    if share is None:
        return "–"
    return f"{share} of {share.of}" if method == LLDB else str(share)


def _inline(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")[:300]


def _failures(rows: Sequence[Row], why: Mapping[str, str]) -> list[str]:
    lines: list[str] = []
    for row in rows:
        if row.is_whole:
            continue
        symbols = "stripped" if row.is_stripped else "with symbols"
        lines += [f"### {row.key}, {symbols}", ""]
        if row.error:
            lines += [f"Not measured: {_inline(row.error)}", ""]
        reasons = [text for pattern, text in why.items() if fnmatchcase(row.key, pattern)]
        lines += [*(reasons or ["The reason is not known."]), ""]
        for failure in row.failures[:_FAILURES_SHOWN]:
            lines += _failure(failure)
        if len(row.failures) > _FAILURES_SHOWN:
            lines.append(f"- and {len(row.failures) - _FAILURES_SHOWN} more")
        lines.append("")
    return lines or ["Nowhere: every row is whole.", ""]


def _failure(failure: Failure) -> list[str]:
    line = f"- `{failure.pc:#x}` {failure.place}, `{failure.instruction}`, {failure.count} times"
    if not failure.truth:
        return [f"{line}: a register of the caller is wrong"]
    return [f"{line}: found {_stack(failure.found)}, true is {_stack(failure.truth)}"]


def _stack(addresses: Sequence[int]) -> str:
    shown = " ".join(f"`{address:#x}`" for address in addresses[:_MAX_SHOWN_STACK_LENGTH])
    return f"{shown} …" if len(addresses) > _MAX_SHOWN_STACK_LENGTH else shown
