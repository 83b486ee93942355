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
)
_LINUX_ONLY = frozenset({"_ptrace"})

_LIBRARIES = (
    _Library("numpy", "numpy", "", "tables in bulk"),
    _Library("symbolic", "symbolic", "", "source lines and inlined calls"),
    _Library("unicorn", "unicorn", "emulator", "the target emulated:demo"),
    _Library("frida", "frida", "frida", "targets frida://"),
    _Library("pymobiledevice3", "pymobiledevice3", "device", "targets device://, iOS devices"),
    _Library("pyarrow", "pyarrow", "arrow", "columns for Arrow"),
)

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
"""Versions that Debian puts behind the names of LLVM's programs."""


def extension(one: _Extension) -> Finding:
    """Whether a C extension is built, and can be loaded."""
    try:
        import_module(f"machtrace._native.{one.name}")
    except ImportError as error:
        remedy = "install machtrace from a wheel, or where there is a C compiler"
        return Finding(one.state, f"{one.without} ({error})", remedy)
    return Finding(State.OK, "loaded")


def library(one: _Library) -> Finding:
    """Whether a library is there and can be imported, and which."""
    command = f"pip install 'machtrace[{one.extra}]'" if one.extra else f"pip install {one.package}"
    try:
        import_module(one.module)
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name in (one.module, None)
        why = "not installed" if absent else f"cannot be imported ({error})"
        return Finding(State.MISSING, f"{why}; it gives {one.gives}", command)
    except Exception as error:  # noqa: BLE001 - whatever a broken library does at its import
        text = f"cannot be imported ({error}); it gives {one.gives}"
        return Finding(State.MISSING, text, command)
    try:
        number = version(one.package)
    except PackageNotFoundError:
        number = "of an unknown version"
    return Finding(State.OK, f"{number}: {one.gives}")


def peers(one: _Peers) -> Finding:
    """Which programs that work together with this one are there."""
    found = [program for program in one.programs if _path(program)]
    if found:
        return Finding(State.OK, f"{', '.join(found)}: {one.use}")
    return Finding(State.MISSING, f"none of {', '.join(one.programs)}; {one.use}", one.remedy)


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
        Check("package", f"extension {one.name}", partial(extension, one))
        for one in _EXTENSIONS
        if sys.platform == "linux" or one.name not in _LINUX_ONLY
    ),
    *(
        Check(
            "package",
            f"extra {one.extra} ({one.package})" if one.extra else one.package,
            partial(library, one),
            is_needed=not one.extra,
        )
        for one in _LIBRARIES
    ),
    *(Check("beside it", one.name, partial(peers, one)) for one in _PEERS),
)


_TOPIC = "symbols"


def debug_files() -> Finding:
    """Where the system has debug files."""
    from machtrace.images.search_path import DEBUG_ROOTS, debuginfod_cache

    places = (*DEBUG_ROOTS, debuginfod_cache())
    found = [place for place in places if os.path.isdir(place)]  # noqa: PTH112
    if found:
        return Finding(State.OK, f"looked for in {', '.join(found)}, and beside binaries")
    return Finding(
        State.LIMITED,
        f"none of {', '.join(places)} is there: the system's libraries have names, but no lines",
        "install debug packages of the libraries, or give files with --search",
    )


def store() -> Finding:
    """The symbol store."""
    from machtrace.images.store_layout import STORE_VARIABLE, default_store_path

    path = default_store_path()
    if path.is_dir():
        return Finding(State.OK, f"{path} ({STORE_VARIABLE} chooses another)")
    return Finding(State.OK, f"none yet; machtrace symbols add makes it at {path}")


def indices() -> Finding:
    """Check whether indices of debug information can be cached."""
    from machtrace.lines.index_cache import CACHE_VARIABLE, default_index_folder

    folder = default_index_folder()
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    error = _write_error(there)
    if error is None:
        return Finding(State.OK, f"cached in {folder}")
    return Finding(
        State.LIMITED,
        f"cannot be cached in {folder} ({error}): lines take seconds every time",
        f"set {CACHE_VARIABLE} to a folder that can be written",
    )


def _write_error(folder: Path) -> str | None:
    """Why nothing can be written in ``folder``, which is tried."""
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
