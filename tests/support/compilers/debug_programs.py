"""Small programs with debug information, from sources whose lines are known.

A line that is to be found again ends with a comment of capital letters: ``// CALL``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from machtrace.formats.elf.contents import ElfFileContents
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.images.debug_file import DebugFile, FoundBy
from machtrace.images.open_file import open_image_file

DSYMUTIL = next(
    (
        found
        for name in ("dsymutil-19", "llvm-dsymutil", "dsymutil")
        if (found := shutil.which(name))
    ),
    None,
)
"""The linker of a program's debug information into a dSYM; None if not installed."""

INLINED_C = """\
volatile int sink;

static inline __attribute__((always_inline)) int leaf(int n) {
  sink = n; // LEAF
  return n * 3;
}

static inline __attribute__((always_inline)) int middle(int n) {
  int first = leaf(n + 1); // FIRST
  return first + leaf(n + 2); // SECOND
}

__attribute__((noinline, cold)) int seldom(int n) {
  sink = -n; // SELDOM
  return -1;
}

__attribute__((noinline)) int outer(int n) {
  if (__builtin_expect(n < 0, 0))
    return seldom(n); // SELDOM_CALL
  return middle(n) + 1; // OUTER
}

int main(int count, char **words) {
  return outer(count); // MAIN
}
"""
"""``outer`` has ``leaf`` inlined twice, through ``middle``."""


def line_of(source: str, mark: str) -> int:
    """Return the number of the line that ends with ``// mark``.

    Raises:
        ValueError: there is none, or there are several.
    """
    marked = re.compile(rf"// {mark}$")
    (number,) = (
        number for number, line in enumerate(source.splitlines(), 1) if marked.search(line)
    )
    return number


def make_dsym(program: Path) -> Path:
    """Gather the debug information of a Mach-O ``program`` from its object files.

    Returns:
        The file with the DWARF, in the bundle beside the program.

    Raises:
        FileNotFoundError, subprocess.CalledProcessError: dsymutil is not installed, or failed.
    """
    if DSYMUTIL is None:
        raise FileNotFoundError("dsymutil")
    subprocess.run([DSYMUTIL, str(program)], check=True, capture_output=True)
    return program.with_name(f"{program.name}.dSYM") / "Contents/Resources/DWARF" / program.name


def debug_file(path: Path) -> DebugFile:
    """Return a thin file that is known to have debug information."""
    data = open_image_file(path)
    is_elf = bytes(data[:4]) == b"\x7fELF"
    contents = ElfFileContents(data, str(path)) if is_elf else MachOFileContents(data, str(path))
    return DebugFile(contents=contents, data=data, path=str(path), found_by=FoundBy.GIVEN)
