"""Real programs for the lab: a compressor, two interpreters and a database.

Each is linked with a small C library of the lab's own, and a driver that checks what it does.

C sources of real programs, from the source distributions of Python packages.

They are downloaded by pip, checked by hash, and stored in a directory that the caller names.
Nothing of them is part of this project.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tests.support.lab.programs import Program


@dataclass(frozen=True, slots=True)
class SourcePackage:
    """One release of a package."""

    name: str
    version: str
    sha256: str
    """The hash of its source distribution."""
    directory: str
    """The folder that its archive unpacks to."""

    @property
    def requirement(self) -> str:
        """As a line of a requirements file."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"

    def unpacked(self, cache: Path) -> Path:
        """Return the folder of its fetched sources."""
        return cache / self.directory


PACKAGES = {
    package.name: package
    for package in (
        SourcePackage(
            "zstandard",
            "0.25.0",
            "7713e1179d162cf5c7906da876ec2ccb9c3a9dcbdffef0cc7f70c3667a205f0b",
            "zstandard-0.25.0",
        ),
        SourcePackage(
            "lupa",
            "2.8",
            "d8022641b9ec8ecf2c5ecbe9f47e5a70e0b87c4b5ae921b92cb02a638e0acd08",
            "lupa-2.8",
        ),
        SourcePackage(
            "quickjs",
            "1.19.4",
            "1205953abc24ff757f4a795304d5d61e4bf1e555c9ef6ec96a132d4b95535484",
            "quickjs-1.19.4",
        ),
        SourcePackage(
            "sqlean.py",
            "3.50.4.5",
            "9764b565e7ab430ab6e9e43cb2816199c2b39926dffc93c212a52f0019278459",
            "sqlean_py-3.50.4.5",
        ),
    )
}
"""By name."""


def fetch(package: SourcePackage, cache: Path) -> Path:
    """Download and unpack a package, unless it is there.

    Args:
        package: which.
        cache: a directory to keep it in, made where it is missing.

    Returns:
        Its sources' directory.

    Raises:
        subprocess.CalledProcessError: pip could not download it, or its hash is another.
        OSError, tarfile.TarError: it could not be unpacked.
    """
    unpacked = package.unpacked(cache)
    if unpacked.is_dir():
        return unpacked
    archives = cache / "archives"
    archives.mkdir(parents=True, exist_ok=True)
    requirements = archives / f"{package.name}.txt"
    requirements.write_text(f"{package.requirement}\n")
    options = ("--no-deps", "--no-binary", ":all:", "--require-hashes", "--quiet")
    subprocess.run(
        (
            *(sys.executable, "-m", "pip", "download", *options),
            *("-d", str(archives), "-r", str(requirements)),
        ),
        check=True,
        capture_output=True,
        text=True,
    )
    archive = archives / f"{package.directory}.tar.gz"
    partial = cache / f"{package.directory}.partial"
    with tarfile.open(archive) as opened:
        opened.extractall(partial, filter="data")
    (partial / package.directory).rename(unpacked)
    partial.rmdir()
    return unpacked


EVERY = 997
"""Beside each instruction as it is first come to. A prime, so that no loop keeps in step."""
LIMIT = 60_000_000
OPTIMISATIONS = ("-O0", "-O1", "-O2", "-Os", "-Oz", "-O2 no fp")

_SHAPES = {
    "zstd": "a compressor: ten levels, streams",
    "lua": "an interpreter: recursion, closures, coroutines, errors by longjmp, callbacks",
    "quickjs": "an interpreter: generators, regular expressions, exceptions, a collector",
    "sqlite": "a database: parser, planner, virtual machine, sorting, callbacks",
}
_SQLITE = (
    "-DSQLITE_OS_OTHER=1",
    "-DSQLITE_THREADSAFE=0",
    "-DSQLITE_OMIT_LOAD_EXTENSION",
    "-DSQLITE_OMIT_LOCALTIME",
    "-DSQLITE_OMIT_WAL",
    "-DSQLITE_DEFAULT_MEMSTATUS=0",
    "-DSQLITE_TEMP_STORE=3",
)


def libc_program(lab: Path) -> Program:
    """Return the lab's C library alone, which needs nothing fetched; ``lab`` is ``tests/lab``."""
    return _program(lab, "libc", "formats, numbers, sorting, longjmp", (), ())


def real_programs(lab: Path, cache: Path, *, fetches: bool = True) -> dict[str, Program]:
    """Return all of them, by name, in the table's order.

    Args:
        lab: the directory ``tests/lab``.
        cache: the folder of the packages' sources.
        fetches: fetch what is missing; else programs without sources are left out.

    Raises:
        subprocess.CalledProcessError, OSError, tarfile.TarError: see
            :func:`~tests.support.lab.source_packages.fetch`.
    """
    programs = {"libc": libc_program(lab)}
    for name, package in _PACKAGES.items():
        unpacked = PACKAGES[package].unpacked(cache)
        if fetches:
            fetch(PACKAGES[package], cache)
        if unpacked.is_dir():
            sources, options = _sources(name, unpacked)
            programs[name] = _program(lab, name, _SHAPES[name], sources, options)
    return programs


_PACKAGES = {"zstd": "zstandard", "lua": "lupa", "quickjs": "quickjs", "sqlite": "sqlean.py"}


def _sources(name: str, unpacked: Path) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    match name:
        case "zstd":
            directory = unpacked / "zstd"
            return (directory / "zstd.c",), (f"-I{directory}", "-DZSTD_DISABLE_ASM")
        case "lua":
            directory = unpacked / "third-party" / "lua54"
            others = {"lua.c", "luac.c", "ltests.c"}
            files = tuple(sorted(f for f in directory.glob("l*.c") if f.name not in others))
            # Its limit of nested calls from C, so that no stack is deeper than walks keep.
            return files, (f"-I{directory}", "-DLUAI_MAXCCALLS=60")
        case "quickjs":
            directory = unpacked / "upstream-quickjs"
            names = ("cutils", "libbf", "libregexp", "libunicode", "quickjs")
            options = (f"-I{directory}", '-DCONFIG_VERSION="1"', "-DCONFIG_BIGNUM")
            return tuple(directory / f"{each}.c" for each in names), options
        case _:
            directory = unpacked / "sqlite"
            return (directory / "sqlite3.c",), (f"-I{directory}", *_SQLITE)


def _program(
    lab: Path, name: str, shapes: str, sources: tuple[Path, ...], options: tuple[str, ...]
) -> Program:
    libc = lab / "libc"
    own = (*sorted(libc.glob("*.c")), libc / "setjmp.S", lab / "programs" / "support.S")
    return Program(
        name,
        (lab / "real" / f"run_{name}.c", *sources, *own),
        shapes,
        options=(
            # A program of this system as far as instructions go, but with our headers.
            *("-fhosted", "-fbuiltin", "-fno-math-errno", "-nostdlibinc", "-U__APPLE__"),
            *("-isystem", str(libc / "include"), "-isystem", str(_compiler_headers())),
            *options,
        ),
        between_stacks=frozenset({"_longjmp"}),
        every=EVERY,
        each_place=True,
        limit=LIMIT,
        optimisations=OPTIMISATIONS,
        architectures=frozenset({"arm64", "x86_64"}),
    )


def _compiler_headers() -> Path:
    """Return the folder of the compiler's own headers, which define widths of types."""
    spec = find_spec("ziglang")
    if spec is None or spec.origin is None:
        msg = "the package ziglang is not installed"
        raise OSError(msg)
    return Path(spec.origin).parent / "lib" / "include"
