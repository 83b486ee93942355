"""Stripped twins of small Mach-O libraries, and the symbols that llvm finds in them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.compilers.twins import peer_tool, twins

__all__ = ["true_symbols", "twins"]


@pytest.fixture(scope="session")
def true_symbols() -> Callable[[Path], dict[int, set[str]]]:
    """Return the code symbols that ``llvm-nm`` prints for a file: names by Svma."""
    program = peer_tool("llvm-nm")

    def symbols(path: Path) -> dict[int, set[str]]:
        printed = subprocess.run(
            [program, "--defined-only", str(path)],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        names: dict[int, set[str]] = {}
        for line in printed.splitlines():
            value, kind, name = line.split(" ", 2)
            if kind in "tT":
                names.setdefault(int(value, 16), set()).add(name)
        return names

    return symbols
