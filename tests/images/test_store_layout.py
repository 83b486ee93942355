"""Paths of files in stores: the examples of the layouts' own documentation, and hostile names."""

from uuid import UUID

import pytest

from machtrace.images.store_layout import (
    FileKind,
    build_id_path,
    debuginfod_path,
    lldb_path,
    parse_identifier,
    ssqp_path,
    unified_path,
)
from machtrace.model.image import BuildId

UNIVERSAL = UUID("23516BE4-29BE-350C-91C9-F36E7999F0F1")
GNU = BuildId(bytes.fromhex("180a373d6afbabf0eb1f09be1bc45bd796a71085"))


def test_the_example_of_lldbs_documentation():
    """*Symbols on macOS* of LLDB, "File Mapped UUID Directories"."""
    path = lldb_path(UNIVERSAL, FileKind.DEBUGINFO)

    assert path == "2351/6BE4/29BE/350C/91C9/F36E7999F0F1"
    assert f"{path}.app" == lldb_path(UNIVERSAL, FileKind.EXECUTABLE)
    assert lldb_path(GNU, FileKind.DEBUGINFO) is None


def test_the_layouts_of_symbolicator():
    """By its documentation of symbol servers, for Mach-O and ELF."""
    text = "23516be429be350c91c9f36e7999f0f1"

    assert f"23/{text[2:]}/debuginfo" == unified_path(UNIVERSAL, FileKind.DEBUGINFO)
    assert f"23/{text[2:]}/executable" == unified_path(UNIVERSAL, FileKind.EXECUTABLE)
    assert f"_.dwarf/mach-uuid-sym-{text}/_.dwarf" == ssqp_path(
        UNIVERSAL, FileKind.DEBUGINFO, "App"
    )
    assert f"app/mach-uuid-{text}/app" == ssqp_path(UNIVERSAL, FileKind.EXECUTABLE, "/x/App")
    assert f"_.debug/elf-buildid-sym-{GNU}/_.debug" == ssqp_path(GNU, FileKind.DEBUGINFO, "libc")


def test_the_layouts_by_build_id():
    """GDB's manual, "Debugging Information in Separate Files"; *debuginfod(8)*."""
    assert (
        build_id_path(GNU, FileKind.DEBUGINFO)
        == ".build-id/18/0a373d6afbabf0eb1f09be1bc45bd796a71085.debug"
    )
    assert f"{GNU}/executable" == debuginfod_path(GNU, FileKind.EXECUTABLE)


@pytest.mark.parametrize(
    "text",
    [
        "23516BE4-29BE-350C-91C9-F36E7999F0F1",
        "23516be4-29be-350c-91c9-f36e7999f0f1",
        "<23516be429be350c91c9f36e7999f0f1>",
        " 23516BE429BE350C91C9F36E7999F0F1\n",
    ],
)
def test_uuids_are_read_in_all_common_spellings(text):
    """With dashes or without, in any case, in a crash report's angle brackets."""
    assert parse_identifier(text) == UNIVERSAL


@pytest.mark.parametrize("text", ["", "a", "abc", "zz" * 16, "ab" * 65, "App", "12 34", "-"])
def test_an_invalid_identifier_is_none(text):
    """Names, odd numbers of digits, lengths that no file is stored under."""
    assert parse_identifier(text) is None


@pytest.mark.parametrize("name", ["..", "a/..", "a\\..", "", "/", "a\0b"])
def test_no_name_leads_out_of_the_store(name):
    """Image names come from the target; only the last component is used, if it is a valid name."""
    assert ssqp_path(UNIVERSAL, FileKind.EXECUTABLE, name) is None


@pytest.mark.parametrize("size", [0, 1, 65, 4096])
def test_identifiers_that_are_not_valid_folder_names_have_no_path(size):
    identifier = BuildId(bytes(size))

    for path in (unified_path, build_id_path, debuginfod_path):
        assert path(identifier, FileKind.DEBUGINFO) is None
