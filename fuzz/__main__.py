"""The command line: ``python -m fuzz --help``."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fuzz.jobs import Run, run_jobs
from fuzz.programs import ROOT
from fuzz.runner import SLOW_SECONDS, Outcome, try_all, write_reproducers
from fuzz.target import Target
from fuzz.targets import TARGETS

INTERRUPTED = 130
app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def fuzz(
    targets: Annotated[
        list[str], typer.Argument(help=f"What to feed: {', '.join(TARGETS)}, or all.")
    ],
    count: Annotated[int, typer.Option(help="Mutated inputs for each target.", min=0)] = 100_000,
    seed: Annotated[int, typer.Option(help="Inputs depend on it and on their number.")] = 1,
    jobs: Annotated[int, typer.Option(help="Processes.", min=1)] = 1,
    output: Annotated[Path, typer.Option(help="Where inputs that went wrong are written.")] = ROOT
    / "build"
    / "fuzz"
    / "findings",
    slow: Annotated[
        float, typer.Option(help="Seconds of processor time that are too many for an input.")
    ] = SLOW_SECONDS,
    try_again: Annotated[
        list[Path] | None, typer.Option("--try", help="Feed these files instead.")
    ] = None,
) -> None:
    """Feed targets mutated inputs; exit with 1 where one did what none may do."""
    unknown = [name for name in targets if name not in TARGETS and name != "all"]
    if unknown:
        raise typer.BadParameter(f"no target {unknown[0]!r}; there are {', '.join(TARGETS)}")
    for ending in (signal.SIGINT, signal.SIGTERM):  # shells ignore the first in the background
        signal.signal(ending, signal.default_int_handler)
    names = TARGETS if "all" in targets else targets
    console = Console(stderr=True)
    failed = interrupted = False
    for name in names:
        target = TARGETS[name]
        if try_again:
            outcome = try_all(target, [path.read_bytes() for path in try_again], slow=slow)
        else:
            enough = count if target.most is None else min(count, target.most)
            outcome, interrupted = run_jobs(target, Run(seed, enough, slow), jobs, console)
        failed |= _report(target, outcome, output)
        if interrupted:
            break
    sys.exit(1 if failed else INTERRUPTED if interrupted else 0)


def _report(target: Target, outcome: Outcome, output: Path) -> bool:
    """One line of figures, and the findings; whether there are any."""
    rate = outcome.inputs / outcome.seconds if outcome.seconds else 0
    others = sum(count for kind, count in outcome.counts.items() if kind != "slow")
    print(  # noqa: T201 (the result)
        f"{target.name}: {outcome.inputs:,} inputs ({outcome.refused:,} refused),"
        f" {others} exceptions, slowest {outcome.slowest_milliseconds:.1f} ms,"
        f" {rate:,.0f} inputs/s",
        flush=True,
    )
    written = write_reproducers(outcome, target, output) if outcome.findings else []
    for (kind, finding), path in zip(outcome.findings.items(), written, strict=True):
        print(f"  {kind}, {outcome.counts[kind]} times: {path}")  # noqa: T201
        print("    " + finding.details.strip().replace("\n", "\n    "))  # noqa: T201
    return bool(outcome.findings)


app(prog_name="python -m fuzz")
