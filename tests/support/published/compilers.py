"""The compilers and linkers that a file names."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from machtrace.formats.elf.contents import ElfFileContents
from machtrace.formats.macho.build_version import Version
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.load_commands import LC_BUILD_VERSION, parse_load_commands
from machtrace.formats.object_file import ObjectFile
from machtrace.model.image import ImageFormat

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
