"""Calls of watched names by llvm-objdump's comments: a second opinion on a file's call sites.

Nothing of machtrace's is used but the rules. ``llvm-objdump --macho -d`` resolves stubs: a
branch's comment is ``symbol stub for: _stat``.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from machtrace.audit.rules import RuleSet

_LINE = re.compile(r"^ *([0-9a-f]+):\s+(?:bl?|callq?|jmpq?)\s.*(?:;|##) symbol stub for: (\S+)")


def disassembly(tool: str, path: Path, arch: str) -> Iterator[str]:
    """Yield the lines of a slice's disassembly."""
    command = [tool, "--macho", "--arch", arch, "--no-show-raw-insn", "-d", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield line.decode("utf-8", "replace")


def function_calls(tool: str, path: Path, arch: str, rules: RuleSet) -> set[tuple[int, str]]:
    """Return the address and the rule of each branch to a watched function's stub."""
    calls: set[tuple[int, str]] = set()
    for line in disassembly(tool, path, arch):
        match = _LINE.match(line)
        rule = None if match is None else rules.of_symbol(match[2])
        if match is not None and rule is not None:
            calls.add((int(match[1], 16), rule.watch))
    return calls


def imported_names(tool: str, path: Path, arch: str) -> set[str]:
    """Return the undefined symbols of a slice, by llvm-nm."""
    done = subprocess.run(
        [tool, "--arch", arch, "--undefined-only", "--format=just-symbols", str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())
