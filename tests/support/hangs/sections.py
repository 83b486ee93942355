"""Sections of the page: what was measured, with the figures of the goals, each stored as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.support.hangs.scoring import percentile


@dataclass(frozen=True, slots=True)
class Figure:
    """The figure that was reached of a goal."""

    text: str
    is_reached: bool | None = None
    """None if this figure decides nothing."""


@dataclass(frozen=True, slots=True)
class Section:
    """One measurement."""

    name: str
    title: str
    command: str
    figures: Mapping[str, Figure] = field(default_factory=dict)
    """By the goal's number."""
    lines: Sequence[str] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    """Counts that another section shows."""
    stamp: str = ""
    """Date, seed, revision and load."""

    def save(self, folder: Path) -> None:
        """Store it, so that the page can be written again."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.name}.json").write_text(json.dumps(asdict(self), indent=1) + "\n")


def load_section(folder: Path, name: str) -> Section | None:
    """Return a stored section, or None if it was not measured, or by an older lab."""
    path = folder / f"{name}.json"
    if not path.exists():
        return None
    values = json.loads(path.read_text())
    try:
        figures = {number: Figure(**figure) for number, figure in values.pop("figures").items()}
        return Section(**values, figures=figures)
    except TypeError:
        return None


class Stamp:
    """The circumstances of a measurement, from its beginning on."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._load = os.getloadavg()[0]
        self._began = time.monotonic()

    def __str__(self) -> str:
        revision = subprocess.run(
            ["git", "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip()
        kernel = os.uname()
        return (
            f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC, seed {self._seed}, revision"
            f" {revision or 'unknown'}, {time.monotonic() - self._began:.0f} s;"
            f" {kernel.sysname} {kernel.release}, {os.cpu_count()} processors, load average"
            f" {self._load:.1f} before, {os.getloadavg()[0]:.1f} after"
        )


def share(count: int, total: int) -> str:
    """Return a percentage, rounded against the watcher's favour: 100 means all."""
    if total == 0:
        return "none"
    return f"{count * 10000 // total / 100:.2f} % ({count:,} of {total:,})"


def share_up(count: int, total: int) -> str:
    """Return a percentage that is to be low, rounded up."""
    if total == 0:
        return "none"
    return f"{-(-count * 10000 // total) / 100:.2f} % ({count:,} of {total:,})"


def spread(values: Iterable[float]) -> str:
    """Return the median, the 99th percentile and the maximum."""
    ordered = sorted(values)
    if not ordered:
        return "–"
    return " / ".join(f"{percentile(ordered, percent):.1f}" for percent in (50, 99, 100))
