"""A symbol store in a folder: adding, finding and removing files, with concurrent processes."""

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from machtrace.errors import FileAccessError
from machtrace.formats.macho.header import CPU_TYPE_X86_64, FileType
from machtrace.images.resolver import ImageResolver
from machtrace.images.store_layout import FileKind, default_store_path
from machtrace.model.address import Avma, Svma
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.symbol import FrameStatus
from machtrace.symbolstore.adding import InputFile, SymbolAdder, input_files
from machtrace.symbolstore.contained_images import SkipReason
from machtrace.symbolstore.gc import (
    misplaced,
)
from machtrace.symbolstore.store import SymbolStore
from tests.support.compilers.executables import compile_elf
from tests.support.writers.macho import ThinFile
from tests.support.writers.symbol_files import (
    APP,
    ARM,
    DSYM,
    INTEL,
    INTEL_APP,
    add,
    everything_in,
    fat,
    names_in,
    reasons,
    zipped,
)


def test_an_app_and_its_dsym_are_stored_in_symsorters_layout(store, bundle):
    """Under the UUID in lower case, each with a meta file of symsorter's three keys."""
    stored, skipped = add(store, *bundle)
    folder = store.root / "82" / "d13d98219e3040b62a07a297007a7c"

    assert {"executable", "executable.meta", "debuginfo", "debuginfo.meta"} == names_in(folder)
    assert (folder / "executable").read_bytes() == APP
    assert (folder / "debuginfo").read_bytes() == DSYM
    assert json.loads((folder / "executable.meta").read_text()) == {
        "name": "App",
        "arch": "arm64",
        "file_format": "macho",
    }
    assert [one.is_new for one in stored] == [True, True]
    assert reasons(skipped) == [SkipReason.NOT_AN_IMAGE]
    assert folder / "executable" == store.find(ARM, "arm64", FileKind.EXECUTABLE)
    assert folder / "debuginfo" == store.find(ARM, Arch.ARM64)
    assert store.find(INTEL) is None
    assert store.find(ARM, "x86_64") is None


@pytest.mark.peer
def test_stored_slices_equal_those_of_lipo(store, tmp_path):
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


def test_a_malformed_slice_does_not_affect_the_others(store, tmp_path):
    """It is reported."""
    broken = bytearray(INTEL_APP)
    broken[36:40] = struct.pack("<I", 3)  # the first load command's size
    path = tmp_path / "App"
    path.write_bytes(fat(APP, bytes(broken)))
    stored, skipped = add(store, path)

    assert [one.identifier for one in stored] == [ARM]
    assert reasons(skipped) == [SkipReason.MALFORMED]
    assert "x86_64" in skipped[0].source


@pytest.mark.peer
@pytest.mark.skipif(
    not all(map(shutil.which, ("cc", "objcopy", "readelf"))),
    reason="a C compiler, objcopy or readelf is not installed",
)
def test_elf_is_stored_under_the_build_id_of_readelf(store, tmp_path):
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
    assert [one.kind for one in stored] == [FileKind.EXECUTABLE, FileKind.DEBUGINFO]
    assert debug.read_bytes() == store.find(stored[0].identifier).read_bytes()


def test_adding_the_same_files_writes_nothing(store, bundle):
    """A meta file that an interruption left out is created."""
    add(store, *bundle)
    before = everything_in(store.root)
    path = store.find(ARM)
    stamp = path.stat().st_mtime_ns
    Path(f"{path}.meta").unlink()
    stored, _ = add(store, *bundle)

    assert [one.is_new for one in stored] == [False, False]
    assert before == everything_in(store.root)
    assert stamp == path.stat().st_mtime_ns


def test_other_contents_under_the_same_uuid_are_reported_and_skipped(store, tmp_path):
    """As of a binary that was stripped or signed again: the first one stays."""
    for name, data in (("first", APP), ("second", APP[:-1] + b"\xff")):
        (tmp_path / name).write_bytes(data)
    add(store, tmp_path / "first")
    stored, skipped = add(store, tmp_path / "second")

    assert stored == []
    assert reasons(skipped) == [SkipReason.COLLISION]
    assert str(ARM.hex) in skipped[0].detail
    assert store.find(ARM, None, FileKind.EXECUTABLE).read_bytes() == APP


def test_two_architectures_with_one_uuid_are_both_stored(store, tmp_path):
    """Each is found by its own."""
    intel = ThinFile(uuid=ARM, cputype=CPU_TYPE_X86_64, filetype=FileType.EXECUTE).build()
    for name, data in (("arm", APP), ("intel", intel)):
        (tmp_path / name).write_bytes(data)
    add(store, tmp_path / "arm", tmp_path / "intel")

    assert store.find(ARM, "arm64", FileKind.EXECUTABLE).read_bytes() == APP
    assert intel == store.find(ARM, "x86_64", FileKind.EXECUTABLE).read_bytes()
    assert {"arm64", "x86_64"} == {file.arch for file in store.files()}


def test_a_store_of_symsorter_is_read(store):
    """With its names of architectures, and files without meta."""
    folder = store.root / "82" / ARM.hex[2:]
    folder.mkdir(parents=True)
    (folder / "debuginfo").write_bytes(DSYM)

    assert folder / "debuginfo" == store.find(ARM, "arm64")
    assert store.find(ARM, "x86_64") is None
    (folder / "debuginfo.meta").write_text('{"name":"App","arch":"x86","file_format":"macho"}')
    assert [file.arch for file in store.files()] == ["i386"]


@pytest.mark.parametrize("meta", [b"", b"[]", b"{", b'{"arch": 3}', b"\xff", b"[" * 60000])
def test_an_invalid_meta_file_is_ignored(store, tmp_path, meta):
    """The file's own header identifies it."""
    (tmp_path / "App").write_bytes(APP)
    stored, _ = add(store, tmp_path / "App")
    Path(f"{stored[0].path}.meta").write_bytes(meta)

    assert [file.arch for file in store.files()] == ["arm64"]


@pytest.mark.peer
def test_concurrent_processes_add_each_image_once(tmp_path):
    """A file under its final name is always whole."""
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
    outputs = [json.loads(worker.communicate(timeout=60)[0]) for worker in workers]

    assert [worker.returncode for worker in workers] == [0, 0, 0]
    assert [len(output["images"]) for output in outputs] == [60, 60, 60]
    assert sum(image["new"] for output in outputs for image in output["images"]) == 60
    assert len(everything_in(root)) == 120
    assert list(misplaced(list(SymbolStore(root).files()))) == []


def test_an_interruption_leaves_nothing_half_written(store, tmp_path):
    """Ctrl-C in the middle of a file."""

    def interrupted(_size):
        raise KeyboardInterrupt

    (tmp_path / "App").write_bytes(APP)
    adder = SymbolAdder(store, progress=interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(adder.add(InputFile(tmp_path / "App", len(APP), is_named=True)))

    assert everything_in(store.root) == []


def test_an_unwritable_store_is_one_error_with_the_path(tmp_path):
    """It ends the command: each further file would fail, too."""
    (tmp_path / "App").write_bytes(APP)
    (tmp_path / "store").write_text("a file")

    with pytest.raises(FileAccessError, match="store"):
        add(SymbolStore(tmp_path / "store"), tmp_path / "App")


def test_progress_ends_at_the_size_of_the_input(store, tmp_path):
    """Archives included, with any contents."""
    (tmp_path / "a.zip").write_bytes(zipped({"App": APP, "x": b"y" * 5000}))
    (tmp_path / "App").write_bytes(fat(APP, INTEL_APP))
    (tmp_path / "text").write_text("nothing")
    seen = []
    adder = SymbolAdder(store, progress=seen.append)
    for file in input_files(tmp_path):
        list(adder.add(file))

    assert sum(path.stat().st_size for path in tmp_path.iterdir() if path.is_file()) == sum(seen)


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
def test_the_default_store_is_set_by_the_platform_or_a_variable(
    monkeypatch, tmp_path, platform, variables, place
):
    for name in ("MACHTRACE_SYMBOLS", "XDG_DATA_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", platform)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert Path(place.format(home=tmp_path)) == default_store_path()


def test_the_default_store_is_searched(monkeypatch, store, bundle):
    """By UUID, for the binary and for a file with more symbols."""
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
    found = ImageResolver.of().binary(image)

    assert str(store.find(ARM, None, FileKind.EXECUTABLE)) == found.source
    monkeypatch.setenv("MACHTRACE_SYMBOLS", str(store.root / "elsewhere"))
    assert FrameStatus.MISSING_FILE is ImageResolver.of().binary(image)
