"""Cleaning a symbol store, and exporting it in other tools' layouts."""

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from machtrace.images.store_layout import ExportLayout, FileKind
from machtrace.symbolstore.export import ExportResult, export_file
from machtrace.symbolstore.gc import (
    beyond_size,
    leftovers,
    misplaced,
    remove,
    unused_since,
)
from machtrace.symbolstore.store import SymbolStore
from tests.support.compilers.executables import compile_elf
from tests.support.writers.symbol_files import (
    APP,
    DSYM,
    INTEL_APP,
    add,
    everything_in,
    names_in,
)


def test_cleaning_removes_leftovers_old_excess_and_invalid_files(store, bundle):
    """Leftovers of killed processes after a while, what is old, what is beyond a size, misfits."""
    add(store, *bundle)
    files = list(store.files())
    old = store.root / ".unfinished-0123"
    old.write_bytes(b"x")
    os.utime(old, (0, 0))
    (store.root / ".unfinished-now").write_bytes(b"x")
    now = old.with_name(".unfinished-now").stat().st_mtime + 10

    assert [old] == [file.path for file in leftovers(store, now=now)]
    assert list(unused_since(files, now - 1000)) == []
    assert len(list(unused_since(files, now + 1000))) == 2
    assert list(beyond_size(files, 1 << 30)) == []
    assert len(list(beyond_size(files, max(len(APP), len(DSYM))))) == 1
    assert list(misplaced(files)) == []
    files[0].path.write_bytes(INTEL_APP)
    wrong = list(misplaced(files))
    assert [files[0].path] == [file.path for file in wrong]

    remove(store, [*leftovers(store, now=now), *wrong, *unused_since(files, now + 1000)])
    assert everything_in(store.root) == [".unfinished-now"]
    assert {".unfinished-now"} == names_in(store.root)


def test_lldbs_layout_links_into_a_dsym_bundle(store, bundle, tmp_path):
    """The link is relative, so that the folder can be moved, and is not replaced."""
    add(store, *bundle)
    out = tmp_path / "export"
    results = [export_file(item, out, ExportLayout.LLDB) for item in store.files()]
    moved = tmp_path / "moved"
    out.rename(moved)
    link = moved / "82D1/3D98/219E/3040/B62A/07A297007A7C"

    assert [item.result for item in results] == [ExportResult.WRITTEN] * 2
    assert stat.S_ISLNK(link.lstat().st_mode)
    assert link.resolve().parts[-5:] == (
        "App.dSYM", "Contents", "Resources", "DWARF", "App",
    )  # fmt: skip
    assert link.read_bytes() == DSYM
    assert Path(f"{link}.app").read_bytes() == APP
    again = [export_file(item, moved, ExportLayout.LLDB) for item in store.files()]
    assert [item.result for item in again] == [ExportResult.PRESENT] * 2
    stored, _ = add(SymbolStore(tmp_path / "second"), moved)
    assert {FileKind.EXECUTABLE, FileKind.DEBUGINFO} == {item.kind for item in stored}


@pytest.mark.peer
@pytest.mark.skipif(
    not all(map(shutil.which, ("gdb", "cc", "objcopy", "strip"))),
    reason="gdb, a C compiler, objcopy or strip is not installed",
)
def test_gdb_finds_debug_files_in_the_build_id_layout(store, tmp_path):
    """A stripped program has its lines in gdb."""
    source = tmp_path / "a.c"
    source.write_text("int f(int x) {\n  return x + 1;\n}\nint main(void) { return f(0); }\n")
    program = compile_elf([source], tmp_path / "a", options=["-g", "-Wl,--build-id"])
    debug = tmp_path / "a.debug"
    subprocess.run(["objcopy", "--only-keep-debug", program, debug], check=True, timeout=30)
    subprocess.run(["strip", program], check=True, timeout=30)
    add(store, debug)
    debug.unlink()
    for file in store.files():
        export_file(file, tmp_path / "export", ExportLayout.BUILD_ID)
    commands = ("-ex", f"set debug-file-directory {tmp_path / 'export'}", "-ex", f"file {program}")
    done = subprocess.run(
        ["gdb", "-nx", "-batch", *commands, "-ex", "info line f"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip

    assert 'Line 1 of "' in done.stdout
