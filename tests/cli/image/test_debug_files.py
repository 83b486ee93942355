"""``machtrace image --debug-files``: a person sees where lines come from, or why none do."""

import json
import sys
from contextlib import redirect_stdout
from io import StringIO
from uuid import UUID

import pytest

from machtrace.cli.main import main
from tests.support.writers.debug_files import dwarf_file, write_dsym
from tests.support.writers.macho import BuiltSymbol, ThinFile

OURS = UUID("3C1E5C3A-0000-4000-8000-00000000C001")
OTHERS = UUID("3C1E5C3A-0000-4000-8000-00000000C002")


@pytest.fixture
def image(monkeypatch):
    """Return a function that runs the command in this process and returns its output."""

    def run(*arguments):
        printed = StringIO()
        monkeypatch.setattr(sys, "argv", ["machtrace", "image", *map(str, arguments)])
        with redirect_stdout(printed), pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        return printed.getvalue()

    return run


@pytest.fixture
def binary(tmp_path):
    """Return a binary without debug information."""
    path = tmp_path / "bin" / "prog"
    path.parent.mkdir()
    path.write_bytes(ThinFile(uuid=OURS).build())
    return path


def test_it_shows_which_files_were_found_and_how(image, binary):
    """The dSYM beside the binary."""
    dwarf = write_dsym(binary.with_name("prog.dSYM"), "prog", dwarf_file(OURS))

    assert f"source lines           {dwarf} (beside the binary)" in image(binary, "--debug-files")
    (found,) = json.loads(image(binary, "--debug-files", "--format", "json"))["images"]
    assert str(dwarf) == found["debug_files"]["lines"]


def test_it_shows_why_no_file_was_found(image, binary, tmp_path):
    """Another build's dSYM, and a folder that has nothing."""
    dwarf = write_dsym(binary.with_name("prog.dSYM"), "prog", dwarf_file(OTHERS))
    folder = tmp_path / "symbols"
    write_dsym(folder / "q.dSYM", "q", dwarf_file(UUID(int=1)))
    printed = image(binary, "--search", folder)

    assert "source lines           only that of other builds was found" in printed
    assert f"{dwarf}: is another image's (arm64 {str(OTHERS).upper()})" in printed
    assert f"{folder}: nothing in it has this identifier (1 file, 1 image)" in printed


def test_missing_object_files_are_listed(image, tmp_path):
    """The debug map names two object files, of which one exists."""
    existing = tmp_path / "there.o"
    existing.write_bytes(ThinFile().build())
    symbols = (
        BuiltSymbol(str(existing), int(existing.stat().st_mtime), 0x66, 0),
        BuiltSymbol("_f", 0x400, 0x24),
        BuiltSymbol(str(tmp_path / "gone.o"), 5, 0x66, 0),
        BuiltSymbol("_g", 0x410, 0x24),
    )
    binary = tmp_path / "prog"
    binary.write_bytes(ThinFile(uuid=OURS, symbols=symbols).build())
    printed = image(binary, "--debug-files")

    assert f"{binary} (a debug map of 2 object files)" in printed
    assert f"{tmp_path}/gone.o: no such file (an object file of the debug map)" in printed
    assert f"{existing}: " not in printed
