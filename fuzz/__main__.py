"""The command line: ``python -m fuzz --help``."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import click
from rich.console import Console

from fuzz.jobs import Run, run_jobs
from fuzz.programs import ROOT
from fuzz.runner import SLOW_SECONDS, Outcome, try_all, write_reproducers
from fuzz.target import Target
from fuzz.targets import TARGETS

INTERRUPTED = 130


@click.command()
@click.argument("targets", metavar="TARGET...", nargs=-1, required=True)
@click.option(
    "--count",
    type=click.IntRange(min=0),
    default=100_000,
    show_default=True,
    help="Mutated inputs for each target.",
)
@click.option(
    "--seed",
    type=int,
    default=1,
    show_default=True,
    help="Inputs depend on it and on their number.",
)
@click.option(
    "--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Worker processes."
)
@click.option(
    "--output",
    type=Path,
    default=ROOT / "build" / "fuzz" / "findings",
    show_default=True,
    help="Folder for inputs that cause errors.",
)
@click.option(
    "--slow",
    type=float,
    default=SLOW_SECONDS,
    show_default=True,
    help="Seconds of processor time that are too many for an input.",
)
@click.option(
    "--try", "files", type=Path, multiple=True, help="Feed this file instead; may be repeated."
)
def fuzz(
    *,
    targets: tuple[str, ...],
    count: int,
    seed: int,
    jobs: int,
    output: Path,
    slow: float,
    files: tuple[Path, ...],
) -> None:
    """Feed mutated inputs to each TARGET, or to all; exit with 1 if one breaks its contract."""
    unknown = [name for name in targets if name not in TARGETS and name != "all"]
    if unknown:
        raise click.BadParameter(f"no target {unknown[0]!r}; choose all, {', '.join(TARGETS)}")
    for ending in (signal.SIGINT, signal.SIGTERM):  # shells ignore the first in the background
        signal.signal(ending, signal.default_int_handler)
    names = TARGETS if "all" in targets else targets
    console = Console(stderr=True)
    failed = interrupted = False
    for name in names:
        target = TARGETS[name]
        if files:
            outcome = try_all(target, [path.read_bytes() for path in files], slow=slow)
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


fuzz(prog_name="python -m fuzz")
