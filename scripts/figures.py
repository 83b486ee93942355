#!/usr/bin/env python3
"""Print figures that measure how easily code is found and followed in a checkout.

``python scripts/figures.py [CHECKOUT] [--wheel FILE] [--static]`` counts modules, lines and imports
by reading sources, and what a capture and a lookup run by profiling them in child processes. These
take the package in ``CHECKOUT/src`` where its extensions are built in place, else the installed one
of ``--python``, by default ``CHECKOUT/.venv``'s.

``BASELINE``, printed in brackets, has the figures of commit dc73bb0, before the modules were
regrouped. They were taken by hand: some differ a little from what this prints for that commit.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from zipfile import ZipFile

BASELINE = {
    "modules in the wheel": 789,
    "modules in the largest folder": 109,
    "modules under 60 lines": 154,
    "modules under 100 lines with one importer": 113,
    "Python lines in the wheel": 99_700,
    "C lines": 10_500,
    "places that spell ELF's magic": 10,
    "files entered by backtraces(pid)": 158,
    "files entered by a lookup of two offsets": 101,
    "searches for an image's files by one address": 4,
}
SHORT, SMALL = 60, 100
"""Lines that a module has at least, and that one with a single importer has at least."""
NO_PART_OF_THE_PACKAGE = "testing"
"""A sub-package that was in the wheel once, and is not judged by the size of its modules."""
SEARCHES = ("machtrace.images.candidates:given", "machtrace.symbolicate.candidates:given")
"""Functions called once for each search for an image's files: module and qualified name."""
PROGRAMS = (
    "src/machtrace/targets/emulator/demo.macho",
    "src/machtrace/target/emulated_demo/demo.macho",
)
"""The image that is looked up in: where it is now, and where it was."""
OFFSETS = (0x19F4, 0x256C)

_MAGIC = b"\x7fELF"
_MAGIC_NUMBERS = {int.from_bytes(_MAGIC, order) for order in ("little", "big")}

# A program without debug information: there is nothing to build an index from.
_PROGRAM = """
#include <stdio.h>
#include <unistd.h>
__attribute__((noinline)) static int inner(int depth)
{
    if (depth == 0) {
        puts("ready");
        fflush(stdout);
        return pause();
    }
    return inner(depth - 1) + 1;
}
int main(void) { return inner(5); }
"""
_SLEEPING = "import time; print('ready', flush=True); time.sleep(600)"

# Runs one of the functions below by name, and prints which code of the package it entered. Modules'
# own code does not count, class bodies do: so the figures of BASELINE were counted.
_PROFILED = """
import json, subprocess, sys, threading
import machtrace

home = machtrace.__file__.rpartition("__init__")[0]
entered = {}

def profile(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(home) and code.co_name != "<module>":
        at = code.co_filename, code.co_qualname
        entered[at] = entered.get(at, (0, 0))[0] + 1, code.co_flags & 2

def capture(*command):
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()
            threading.setprofile(profile), sys.setprofile(profile)
            assert machtrace.backtraces(process.pid)
            sys.setprofile(None)
        finally:
            process.kill()

def lookup(image, columns, *offsets):
    threading.setprofile(profile), sys.setprofile(profile)
    found = machtrace.Symbolicator().lookup(image, list(map(int, offsets)))
    for column in columns.split():
        value = getattr(found, column)
        assert len(value() if callable(value) else value) == len(offsets)
    sys.setprofile(None)

globals()[sys.argv[1]](*sys.argv[2:])
print(json.dumps([home, [[*at, *count] for at, count in entered.items()]]))
"""


class FiguresError(Exception):
    """A figure cannot be taken here; the message has the reason."""


# --- figures from sources ---


class Package:
    """The package ``machtrace`` of a checkout, as far as a wheel would hold it."""

    def __init__(self, checkout: Path) -> None:
        self._checkout = checkout
        self._source = checkout / "src"
        if not (self._source / "machtrace").is_dir():
            raise FiguresError(f"no src/machtrace in {checkout}")

    @cached_property
    def modules(self) -> dict[str, Path]:
        """Their files, by full name; packages by theirs."""
        settings = tomllib.loads((self._checkout / "pyproject.toml").read_text(encoding="utf-8"))
        wheel = settings.get("tool", {}).get("scikit-build", {}).get("wheel", {})
        modules: dict[str, Path] = {}
        for path in sorted((self._source / "machtrace").rglob("*.py")):
            place = path.relative_to(self._source)
            if not any(fnmatch(place.as_posix(), pattern) for pattern in wheel.get("exclude", ())):
                parts = (
                    place.parent.parts if path.stem == "__init__" else place.with_suffix("").parts
                )
                modules[".".join(parts)] = path
        return modules

    @cached_property
    def lines(self) -> dict[str, int]:
        """How many each module has."""
        return {name: len(text.splitlines()) for name, text in self._texts.items()}

    @cached_property
    def _texts(self) -> dict[str, str]:
        return {name: path.read_text(encoding="utf-8") for name, path in self.modules.items()}

    @cached_property
    def _trees(self) -> dict[str, ast.Module]:
        return {name: ast.parse(text) for name, text in self._texts.items()}

    def is_in(self, folder: Path) -> bool:
        """Return whether a folder ``machtrace`` has the same modules."""
        return all(
            copy.is_file() and copy.read_text(encoding="utf-8") == self._texts[name]
            for name, path in self.modules.items()
            for copy in (folder.parent / path.relative_to(self._source),)
        )

    @property
    def _judged(self) -> Iterator[str]:
        return (name for name in self.modules if name.split(".")[1:2] != [NO_PART_OF_THE_PACKAGE])

    def largest_folder(self) -> tuple[str, int]:
        """Return the folder with most modules, not counting subfolders."""
        folders = Counter(path.parent for path in self.modules.values())
        folder, count = folders.most_common(1)[0]
        return folder.relative_to(self._source).as_posix(), count

    def short(self) -> list[str]:
        """Modules that are shorter than a module should be."""
        return [name for name in self._judged if self.lines[name] < SHORT]

    def fragments(self) -> list[str]:
        """Small modules that a single other one imports, wherever and for whatever it does."""
        importers = Counter(
            imported
            for name, tree in self._trees.items()
            for imported in self._imported(tree) - {name}
        )
        return [name for name in self._judged if importers[name] == 1 and self.lines[name] < SMALL]

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

    def elf_magics(self) -> list[str]:
        """Return where ELF's magic number is spelled: file and line."""
        return [
            f"{self.modules[name].relative_to(self._checkout)}:{node.lineno}"
            for name in self._judged
            for node in ast.walk(self._trees[name])
            if isinstance(node, ast.Constant) and _is_elf_magic(node.value)
        ]

    def c_lines(self) -> int:
        """Lines of the extensions' sources and headers."""
        folders = (self._checkout / "native", self._source / "machtrace" / "_native")
        return sum(
            len(path.read_text(encoding="utf-8").splitlines())
            for folder in folders
            for path in folder.rglob("*.[ch]")
        )


def _is_elf_magic(value: object) -> bool:
    """Return whether a constant is ELF's magic as bytes, text, hexadecimal text or a number."""
    match value:
        case bytes():
            return value.startswith((_MAGIC, _MAGIC[1:]))
        case str():
            return value.startswith(_MAGIC.decode()) or value.lower() == _MAGIC.hex()
        case int():
            return value in _MAGIC_NUMBERS
        case _:
            return False


def wheel_figures(path: Path) -> dict[str, object]:
    """Return the figures of a built wheel."""
    with ZipFile(path) as archive:
        names = archive.namelist()
        modules = [name for name in names if name.endswith(".py")]
        lines = sum(len(archive.read(name).splitlines()) for name in modules)
    figures: dict[str, object] = {
        f"modules in {path.name}": len(modules),
        f"Python lines in {path.name}": lines,
    }
    sources = [name for name in names if name.endswith((".c", ".h", ".m", ".S"))]
    figures[f"C, Objective-C and assembly files in {path.name}"] = len(sources)
    return figures


# --- figures from runs ---


@dataclass(frozen=True, slots=True)
class Run:
    """Calls of the package's functions in a run."""

    home: str
    """The folder of the package that ran."""
    calls: Mapping[tuple[str, str], tuple[int, bool]]
    """By file and qualified name: how often, and whether that is a function."""

    @property
    def files(self) -> int:
        """Files with code that ran, besides that of modules."""
        return len({file for file, _ in self.calls})

    @property
    def files_of_functions(self) -> int:
        """Files with a function that was called."""
        return len({file for (file, _), (_, is_function) in self.calls.items() if is_function})

    def count(self, functions: Iterable[str]) -> int:
        """Return how often functions were called, given as ``module:qualified.name``."""
        calls = 0
        for function in functions:
            module, _, name = function.partition(":")
            base = self.home + module.removeprefix("machtrace.").replace(".", os.sep)
            for file in (f"{base}.py", f"{base}{os.sep}__init__.py"):
                calls += self.calls.get((file, name), (0, False))[0]
        return calls


class Profiler:
    """Runs the package in processes of their own, each with an empty cache."""

    def __init__(self, checkout: Path, python: str | None) -> None:
        source = checkout / "src"
        own = checkout / ".venv" / "bin" / "python"
        self._checkout = checkout
        self._python = python or (str(own) if own.exists() else sys.executable)
        self._environment = dict(os.environ)
        if any((source / "machtrace" / "_native").glob("*.so")):
            self._environment["PYTHONPATH"] = str(source)

    def capture(self, folder: Path) -> Run:
        """``machtrace.backtraces`` of a small C program, or of a Python that sleeps."""
        compiler = shutil.which("cc")
        command = [self._python, "-c", _SLEEPING]
        if compiler is not None:
            source, program = folder / "program.c", folder / "program"
            source.write_text(_PROGRAM, encoding="utf-8")
            subprocess.run(  # noqa: S603 - the system's compiler
                [compiler, "-O1", "-fno-optimize-sibling-calls", str(source), "-o", str(program)],
                check=True,
            )
            command = [str(program)]
        return self._run(folder, "capture", *command)

    def lookup(self, folder: Path, columns: str, offsets: Iterable[int]) -> Run:
        """``Symbolicator.lookup``, and ``columns`` of what it returns."""
        image = next(filter(Path.exists, map(self._checkout.joinpath, PROGRAMS)), None)
        if image is None:
            raise FiguresError(f"none of {', '.join(PROGRAMS)} in {self._checkout}")
        return self._run(folder, "lookup", str(image), columns, *map(str, offsets))

    def _run(self, folder: Path, *arguments: str) -> Run:
        done = subprocess.run(  # noqa: S603 - the checkout's interpreter
            [self._python, "-c", _PROFILED, *arguments],
            cwd=folder,
            env={**self._environment, "MACHTRACE_CACHE": str(folder / arguments[0])},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode:
            last = done.stderr.strip().rpartition("\n")[2]
            raise FiguresError(f"{arguments[0]} by {self._python} failed: {last}")
        home, calls = json.loads(done.stdout)
        return Run(home, {(file, name): (n, bool(flag)) for file, name, n, flag in calls})


# --- printing ---


def static_figures(package: Package) -> dict[str, object]:
    """Return the figures that are counted in sources."""
    folder, count = package.largest_folder()
    return {
        "modules in the wheel": len(package.modules),
        "modules in the largest folder": count,
        "  that folder": folder,
        "modules under 60 lines": len(package.short()),
        "modules under 100 lines with one importer": len(package.fragments()),
        "Python lines in the wheel": sum(package.lines.values()),
        "C lines": package.c_lines(),
        "places that spell ELF's magic": len(package.elf_magics()),
    }


def run_figures(
    package: Package, profiler: Profiler, functions: Iterable[str]
) -> dict[str, object]:
    """Return the figures that are counted in runs."""
    with tempfile.TemporaryDirectory(prefix="figures-") as name:
        folder = Path(name)
        capture = profiler.capture(folder)
        if not package.is_in(Path(capture.home)):
            raise FiguresError(
                f"what would run is not this checkout's: {capture.home}; "
                "install that, build its extensions in place, or name its --python"
            )
        lookup = profiler.lookup(folder, "names", OFFSETS)
        naming = profiler.lookup(folder, "names lines", OFFSETS[:1])
    return {
        "files entered by backtraces(pid)": capture.files,
        "  of functions that were called": capture.files_of_functions,
        "files entered by a lookup of two offsets": lookup.files,
        "  of functions called in the lookup": lookup.files_of_functions,
        "searches for an image's files by one address": naming.count(functions) or "not seen",
        "  the package that ran": capture.home,
    }


def show(figures: Mapping[str, object]) -> None:
    """Write a line for each figure, with what it was before."""
    for label, value in figures.items():
        shown = f"{value:>8,}" if isinstance(value, int) else str(value)
        before = f"   ({BASELINE[label]:,})" if label in BASELINE else ""
        sys.stdout.write(f"{label:<46} {shown}{before}\n")


def main() -> int:
    """Print the requested figures; the status is 1 where a figure could not be taken."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("checkout", type=Path, nargs="?", default=Path.cwd())
    parser.add_argument("--wheel", type=Path, help="a built wheel to count in, too")
    parser.add_argument("--static", action="store_true", help="run nothing")
    parser.add_argument("--details", action="store_true", help="name the modules and places")
    parser.add_argument("--python", help="the interpreter that has the package")
    parser.add_argument(
        "--search-function",
        action="append",
        metavar="MODULE:NAME",
        help=f"what is called once for each search; default: {' and '.join(SEARCHES)}",
    )
    arguments = parser.parse_args()
    checkout = arguments.checkout.resolve()
    try:
        package = Package(checkout)
        show(static_figures(package))
        if arguments.wheel:
            show(wheel_figures(arguments.wheel))
        if not arguments.static:
            functions = arguments.search_function or SEARCHES
            show(run_figures(package, Profiler(checkout, arguments.python), functions))
    except (FiguresError, OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"figures: {error}\n")
        return 1
    if arguments.details:
        for title, names in (
            ("under 60 lines", package.short()),
            ("under 100 lines with one importer", package.fragments()),
            ("ELF's magic", package.elf_magics()),
        ):
            sys.stdout.write(f"\n{title}:\n" + "".join(f"  {name}\n" for name in names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
