"""The published binaries of ``tests/published/files.toml``, and what they state of compilers."""

from __future__ import annotations

import hashlib
import re
import struct
import sysconfig
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from machtrace.formats.elf.contents import ElfFileContents
from machtrace.formats.macho.build_version import Version
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.load_commands import LC_BUILD_VERSION, parse_load_commands
from machtrace.formats.object_file import ObjectFile
from machtrace.model.image import ImageFormat

REPOSITORY = Path(__file__).parents[3]
TABLE = REPOSITORY / "tests" / "published" / "files.toml"
DOCUMENTS = TABLE.with_name("documents.toml")
"""The table of published documents: what is no program."""
FETCHED = REPOSITORY / "build" / "published"
"""The folder of the extracted files."""

SHORT = (
    "hermesc arm64",
    "aperture arm64",
    "fbcontrolcore x86_64",
    "gfortran arm64",
    "openssl x86_64",
    "gmp arm64",
    "pydantic arm64",
    "frida-helper arm64e",
    "busybox arm64",
    "musl x86_64",
    "esbuild-linux x86_64",
)
"""Rows of one file of each kind, for a short form; they may be missing."""
_INSTALLED = (
    "/lib/*-linux-gnu/libc.so.6",
    "/usr/lib/*-linux-gnu/libcrypto.so.3",
    "/usr/lib/*-linux-gnu/libstdc++.so.6",
    "/usr/bin/bash",
    "/usr/bin/perl",
    "rpds/rpds.*.so",
    "numpy.libs/libgfortran-*.so.*",
    "capstone/lib/libcapstone.so",
)
"""Files of Debian, and of packages that the tests need: C, C++, Fortran, Rust, assembly."""
_RUSTC = re.compile(rb"/rustc/([0-9a-f]{10})[0-9a-f]{30}/")
"""The path of the standard library's sources, with the compiler's commit."""
_GO = re.compile(rb"\xff Go buildinf:.{0,40}?(go1\.\d+(?:\.\d+)?)", re.DOTALL)
_STATED = re.compile(
    rb"(?:Compiled by (GNU CC version [\d.]+\d)|compiler: ((?:gcc|clang)[^ \0]*) )"
)
"""In glibc, and in OpenSSL."""
_PARENTHESES = re.compile(r" \([^)]*\)")
_TOOLS = {1: "clang", 2: "swift", 3: "ld", 4: "lld"}
"""``TOOL_`` constants of ``mach-o/loader.h``."""
_BUILD_VERSION_SIZE, _TOOL_SIZE = 24, 8


class Registry(StrEnum):
    """Where an archive is published."""

    PYPI = "pypi"
    NPM = "npm"
    DEBIAN = "debian"


@dataclass(frozen=True, slots=True)
class Archive:
    """One release of a package for one platform."""

    registry: Registry
    package: str
    version: str
    platform: str
    """The wheel's platform tag or Debian's architecture; empty for npm."""
    sha256: str

    def __str__(self) -> str:
        platform = f", {self.platform}" if self.platform else ""
        return f"{self.package} {self.version} ({self.registry}{platform})"


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A file of an archive."""

    archive: Archive
    name: str
    """The name in tables; unique together with an architecture."""
    member: str
    """The path in the archive."""
    piece: tuple[int, int] | None
    """Offset and size, if the file is a part of the member."""
    architectures: tuple[str, ...]
    """The slices to run; none of a document."""
    sha256: str
    language: str
    why: str
    """The reason why it is in the table."""

    def path(self, folder: Path = FETCHED) -> Path:
        """Return the path of the extracted file."""
        return folder / "-".join((self.name, *self.architectures))

    def is_fetched(self, folder: Path = FETCHED) -> bool:
        """Return whether the extracted file exists with the hash of the table."""
        path = self.path(folder)
        return path.is_file() and _sha256(path) == self.sha256


@dataclass(frozen=True, slots=True)
class Subject:
    """One slice of a file: a row of the page."""

    name: str
    """The file's name, which is part of the seed of each run."""
    architecture: str
    path: Path
    file: PublishedFile | None = None
    """Its row in the table; None for any other file."""

    @property
    def key(self) -> str:
        """The name of the row."""
        return f"{self.name} {self.architecture}"


def published_files(table: Path = TABLE) -> tuple[PublishedFile, ...]:
    """Return the files of a table, in its order."""
    return tuple(_files(tomllib.loads(table.read_text())["archive"]))


def subjects(files: tuple[PublishedFile, ...]) -> tuple[Subject, ...]:
    """Return the slices of files, in order."""
    return tuple(
        Subject(file.name, architecture, file.path(), file)
        for file in files
        for architecture in file.architectures
    )


def installed_files() -> tuple[Path, ...]:
    """Return those of some files that other people built that are on this machine."""
    packages = Path(sysconfig.get_path("platlib"))
    patterns = [packages / pattern for pattern in _INSTALLED]  # an absolute one stays itself
    return tuple(path for pattern in patterns for path in sorted(Path("/").glob(str(pattern)[1:])))


def _files(rows: list[dict[str, Any]]) -> Iterator[PublishedFile]:
    for row in rows:
        archive = Archive(
            registry=Registry(row["registry"]),
            package=row["package"],
            version=row["version"],
            platform=row.get("platform", ""),
            sha256=row["sha256"],
        )
        for file in row["file"]:
            piece = file.get("piece")
            yield PublishedFile(
                archive=archive,
                name=file["name"],
                member=file["path"],
                piece=(piece[0], piece[1]) if piece else None,
                architectures=tuple(file["architectures"]),
                sha256=file["sha256"],
                language=file["language"],
                why=file["why"],
            )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- what files state ---


def compilers(contents: ObjectFile) -> str:
    """Return the compilers and linkers that a file names, separated by commas; "–" if none."""
    data = bytes(contents.data)
    stated = [*_go(data), *_stated(data)]
    if contents.format is ImageFormat.ELF:
        stated += _comments(contents)
    else:
        stated += _build_version(contents)
    if not any(text.startswith("rustc") for text in stated) and (match := _RUSTC.search(data)):
        stated.append(f"rustc {match[1].decode()}")
    return ", ".join(dict.fromkeys(stated)) or "–"


def _comments(contents: ElfFileContents) -> Iterator[str]:
    for section in contents.image.sections:
        if section.name == ".comment":
            for text in bytes(contents.read_section(section)).split(b"\0"):
                if text:
                    yield _PARENTHESES.sub("", text.decode("ascii", "replace")).removeprefix(
                        "Linker: "
                    )


def _build_version(contents: MachOFileContents) -> Iterator[str]:
    header = contents.image.header
    data = contents.data[header.size : header.size + header.sizeofcmds]
    for command in parse_load_commands(header, data, contents.source):
        if command.cmd == LC_BUILD_VERSION:
            for offset in range(_BUILD_VERSION_SIZE, len(command.data), _TOOL_SIZE):
                tool, version = struct.unpack_from("<2I", command.data, offset)
                yield f"{_TOOLS.get(tool, f'tool {tool}')} {Version.unpack(version)}"
    if (build := contents.image.build_version) is not None and build.sdk.major:
        yield f"{build.platform.value} SDK {build.sdk}"


def _go(data: bytes) -> Iterator[str]:
    if match := _GO.search(data):
        yield match[1].decode()


def _stated(data: bytes) -> Iterator[str]:
    if match := _STATED.search(data):
        yield (match[1] or match[2]).decode()
