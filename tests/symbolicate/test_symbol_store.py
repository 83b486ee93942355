"""A symbol store in a folder: what goes in, comes out, stays, and what it costs to be attacked."""

import io
import json
import os
import random
import shutil
import stat
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from uuid import UUID

import pytest

from machtrace.errors import FileAccessError
from machtrace.macho.cpu import CPU_TYPE_ARM64, CPU_TYPE_X86_64
from machtrace.macho.header import FileType
from machtrace.model.address import Avma, Svma
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.symbol import FrameStatus
from machtrace.symbolicate.image_source import ImageSource
from machtrace.symbolicate.symbol_store import SymbolStore
from machtrace.symbolicate.symbol_store_adding import Stored, SymbolAdder
from machtrace.symbolicate.symbol_store_archive import UnpackLimits
from machtrace.symbolicate.symbol_store_cleaning import (
    beyond_size,
    leftovers,
    misplaced,
    remove,
    unused_since,
)
from machtrace.symbolicate.symbol_store_export import ExportResult, export_file
from machtrace.symbolicate.symbol_store_images import SkipReason
from machtrace.symbolicate.symbol_store_input import InputFile, input_files
from machtrace.symbolicate.symbol_store_layout import ExportLayout, FileKind
from machtrace.symbolicate.symbol_store_location import default_store_path
from machtrace.testing.elf_compiler import compile_elf
from machtrace.testing.macho_files import BuiltSlice, ThinFile, fat_file

ARM = UUID("82d13d98-219e-3040-b62a-07a297007a7c")
INTEL = UUID("23516be4-29be-350c-91c9-f36e7999f0f1")
APP = ThinFile(uuid=ARM, filetype=FileType.EXECUTE).build()
DSYM = ThinFile(uuid=ARM, filetype=FileType.DSYM, code=bytes(128)).build()
INTEL_APP = ThinFile(uuid=INTEL, cputype=CPU_TYPE_X86_64, filetype=FileType.EXECUTE).build()


def fat(*thin):
    """A fat file of arm64 and x86_64."""
    types = ((CPU_TYPE_ARM64, 0), (CPU_TYPE_X86_64, 3))
    at, rows, contents = 0x1000, [], []
    for kind, data in zip(types, thin, strict=True):
        rows.append(BuiltSlice(*kind, at, len(data)))
        contents.append((at, data))
        at += (len(data) + 0xFFF) & ~0xFFF
    return fat_file(rows, contents)


def add(store, *places, limits=None, **options):
    """Add all that is at ``places``; what was stored, and what was skipped."""
    adder = SymbolAdder(store, limits)
    stored, skipped = [], []
    for place in places:
        for one in input_files(Path(place), **options):
            outcomes = adder.add(one) if isinstance(one, InputFile) else [one]
            for outcome in outcomes:
                (stored if isinstance(outcome, Stored) else skipped).append(outcome)
    return stored, skipped


def reasons(skipped):
    """Of each, in order."""
    return [one.reason for one in skipped]


def everything_in(folder):
    """The paths of all files below."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def names_in(folder):
    """Of what is in it."""
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def store(tmp_path):
    """An empty store."""
    return SymbolStore(tmp_path / "store")


@pytest.fixture
def bundle(tmp_path):
    """An app bundle and its dSYM, as Xcode lays them."""
    inside = tmp_path / "App.app.dSYM" / "Contents" / "Resources" / "DWARF"
    inside.mkdir(parents=True)
    (inside / "App").write_bytes(DSYM)
    app = tmp_path / "App.app"
    app.mkdir()
    (app / "App").write_bytes(APP)
    (app / "Info.plist").write_text("<plist/>")
    return app, tmp_path / "App.app.dSYM"


def test_an_app_and_its_dsym_in_symsorter_s_layout(store, bundle):
    """Under the UUID in lower case, each with a meta of the three keys that symsorter writes."""
    stored, skipped = add(store, *bundle)
    folder = store.root / "82" / "d13d98219e3040b62a07a297007a7c"

    assert {"executable", "executable.meta", "debuginfo", "debuginfo.meta"} == names_in(folder)
    assert APP == (folder / "executable").read_bytes()
    assert DSYM == (folder / "debuginfo").read_bytes()
    assert {"name": "App", "arch": "arm64", "file_format": "macho"} == json.loads(
        (folder / "executable.meta").read_text()
    )
    assert [True, True] == [one.is_new for one in stored]
    assert [SkipReason.NOT_AN_IMAGE] == reasons(skipped)
    assert folder / "executable" == store.find(ARM, "arm64", FileKind.EXECUTABLE)
    assert folder / "debuginfo" == store.find(ARM, Arch.ARM64)
    assert store.find(INTEL) is None
    assert store.find(ARM, "x86_64") is None


def test_slices_are_what_lipo_takes_out(store, tmp_path):
    """A fat file is stored thin, each slice under its own UUID."""
    path = tmp_path / "App"
    path.write_bytes(fat(APP, INTEL_APP))
    add(store, path)

    for uuid, arch in ((ARM, "arm64"), (INTEL, "x86_64")):
        thin = store.find(uuid, arch, FileKind.EXECUTABLE).read_bytes()
        if shutil.which("llvm-lipo-19"):
            out = tmp_path / arch
            subprocess.run(
                ["llvm-lipo-19", path, "-thin", arch, "-output", out], check=True, timeout=30
            )
            assert out.read_bytes() == thin
        assert thin in (APP, INTEL_APP)


def test_one_bad_slice_does_not_spoil_the_other(store, tmp_path):
    """It is reported; the good one is stored."""
    broken = bytearray(INTEL_APP)
    broken[36:40] = struct.pack("<I", 3)  # the first load command's size
    path = tmp_path / "App"
    path.write_bytes(fat(APP, bytes(broken)))
    stored, skipped = add(store, path)

    assert [ARM] == [one.identifier for one in stored]
    assert [SkipReason.MALFORMED] == reasons(skipped)
    assert "x86_64" in skipped[0].source


@pytest.mark.skipif(not shutil.which("objcopy"), reason="objcopy is not installed")
def test_elf_goes_under_the_build_id_that_readelf_prints(store, tmp_path):
    """A program and the debug file that objcopy makes of it."""
    source = tmp_path / "a.c"
    source.write_text("int f(int x) { return x + 1; }\n")
    library = compile_elf(
        [source], tmp_path / "lib.so", options=["-shared", "-fPIC", "-g", "-Wl,--build-id"]
    )
    debug = tmp_path / "lib.debug"
    subprocess.run(["objcopy", "--only-keep-debug", library, debug], check=True, timeout=30)
    notes = subprocess.run(
        ["readelf", "-n", library], capture_output=True, text=True, check=True, timeout=30
    ).stdout
    text = notes.split("Build ID: ")[1].split()[0]
    stored, _ = add(store, library, debug)

    assert [text, text] == [one.path.parent.parent.name + one.path.parent.name for one in stored]
    assert [FileKind.EXECUTABLE, FileKind.DEBUGINFO] == [one.kind for one in stored]
    assert debug.read_bytes() == store.find(stored[0].identifier).read_bytes()


def test_the_same_again_is_there_already(store, bundle):
    """Nothing is written a second time, and a meta that an interruption left out is made up."""
    add(store, *bundle)
    before = everything_in(store.root)
    path = store.find(ARM)
    stamp = path.stat().st_mtime_ns
    Path(f"{path}.meta").unlink()
    stored, _ = add(store, *bundle)

    assert [False, False] == [one.is_new for one in stored]
    assert before == everything_in(store.root)
    assert stamp == path.stat().st_mtime_ns


def test_other_content_under_the_same_uuid_is_reported_and_left_out(store, tmp_path):
    """As of a binary that was stripped or signed again: the first one stays."""
    for name, data in (("first", APP), ("second", APP[:-1] + b"\xff")):
        (tmp_path / name).write_bytes(data)
    add(store, tmp_path / "first")
    stored, skipped = add(store, tmp_path / "second")

    assert [] == stored
    assert [SkipReason.COLLISION] == reasons(skipped)
    assert str(ARM.hex) in skipped[0].detail
    assert APP == store.find(ARM, None, FileKind.EXECUTABLE).read_bytes()


def test_one_uuid_of_two_architectures(store, tmp_path):
    """Both are kept, and each is found by its own."""
    intel = ThinFile(uuid=ARM, cputype=CPU_TYPE_X86_64, filetype=FileType.EXECUTE).build()
    for name, data in (("arm", APP), ("intel", intel)):
        (tmp_path / name).write_bytes(data)
    add(store, tmp_path / "arm", tmp_path / "intel")

    assert APP == store.find(ARM, "arm64", FileKind.EXECUTABLE).read_bytes()
    assert intel == store.find(ARM, "x86_64", FileKind.EXECUTABLE).read_bytes()
    assert {"arm64", "x86_64"} == {one.arch for one in store.files()}


def test_a_store_that_symsorter_made_is_read(store):
    """Its names of architectures too, and files without any meta."""
    folder = store.root / "82" / ARM.hex[2:]
    folder.mkdir(parents=True)
    (folder / "debuginfo").write_bytes(DSYM)

    assert folder / "debuginfo" == store.find(ARM, "arm64")
    assert store.find(ARM, "x86_64") is None
    (folder / "debuginfo.meta").write_text('{"name":"App","arch":"x86","file_format":"macho"}')
    assert ["i386"] == [one.arch for one in store.files()]


@pytest.mark.parametrize("meta", [b"", b"[]", b"{", b'{"arch": 3}', b"\xff", b"[" * 60000])
def test_a_meta_that_is_none_does_no_harm(store, tmp_path, meta):
    """The file's own header says what it is."""
    (tmp_path / "App").write_bytes(APP)
    stored, _ = add(store, tmp_path / "App")
    Path(f"{stored[0].path}.meta").write_bytes(meta)

    assert ["arm64"] == [one.arch for one in store.files()]


def zipped(members, **options):
    """A zip archive's bytes."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", **options) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return sink.getvalue()


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_an_ipa_with_a_zip_of_dsyms_in_it(store, tmp_path, method):
    """Members are found whatever they are called, in archives in archives; no scratch is left."""
    inner = zipped({"App.app.dSYM/Contents/Resources/DWARF/App": DSYM}, compression=method)
    (tmp_path / "App.ipa").write_bytes(
        zipped(
            {
                "Payload/App.app/App": APP,
                "Payload/App.app/Info.plist": b"<plist/>",
                "dSYM.zip": inner,
            },
            compression=method,
        )
    )
    stored, skipped = add(store, tmp_path / "App.ipa")

    assert [ARM, ARM] == [one.identifier for one in stored]
    assert stored[0].source.endswith("App.ipa: Payload/App.app/App")
    assert [] == skipped
    assert APP == store.find(ARM, None, FileKind.EXECUTABLE).read_bytes()
    assert DSYM == store.find(ARM).read_bytes()
    assert ["App"] == sorted({one.name for one in store.files()})
    assert not [name for name in everything_in(store.root) if "unfinished" in name]


def test_names_in_archives_are_never_paths(store, tmp_path):
    """A member that is called out of the folder is stored under its UUID like any other."""
    (tmp_path / "a.zip").write_bytes(zipped({"../../../evil": APP, "/etc/evil2": DSYM}))
    stored, _ = add(store, tmp_path / "a.zip")

    assert 2 == len(stored)
    assert not (tmp_path.parent / "evil").exists()
    assert {"store", "a.zip"} == names_in(tmp_path)


def test_archives_in_archives_have_a_limit(store, tmp_path):
    """Which a user can raise."""
    data = APP
    for _ in range(3):
        data = zipped({"x": data})
    (tmp_path / "deep.zip").write_bytes(data)

    _, skipped = add(store, tmp_path / "deep.zip", limits=UnpackLimits(depth=2))
    assert [SkipReason.TOO_DEEP] == reasons(skipped)
    stored, _ = add(store, tmp_path / "deep.zip", limits=UnpackLimits(depth=3))
    assert [ARM] == [one.identifier for one in stored]


@pytest.mark.parametrize(
    "limits",
    [
        UnpackLimits(member_bytes=1000),
        UnpackLimits(total_bytes=1000),
        UnpackLimits(directory_bytes=10),
    ],
)
def test_what_is_unpacked_has_limits(store, tmp_path, limits):
    """Beyond them a member is named and left out, and nothing was written."""
    (tmp_path / "a.zip").write_bytes(zipped({"App": APP}))
    stored, skipped = add(store, tmp_path / "a.zip", limits=limits)

    assert [] == stored
    assert [SkipReason.TOO_LARGE] == reasons(skipped)
    assert not store.root.exists() or [] == everything_in(store.root)


def test_a_bomb_is_not_blown_up(store, tmp_path):
    """A member of 100 MB in 100 KB, that begins like a Mach-O."""
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb", APP[:4096] + bytes(100 << 20))
    stored, skipped = add(store, tmp_path / "bomb.zip")

    assert [] == stored
    assert [SkipReason.TOO_LARGE] == reasons(skipped)


@pytest.mark.parametrize("declared", [len(APP) - 100, len(APP) + 100])
def test_a_member_that_lies_about_its_size(store, tmp_path, declared):
    """In the archive's list of members; it is malformed, and the one after it is stored."""
    data = bytearray(zipped({"App": APP, "dSYM": DSYM}))
    at = data.find(b"PK\x01\x02")
    data[at + 24 : at + 28] = struct.pack("<I", declared)
    (tmp_path / "a.zip").write_bytes(data)
    stored, skipped = add(store, tmp_path / "a.zip")

    assert [FileKind.DEBUGINFO] == [one.kind for one in stored]
    assert [SkipReason.MALFORMED] == reasons(skipped)


def test_damaged_archives_end_in_words(store, tmp_path):
    """Cut or altered at many places, an archive gives what it gives, and one line for the rest."""
    whole = zipped({"App": APP, "x/dSYM.zip": zipped({"d": DSYM})}, compression=8)
    path = tmp_path / "a.zip"
    for at in range(0, len(whole), 41):
        path.write_bytes(whole[:at])
        add(store, path)
        path.write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
        add(store, path)
    for one in store.files():
        assert one.path.read_bytes() in (APP, DSYM)


@pytest.mark.parametrize("seed", range(3))
def test_mutated_archives_end_in_words(store, tmp_path, seed):
    """A few bytes changed, often in the list of members; names may be empty, sizes anything."""
    chosen = random.Random(seed)  # noqa: S311 - no secret
    members = {"App": APP, "x/dSYM.zip": zipped({"d": DSYM})}
    whole = [zipped(members, compression=method) for method in (0, 8, 12)]
    path = tmp_path / "a.zip"
    for _ in range(150):
        data = bytearray(chosen.choice(whole))
        start = chosen.choice((0, len(data) - 300))
        for _ in range(chosen.randrange(1, 10)):
            data[chosen.randrange(start, len(data))] = chosen.choice((0, 1, 127, 255))
        path.write_bytes(data)
        add(store, path)
    for one in store.files():
        assert one.path.read_bytes() in (APP, DSYM)
    assert not [name for name in everything_in(store.root) if "unfinished" in name]


def test_an_encrypted_member_is_named(store, tmp_path):
    """The flag alone says so."""
    data = bytearray(zipped({"App": APP}))
    for magic, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.find(magic)
        data[at + flags] |= 1
    (tmp_path / "a.zip").write_bytes(data)
    _, skipped = add(store, tmp_path / "a.zip")

    assert [SkipReason.ENCRYPTED] == reasons(skipped)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"!<arch>\n" + bytes(60), SkipReason.STATIC_LIBRARY),
        (fat(b"!<arch>\n" + bytes(60), b"!<arch>\n" + bytes(60)), SkipReason.STATIC_LIBRARY),
        (ThinFile(filetype=FileType.OBJECT).build(), SkipReason.OBJECT_FILE),
        (ThinFile(filetype=FileType.CORE).build(), SkipReason.CORE),
        (ThinFile(filetype=FileType.DYLIB_STUB).build(), SkipReason.STUB),
        (ThinFile(uuid=UUID(int=0)).build(), SkipReason.NO_IDENTIFIER),
        (APP[:-1], SkipReason.MALFORMED),
        (APP[:50], SkipReason.MALFORMED),
        (b"\x7fELF", SkipReason.MALFORMED),
        (b"\xca\xfe\xba\xbe\0\0\0\x34" + bytes(60), SkipReason.NOT_AN_IMAGE),  # a Java class
        (b"#!/bin/sh\n", SkipReason.NOT_AN_IMAGE),
        (b"", SkipReason.NOT_AN_IMAGE),
    ],
)
def test_what_is_no_image_is_said(store, tmp_path, data, reason):
    """And nothing is stored; a cut file would stand in the way of the whole one."""
    (tmp_path / "x").write_bytes(data)
    stored, skipped = add(store, tmp_path / "x")

    assert ([], [reason]) == (stored, reasons(skipped))


def test_links_do_not_lead_out_of_a_folder(store, tmp_path):
    """One within it is passed over, its target is found by itself; the named folder may be one."""
    tree, outside = tmp_path / "tree", tmp_path / "outside"
    tree.mkdir()
    outside.mkdir()
    (outside / "App").write_bytes(APP)
    (tree / "dSYM").write_bytes(DSYM)
    (tree / "loop").symlink_to(tree)
    (tree / "again").symlink_to("dSYM")
    (tree / "out").symlink_to(outside / "App")
    (tree / "folder").symlink_to(outside)
    named = tmp_path / "named"
    named.symlink_to(tree)
    stored, skipped = add(store, named)

    assert [FileKind.DEBUGINFO] == [one.kind for one in stored]
    assert [SkipReason.LINK, SkipReason.LINK] == reasons(skipped)
    stored, _ = add(store, named, follow_links=True)
    assert {FileKind.EXECUTABLE, FileKind.DEBUGINFO} == {one.kind for one in stored}


def test_pipes_and_missing_files_are_not_waited_for(store, tmp_path):
    """A named pipe in a folder is passed over; one that is named is refused, as is nothing."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "App").write_bytes(APP)

    assert 1 == len(add(store, tmp_path)[0])
    _, skipped = add(store, tmp_path / "pipe", tmp_path / "nowhere")
    assert [SkipReason.UNREADABLE] * 2 == reasons(skipped)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_does_not_stop_the_others(store, tmp_path):
    """It is named."""
    (tmp_path / "a").write_bytes(DSYM)
    (tmp_path / "a").chmod(0)
    (tmp_path / "b").write_bytes(APP)
    stored, skipped = add(store, tmp_path)

    assert 1 == len(stored)
    assert [SkipReason.UNREADABLE] == reasons(skipped)


def test_processes_add_at_once(tmp_path):
    """Each image is new to just one of them, and whole when it has its name."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(60):
        data = ThinFile(uuid=UUID(int=number + 1), code=bytes([number]) * 50000).build()
        (folder / str(number)).write_bytes(data)
    root = tmp_path / "store"
    command = [sys.executable, "-m", "machtrace", "symbols", "add", folder, "--format", "json"]
    workers = [
        subprocess.Popen([*command, "--store", root], stdout=subprocess.PIPE) for _ in range(3)
    ]
    told = [json.loads(worker.communicate(timeout=60)[0]) for worker in workers]

    assert [0, 0, 0] == [worker.returncode for worker in workers]
    assert [60, 60, 60] == [len(one["images"]) for one in told]
    assert 60 == sum(image["new"] for one in told for image in one["images"])
    assert 120 == len(everything_in(root))
    assert [] == list(misplaced(list(SymbolStore(root).files())))


def test_an_interruption_leaves_nothing_half_written(store, tmp_path):
    """As Ctrl-C does, in the middle of a file."""

    def interrupted(_size):
        raise KeyboardInterrupt

    (tmp_path / "App").write_bytes(APP)
    adder = SymbolAdder(store, progress=interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(adder.add(InputFile(tmp_path / "App", len(APP), is_named=True)))

    assert [] == everything_in(store.root)


def test_a_store_that_cannot_be_written_is_an_error(tmp_path):
    """One, with the place: going on would not help."""
    (tmp_path / "App").write_bytes(APP)
    (tmp_path / "store").write_text("a file")

    with pytest.raises(FileAccessError, match="store"):
        add(SymbolStore(tmp_path / "store"), tmp_path / "App")


def test_progress_comes_to_the_size_of_the_input(store, tmp_path):
    """Of archives too, whatever is in them."""
    (tmp_path / "a.zip").write_bytes(zipped({"App": APP, "x": b"y" * 5000}))
    (tmp_path / "App").write_bytes(fat(APP, INTEL_APP))
    (tmp_path / "text").write_text("nothing")
    seen = []
    adder = SymbolAdder(store, progress=seen.append)
    for one in input_files(tmp_path):
        list(adder.add(one))

    assert sum(path.stat().st_size for path in tmp_path.iterdir() if path.is_file()) == sum(seen)


def test_what_can_go(store, bundle):
    """Leftovers of killed processes after a while, what is old, what is beyond a size, misfits."""
    add(store, *bundle)
    files = list(store.files())
    old = store.root / ".unfinished-0123"
    old.write_bytes(b"x")
    os.utime(old, (0, 0))
    (store.root / ".unfinished-now").write_bytes(b"x")
    now = old.with_name(".unfinished-now").stat().st_mtime + 10

    assert [old] == [one.path for one in leftovers(store, now=now)]
    assert [] == list(unused_since(files, now - 1000))
    assert 2 == len(list(unused_since(files, now + 1000)))
    assert [] == list(beyond_size(files, 1 << 30))
    assert 1 == len(list(beyond_size(files, max(len(APP), len(DSYM)))))
    assert [] == list(misplaced(files))
    files[0].path.write_bytes(INTEL_APP)
    wrong = list(misplaced(files))
    assert [files[0].path] == [one.path for one in wrong]

    remove(store, [*leftovers(store, now=now), *wrong, *unused_since(files, now + 1000)])
    assert [".unfinished-now"] == everything_in(store.root)
    assert {".unfinished-now"} == names_in(store.root)


def test_lldb_s_layout_leads_into_a_dsym_bundle(store, bundle, tmp_path):
    """The link is relative, so that the folder can be moved, and is not replaced."""
    add(store, *bundle)
    out = tmp_path / "export"
    results = [export_file(one, out, ExportLayout.LLDB) for one in store.files()]
    moved = tmp_path / "moved"
    out.rename(moved)
    link = moved / "82D1/3D98/219E/3040/B62A/07A297007A7C"

    assert [ExportResult.WRITTEN] * 2 == [one.result for one in results]
    assert stat.S_ISLNK(link.lstat().st_mode)
    assert link.resolve().parts[-5:] == (
        "App.dSYM", "Contents", "Resources", "DWARF", "App",
    )  # fmt: skip
    assert DSYM == link.read_bytes()
    assert APP == Path(f"{link}.app").read_bytes()
    again = [export_file(one, moved, ExportLayout.LLDB) for one in store.files()]
    assert [ExportResult.PRESENT] * 2 == [one.result for one in again]
    stored, _ = add(SymbolStore(tmp_path / "second"), moved)
    assert {FileKind.EXECUTABLE, FileKind.DEBUGINFO} == {one.kind for one in stored}


@pytest.mark.skipif(not shutil.which("gdb"), reason="gdb is not installed")
def test_gdb_finds_debug_files_in_the_build_id_layout(store, tmp_path):
    """The peer reads lines of a stripped program from what was exported."""
    source = tmp_path / "a.c"
    source.write_text("int f(int x) {\n  return x + 1;\n}\nint main(void) { return f(0); }\n")
    program = compile_elf([source], tmp_path / "a", options=["-g", "-Wl,--build-id"])
    debug = tmp_path / "a.debug"
    subprocess.run(["objcopy", "--only-keep-debug", program, debug], check=True, timeout=30)
    subprocess.run(["strip", program], check=True, timeout=30)
    add(store, debug)
    debug.unlink()
    for one in store.files():
        export_file(one, tmp_path / "export", ExportLayout.BUILD_ID)
    commands = ("-ex", f"set debug-file-directory {tmp_path / 'export'}", "-ex", f"file {program}")
    done = subprocess.run(
        ["gdb", "-nx", "-batch", *commands, "-ex", "info line f"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip

    assert 'Line 1 of "' in done.stdout


@pytest.mark.parametrize(
    ("platform", "variables", "place"),
    [
        ("linux", {}, "{home}/.local/share/machtrace/symbols"),
        ("linux", {"XDG_DATA_HOME": "/data"}, "/data/machtrace/symbols"),
        ("darwin", {}, "{home}/Library/Application Support/machtrace/symbols"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/machtrace/symbols"),
        ("linux", {"MACHTRACE_SYMBOLS": "~/mine"}, "{home}/mine"),
    ],
)
def test_where_the_default_store_is(monkeypatch, tmp_path, platform, variables, place):
    """Where the platform keeps a user's data, or where the user says."""
    for name in ("MACHTRACE_SYMBOLS", "XDG_DATA_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", platform)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert Path(place.format(home=tmp_path)) == default_store_path()


def test_the_search_for_files_looks_into_the_default_store(monkeypatch, store, bundle):
    """Without being told to, by UUID, for the binary and for what has more symbols."""
    add(store, *bundle)
    image = BinaryImage(
        path="/gone/App",
        uuid=ARM,
        arch=Arch.ARM64,
        format=ImageFormat.MACHO,
        load_address=Avma(0x1000),
        header_svma=Svma(0),
        size=0x1000,
    )
    monkeypatch.setenv("MACHTRACE_SYMBOLS", str(store.root))
    found = ImageSource.of().file(image)

    assert str(store.find(ARM, None, FileKind.EXECUTABLE)) == found.source
    monkeypatch.setenv("MACHTRACE_SYMBOLS", str(store.root / "elsewhere"))
    assert FrameStatus.MISSING_FILE is ImageSource.of().file(image)


def test_mutated_files_end_in_words(store, tmp_path):
    """Whatever bytes an image has, it is stored under a place of its own, or skipped; no error."""
    whole = fat(APP, INTEL_APP)
    path = tmp_path / "App"
    chosen = random.Random(17)  # noqa: S311 - no secret
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(chosen.randrange(1, 6)):
            data[chosen.randrange(min(len(data), 0x1600))] = chosen.randrange(256)
        path.write_bytes(data[: chosen.randrange(len(data))] if chosen.random() < 0.2 else data)
        add(store, path)
    for one in store.files():
        assert one.path.parent.parent.parent == store.root
    assert not [name for name in everything_in(store.root) if "unfinished" in name]
