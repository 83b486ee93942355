"""Checks of the installation: extensions, libraries, programs, and folders of symbols."""

from __future__ import annotations

import os
import shutil
import sys
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import NamedTuple

from machtrace.cli.doctor.findings import Check, Finding, State
from machtrace.errors import pip_install


class _Extension(NamedTuple):
    name: str
    without: str
    """The effect of its absence."""
    state: State
    """The state without it."""


class _Library(NamedTuple):
    package: str
    module: str
    extra: str
    """Empty where it comes with the package."""
    gives: str


class _Peers(NamedTuple):
    name: str
    programs: tuple[str, ...]
    use: str
    remedy: str


_EXTENSIONS = (
    _Extension("_ptrace", "other processes cannot be captured", State.MISSING),
    _Extension("_inprocess", "threads of this process cannot be captured", State.MISSING),
    _Extension("_walk", "stacks are walked more slowly", State.LIMITED),
    _Extension("_ranges", "names are looked up more slowly", State.LIMITED),
    _Extension("_names", "C++ names are read more slowly", State.LIMITED),
    _Extension("_stack_tree", "stacks are stored in warehouses more slowly", State.LIMITED),
)
_LINUX_ONLY = frozenset({"_ptrace"})

_LIBRARIES = (
    _Library("numpy", "numpy", "", "tables in bulk"),
    _Library("symbolic", "symbolic", "", "source lines and inlined calls"),
    _Library("unicorn", "unicorn", "emulator", "the target emulated:demo"),
    _Library("frida", "frida", "frida", "targets frida://"),
    _Library("pymobiledevice3", "pymobiledevice3", "device", "targets device://, iOS devices"),
    _Library("pyarrow", "pyarrow", "arrow", "columns for Arrow"),
    _Library("duckdb", "duckdb", "warehouse", "SQL over warehouses"),
)

_TARGETS = {
    "_ptrace": "process",
    "_inprocess": "self",
    "emulator": "emulated",
    "arrow": None,
    "warehouse": None,
}
"""The kinds of targets that need an extension or extra."""

_PEERS = (
    _Peers(
        "debug stubs",
        ("lldb-server", "gdbserver", "qemu-aarch64", "qemu-x86_64", "debugserver"),
        "targets gdb:// of this machine",
        "install gdbserver, lldb or qemu-user by the system's package manager",
    ),
    _Peers(
        "debuggers",
        ("lldb", "gdb"),
        "to look further into saved cores",
        "install gdb or lldb by the system's package manager",
    ),
)
_NEWEST_SUFFIX = range(25, 10, -1)
"""Versions that Debian appends to the names of LLVM's programs."""


def extension(row: _Extension) -> Finding:
    """Check whether a C extension is built and can be loaded."""
    try:
        import_module(f"machtrace._native.{row.name}")
    except ImportError as error:
        remedy = "install machtrace from a wheel, or where there is a C compiler"
        return Finding(row.state, f"{row.without} ({error})", remedy)
    return Finding(State.OK, "loaded")


def library(row: _Library) -> Finding:
    """Check whether a library can be imported, and its version."""
    command = pip_install(f"machtrace[{row.extra}]" if row.extra else row.package)
    try:
        import_module(row.module)
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name in (row.module, None)
        why = "not installed" if absent else f"cannot be imported ({error})"
        return Finding(State.MISSING, f"{why}; it gives {row.gives}", command)
    except Exception as error:  # noqa: BLE001 - a broken library may raise anything at its import
        text = f"cannot be imported ({error}); it gives {row.gives}"
        return Finding(State.MISSING, text, command)
    try:
        number = version(row.package)
    except PackageNotFoundError:
        number = "of an unknown version"
    return Finding(State.OK, f"{number}: {row.gives}")


def peers(row: _Peers) -> Finding:
    """Check which programs that work together with this one are installed."""
    installed = [program for program in row.programs if _path(program)]
    if installed:
        return Finding(State.OK, f"{', '.join(installed)}: {row.use}")
    return Finding(State.MISSING, f"none of {', '.join(row.programs)}; {row.use}", row.remedy)


def _path(program: str) -> str | None:
    names = (program, *(f"{program}-{number}" for number in _NEWEST_SUFFIX))
    return next((path for name in names if (path := shutil.which(name))), None)


def interpreter() -> Finding:
    """Return the interpreter's version and system."""
    implementation = sys.implementation.name
    text = f"{implementation} {sys.version.split()[0]}, {sys.platform}, {sys.executable}"
    if implementation != "cpython":
        return Finding(State.LIMITED, text, "use CPython for extensions and Python functions")
    return Finding(State.OK, text)


CHECKS = (
    Check("package", "interpreter", interpreter),
    *(
        Check(
            "package",
            f"extension {row.name}",
            partial(extension, row),
            targets=_TARGETS.get(row.name, ""),
        )
        for row in _EXTENSIONS
        if sys.platform == "linux" or row.name not in _LINUX_ONLY
    ),
    *(
        Check(
            "package",
            f"extra {row.extra} ({row.package})" if row.extra else row.package,
            partial(library, row),
            is_needed=not row.extra,
            targets=_TARGETS.get(row.extra, row.extra),
        )
        for row in _LIBRARIES
    ),
    *(Check("beside it", row.name, partial(peers, row), targets=None) for row in _PEERS),
)


_TOPIC = "symbols"


def debug_files() -> Finding:
    """Check which folders of debug files the system has."""
    from machtrace.images.search_path import DEBUG_ROOTS, debuginfod_cache

    folders = (*DEBUG_ROOTS, debuginfod_cache())
    present = [folder for folder in folders if os.path.isdir(folder)]  # noqa: PTH112
    if present:
        return Finding(State.OK, f"searched for in {', '.join(present)}, and beside binaries")
    return Finding(
        State.LIMITED,
        f"none of {', '.join(folders)} exists: the system's libraries have names, but no lines",
        "install debug packages of the libraries, or give files with --search",
    )


def store() -> Finding:
    """Check where the symbol store is."""
    from machtrace.images.store_layout import STORE_VARIABLE, default_store_path

    path = default_store_path()
    if path.is_dir():
        return Finding(State.OK, f"{path} ({STORE_VARIABLE} chooses another)")
    return Finding(State.OK, f"none yet; machtrace symbols add makes it at {path}")


def indices() -> Finding:
    """Check whether indices of debug information can be cached."""
    from machtrace.lines.index_cache import CACHE_VARIABLE, default_index_folder

    folder = default_index_folder()
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    error = _write_error(existing)
    if error is None:
        return Finding(State.OK, f"cached in {folder}")
    return Finding(
        State.LIMITED,
        f"cannot be cached in {folder} ({error}): lines take seconds every time",
        f"set {CACHE_VARIABLE} to a folder that can be written",
    )


def _write_error(folder: Path) -> str | None:
    """Try to write to ``folder``, and return the error, or None."""
    try:
        with NamedTemporaryFile(dir=folder, prefix="machtrace-doctor-"):
            return None
    except OSError as error:
        return error.strerror or str(error)


FILE_CHECKS = (
    Check(_TOPIC, "debug files", debug_files),
    Check(_TOPIC, "symbol store", store),
    Check(_TOPIC, "debug indices", indices),
)
