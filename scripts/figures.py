#!/usr/bin/env python3
"""Print figures of how easily code is found and followed here, or hold them to committed ones.

``python scripts/figures.py`` counts modules and lines in sources, and the files whose functions
three commands call. ``--check`` compares with ``scripts/figures.toml`` and fails if a figure is
worse; ``--write`` writes that file. A change that needs a worse figure writes it, and its commit
states the reason. ``--details`` names the modules that are counted as small.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "machtrace"
COMMITTED = ROOT / "scripts" / "figures.toml"
MIN_LINES = 60
"""Lines of a module that is not counted as short."""
MIN_LINES_OF_PART = 100
"""Lines of a module with a single importer that is not counted as a fragment."""
MARGIN = 4
"""Files that a command may enter on one machine and not on another, whose libraries differ."""
COMMANDS = {
    "files entered by backtrace PID": ["backtrace", "{pid}"],
    "files entered by symbolicate REPORT": ["symbolicate", "docs/samples/deadlock.txt"],
    "files entered by audit scan APP": ["audit", "scan", "src/machtrace/targets/emulator/audited"],
}

# Runs a command, and prints the files of the package that have a function which was called.
_PROFILED = """
import json, sys, threading
import machtrace
from machtrace.cli.main import main

home = machtrace.__file__.rpartition("__init__")[0]
files = set()

def profile(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_flags & 2 and code.co_filename.startswith(home):
        files.add(code.co_filename)

sys.argv[0] = "machtrace"
threading.setprofile(profile), sys.setprofile(profile)
try:
    main()
except SystemExit:
    pass
finally:
    sys.setprofile(None)
    print(json.dumps(sorted(files)), file=sys.stderr)
"""


class Package:
    """The modules of ``src/machtrace``, as they are in the wheel."""

    @cached_property
    def modules(self) -> dict[str, Path]:
        """Files by the full names of modules; packages by theirs."""
        modules = {}
        for path in sorted(PACKAGE.rglob("*.py")):
            place = path.relative_to(PACKAGE.parent)
            is_package = path.stem == "__init__"
            parts = place.parent.parts if is_package else place.with_suffix("").parts
            modules[".".join(parts)] = path
        return modules

    @cached_property
    def _texts(self) -> dict[str, str]:
        return {name: path.read_text(encoding="utf-8") for name, path in self.modules.items()}

    @cached_property
    def lines(self) -> dict[str, int]:
        """Lines of each module."""
        return {name: len(text.splitlines()) for name, text in self._texts.items()}

    def largest_folder(self) -> int:
        """Return the number of modules of the folder with most, subfolders not counted."""
        return Counter(path.parent for path in self.modules.values()).most_common(1)[0][1]

    def short(self) -> list[str]:
        """Return the modules that are shorter than a module should be."""
        return [name for name, lines in self.lines.items() if lines < MIN_LINES]

    def fragments(self) -> list[str]:
        """Return the small modules that a single other one imports."""
        importers = Counter(
            imported
            for name, text in self._texts.items()
            for imported in self._imported(ast.parse(text)) - {name}
        )
        return [
            name
            for name, lines in self.lines.items()
            if importers[name] == 1 and lines < MIN_LINES_OF_PART
        ]

    def _imported(self, tree: ast.Module) -> set[str]:
        names: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    name = f"{node.module}.{alias.name}"
                    names.add(name if name in self.modules else str(node.module))
        return names & self.modules.keys()


def static_figures(package: Package) -> dict[str, int]:
    """Return the figures that are counted in sources."""
    native = [path for path in (ROOT / "native").rglob("*") if path.suffix in {".c", ".h"}]
    return {
        "modules in the wheel": len(package.modules),
        "Python lines in the wheel": sum(package.lines.values()),
        "lines of the longest module": max(package.lines.values()),
        "modules in the largest folder": package.largest_folder(),
        "modules under 60 lines": len(package.short()),
        "modules under 100 lines with one importer": len(package.fragments()),
        "C lines in native/": sum(
            len(path.read_text(encoding="utf-8").splitlines()) for path in native
        ),
    }


def run_figures() -> dict[str, int]:
    """Return the files that commands enter, each with an empty cache.

    Raises:
        subprocess.SubprocessError: a command cannot be run.
        ValueError: the package is not installed for this interpreter.
    """
    sleeping = [sys.executable, "-c", "print(flush=True); import time; time.sleep(600)"]
    figures = {}
    with (
        tempfile.TemporaryDirectory(prefix="figures-") as folder,
        subprocess.Popen(sleeping, stdout=subprocess.PIPE) as process,  # noqa: S603 - ourselves
    ):
        for _ in process.stdout or ():
            break  # it sleeps
        try:
            for label, command in COMMANDS.items():
                done = subprocess.run(  # noqa: S603 - ourselves
                    [
                        *(sys.executable, "-c", _PROFILED),
                        *(part.format(pid=process.pid) for part in command),
                    ],
                    cwd=ROOT,
                    env={**os.environ, "MACHTRACE_CACHE": f"{folder}/{label}"},
                    capture_output=True,
                    text=True,
                    timeout=300,
                    check=False,
                )
                figures[label] = len(json.loads(done.stderr.splitlines()[-1]))
        finally:
            process.kill()
    return figures


def check(figures: dict[str, int]) -> int:
    """Print each figure that is worse than the committed one; return 1 if there is any."""
    committed = tomllib.loads(COMMITTED.read_text(encoding="utf-8"))
    worse = {
        name: value
        for name, value in figures.items()
        if value > committed[name] + (MARGIN if name in COMMANDS else 0)
    }
    for name, value in worse.items():
        sys.stderr.write(f"{name}: {value:,}, committed {committed[name]:,}\n")
    if worse:
        sys.stderr.write(
            "Make the tree smaller; or run scripts/figures.py --write, and state the reason in the "
            "commit\n"
        )
    return int(bool(worse))


def main() -> int:
    """Print, check or write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail if a figure got worse")
    parser.add_argument("--write", action="store_true", help="commit the figures as they are")
    parser.add_argument("--details", action="store_true", help="name the small modules")
    arguments = parser.parse_args()
    package = Package()
    figures = static_figures(package) | run_figures()
    if arguments.check:
        return check(figures)
    for name, value in figures.items():
        sys.stdout.write(f"{name:<46}{value:>8,}\n")
    if arguments.write:
        lines = (f"{json.dumps(name)} = {value}\n" for name, value in figures.items())
        COMMITTED.write_text("".join(lines), encoding="utf-8")
    if arguments.details:
        for title, names in (
            ("under 60 lines", package.short()),
            ("under 100 lines with one importer", package.fragments()),
        ):
            sys.stdout.write(f"\n{title}:\n" + "".join(f"  {name}\n" for name in names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
