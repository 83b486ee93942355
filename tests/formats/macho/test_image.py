"""Headers and load commands, as llvm-objdump reads them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from machtrace.formats.macho.build_version import BuildVersion, Platform, Version
from machtrace.formats.macho.command_fields import command_fields
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.header import FileType
from machtrace.formats.macho.image import MachOImage
from machtrace.formats.macho.segments import protection
from machtrace.model.arch import Arch

pytestmark = pytest.mark.peer

Llvm = Callable[..., str]


def _image_of(path: Path) -> MachOImage:
    return MachOFileContents(path.read_bytes(), str(path)).image


def test_load_commands_equal_the_ones_objdump_lists(any_file: Path, llvm: Llvm):
    """Each command's name and size, in the file's order."""
    listed = llvm("llvm-objdump", "--macho", "--private-headers", any_file)
    theirs = re.findall(r"^ +cmd (\S+)\n +cmdsize (\d+)", listed, re.MULTILINE)

    assert theirs == [(c.name, str(len(c.data))) for c in _image_of(any_file).commands]


def test_segments_and_sections_equal_the_ones_objdump_lists(any_file: Path, llvm: Llvm):
    """Names, addresses, sizes, offsets and protections."""
    listed = llvm("llvm-objdump", "--macho", "--private-headers", any_file)
    number = r"(0x[0-9a-f]+|\d+)"
    segments = re.findall(
        rf"cmd LC_SEGMENT\S*\n +cmdsize \d+\n +segname ?(\S*)\n +vmaddr {number}\n +vmsize {number}"
        rf"\n +fileoff {number}\n +filesize {number}\n +maxprot (\S+)\n +initprot (\S+)",
        listed,
    )
    sections = re.findall(
        rf"sectname (\S+)\n +segname (\S+)\n +addr {number}\n +size {number}\n +offset {number}"
        rf"[^\n]*\n +align 2\^(\d+)[^\n]*\n(?:[^\n]*\n){{2}} +type (\S+)",
        listed,
    )
    image = _image_of(any_file)

    assert [
        (name, *(int(value, 0) for value in values[:4]), *values[4:]) for name, *values in segments
    ] == [
        (
            part.name,
            part.vmaddr,
            part.vmsize,
            part.fileoff,
            part.filesize,
            protection(part.maxprot),
            protection(part.initprot),
        )
        for part in image.segments
    ]
    assert [
        (name, segment, *(int(value, 0) for value in values[:4]), values[4])
        for name, segment, *values in sections
    ] == [
        (
            section.name,
            section.segment_name,
            section.address,
            section.size,
            section.offset,
            section.align,
            section.type_name,
        )
        for section in image.sections
    ]


def test_code_sections_are_the_ones_objdump_calls_pure_instructions(any_file: Path, llvm: Llvm):
    """They decide which symbols name functions."""
    listed = llvm("llvm-objdump", "--macho", "--private-headers", any_file)
    sections = re.findall(r"sectname (\S+)\n(?:[^\n]*\n){7} +type \S+\nattributes ([^\n]*)", listed)
    image = _image_of(any_file)
    with_code = sorted(name for name, attributes in sections if "INSTRUCTIONS" in attributes)

    assert with_code == sorted(section.name for section in image.code_sections)
    assert "__text" in with_code


def test_the_uuid_equals_the_one_objdump_prints(linked_file: Path, llvm: Llvm):
    listed = llvm("llvm-objdump", "--macho", "--private-headers", linked_file)
    found = re.search(r"uuid ([0-9A-F-]{36})", listed)

    assert found is not None
    assert _image_of(linked_file).uuid == UUID(found[1])


def test_the_build_version_has_the_platform_and_minimum_version(lld_arm64: Path):
    image = _image_of(lld_arm64)

    assert image.build_version == BuildVersion(Platform.MACOS, Version(13, 0, 0), Version(14, 2, 0))
    assert image.header.filetype is FileType.DYLIB
    assert image.arch is Arch.ARM64
    assert image.install_name == str(lld_arm64)


def test_the_older_version_command_is_read(i386_object: Path, armv7_object: Path):
    mac, phone = _image_of(i386_object), _image_of(armv7_object)

    assert mac.build_version is not None
    assert (mac.build_version.platform, mac.build_version.minos) == (
        Platform.MACOS,
        Version(10, 12, 0),
    )
    assert phone.build_version is not None
    assert (phone.build_version.platform, str(phone.build_version.minos)) == (Platform.IOS, "9.0")


def test_architectures_are_distinguished(
    i386_object: Path, armv7_object: Path, arm64_32_object: Path
):
    """arm64_32 has the 32-bit header of arm, and the instructions of arm64."""
    assert _image_of(i386_object).arch is Arch.I386
    assert _image_of(armv7_object).arch is Arch.ARMV7
    watch = _image_of(arm64_32_object)
    assert watch.arch is Arch.ARM64_32
    assert not watch.header.is_64


def test_a_program_has_an_entry_and_a_page_zero(zig_program: Path, llvm: Llvm):
    """The header is at __TEXT's address, not at the start of the address space."""
    image = _image_of(zig_program)
    names = llvm("llvm-nm", zig_program).splitlines()
    main = next(int(line.split()[0], 16) for line in names if line.endswith(" _main"))

    assert image.entry is not None
    assert image.header_svma + image.entry.entryoff == main
    assert image.header_svma == 1 << 32
    assert image.segments[0].name == "__PAGEZERO"
    assert image.segment_at(image.segments[0].vmaddr) is None


def test_strings_in_load_commands_are_read(lld_arm64: Path):
    """Run paths and library names follow their commands' fields."""
    image = _image_of(lld_arm64)
    said = {c.name: command_fields(c, image.source) for c in image.commands}

    assert said["LC_RPATH"] == {"name": "@loader_path/../Frameworks"}
    assert said["LC_ID_DYLIB"]["name"] == str(lld_arm64)
    assert said["LC_UUID"] == {"uuid": str(image.uuid).upper()}
    assert said["LC_BUILD_VERSION"] == {"platform": "macos", "minos": "13.0", "sdk": "14.2"}


def test_libraries_equal_those_that_objdump_lists(linked_file: Path, llvm: Llvm):
    """Names with versions, in the order of the ordinals in symbols."""
    listed = llvm("llvm-objdump", "--macho", "--dylibs-used", linked_file).splitlines()[1:]
    image = _image_of(linked_file)
    own = [] if image.id_dylib is None else [image.id_dylib]

    assert [line.strip() for line in listed] == [
        f"{one.name} (compatibility version {_dots(one.compatibility_version)}, "
        f"current version {_dots(one.current_version)})"
        for one in (*own, *image.load_dylibs)
    ]


def _dots(version: Version) -> str:
    return ".".join(map(str, version))
