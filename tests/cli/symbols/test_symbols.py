"""``machtrace symbols``: output, errors, exit statuses, and the store after Ctrl-C."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
import zipfile
from functools import partial
from uuid import UUID

import pytest

from machtrace.formats.macho.header import FileType
from machtrace.model.arch import Arch
from tests.support.command_line import run_command
from tests.support.writers.macho import ThinFile
from tests.support.writers.processes import synthetic_process

ARM = UUID("82d13d98-219e-3040-b62a-07a297007a7c")
APP = ThinFile(uuid=ARM, filetype=FileType.EXECUTE).build()
DSYM = ThinFile(uuid=ARM, filetype=FileType.DSYM).build()
REPORT = """\
Incident Identifier: 1
Binary Images:
0x102230000 - 0x102237fff App arm64  <82d13d98219e3040b62a07a297007a7c> /x/App.app/App
0x18a94d000 - 0x18aeb5fff libc arm64e  <a49d560c13233bfba7e8762be0c1b2ef> /usr/lib/libc
"""


@pytest.fixture
def symbols(tmp_path, monkeypatch):
    """Return a function that runs the command with its own store: in this process, if it can."""
    monkeypatch.setenv("MACHTRACE_SYMBOLS", str(tmp_path / "store"))

    return partial(run_command, "symbols")


@pytest.fixture
def archive(tmp_path):
    """Return an .xcarchive with an app, its dSYM and other files."""
    root = tmp_path / "App.xcarchive"
    files = {
        "Products/Applications/App.app/App": APP,
        "Products/Applications/App.app/Info.plist": b"<plist/>",
        "dSYMs/App.app.dSYM/Contents/Resources/DWARF/App": DSYM,
        "dSYMs/libx.a": b"!<arch>\n",
    }
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def test_adding_listing_finding(symbols, archive, tmp_path):
    """An archive of Xcode's is added; its image is listed, and the files' paths are found."""
    added = symbols("add", archive)
    again = symbols("add", archive, "--verbose")
    listed = symbols("list")
    paths = symbols("find", "82D13D98219E3040B62A07A297007A7C")
    folder = tmp_path / "store/82/d13d98219e3040b62a07a297007a7c"

    assert added.returncode == 0
    assert "added               2  1 debuginfo, 1 executable" in added.stdout
    assert "skipped             1  1 static library" in added.stdout
    assert "static library: " in added.stderr
    assert "already there       2" in again.stdout
    assert f"{str(ARM).upper()} arm64 debuginfo: already there" in again.stdout
    assert [listed.returncode, again.returncode] == [0, 0]
    row = listed.stdout.splitlines()[1].split()
    assert [str(ARM).upper(), "arm64", "debuginfo", "executable"] == row[:4]
    assert row[-1] == "App"
    assert "1 image, 2 files" in listed.stdout
    assert f"{folder}/debuginfo\n{folder}/executable\n" == paths.stdout


@pytest.mark.parametrize(
    "query",
    ["82d13d98-219e-3040-b62a-07a297007a7c", "<82d13d98219e3040b62a07a297007a7c>", "app", "A*"],
)
def test_find_takes_uuids_and_names_as_they_are_written(symbols, archive, query):
    """The status is 1 if nothing matches."""
    symbols("add", archive)

    assert symbols("find", query).stdout.count("\n") == 2
    for missing in ("23516be4-29be-350c-91c9-f36e7999f0f1", "Nothing"):
        done = symbols("find", missing)
        assert (done.returncode, done.stdout) == (1, "")
        assert missing in done.stderr.splitlines()[0]
        assert done.stderr.splitlines()[1].startswith("hint: ")
    assert "is neither a UUID, a build-id nor an image's name" in done.stderr
    assert symbols("find", query, "--arch", "x86_64").stdout == ""


def test_json_has_the_same_facts(symbols, archive):
    """The documents have a schema's number."""
    added = json.loads(symbols("add", archive, "--format", "json").stdout)
    listed = json.loads(symbols("list", "--format", "json").stdout)

    assert [added["schema"], listed["schema"]] == [1, 1]
    assert [image["new"] for image in added["images"]] == [True, True]
    assert [(skip["reason"], skip["failure"]) for skip in added["skipped"]] == [
        ("static library", False)
    ]
    assert added["other_files"] == 1
    assert {"debuginfo", "executable"} == {file["kind"] for file in listed["files"]}
    assert [str(ARM).upper()] * 2 == [file["uuid"] for file in listed["files"]]


def test_paths_without_an_image_are_errors(symbols, tmp_path):
    """Each has one line; the rest is added."""
    (tmp_path / "text").write_text("nothing")
    (tmp_path / "cut").write_bytes(APP[:-1])
    (tmp_path / "App").write_bytes(APP)
    (tmp_path / "empty").mkdir()
    names = ("text", "cut", "empty", "nowhere", "App")
    done = symbols("add", *(tmp_path / name for name in names))

    assert done.returncode == 1
    assert "added               1" in done.stdout
    assert [
        f"machtrace: no image: {tmp_path / 'text'}",
        f"machtrace: malformed: {tmp_path / 'cut'} (its last 1 bytes are missing)",
        f"machtrace: unreadable: {tmp_path / 'nowhere'} (no such file or directory)",
        f"machtrace: no image in {tmp_path / 'empty'}",
    ] == done.stderr.splitlines()


def test_limits_can_be_set(symbols, tmp_path):
    """They are sizes with units; anything else is a usage error."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("App", APP)
    done = symbols("add", tmp_path / "a.zip", "--max-member", "1K")

    assert done.returncode == 1
    assert "beyond a limit" in done.stderr
    assert symbols("add", tmp_path / "a.zip", "--max-member", "1.5 MB").returncode == 0
    assert symbols("add", tmp_path / "a.zip", "--max-member", "much").returncode == 2


@pytest.mark.peer
def test_images_that_a_report_needs(symbols, archive, tmp_path):
    """The program's own images come first; the status is 1 if any is missing."""
    report = tmp_path / "App.crash"
    report.write_text(REPORT)
    before = symbols("missing", report)
    symbols("add", archive / "dSYMs")
    after = symbols("missing", "-", "--no-system", input=REPORT)
    document = json.loads(symbols("missing", report, "--format", "json").stdout)

    assert before.returncode == 1
    assert [str(ARM).upper(), "arm64", "all", "/x/App.app/App"] == before.stdout.splitlines()[
        1
    ].split()
    assert "2 images: 2 missing" in before.stdout
    assert (
        after.returncode, after.stdout,
    ) == (0, "1 image: 0 missing, 0 without a debug file, 1 complete\n")  # fmt: skip
    assert [(image["system"], image["stored"]) for image in document["images"]] == [
        (False, ["debuginfo"]),
        (True, []),
    ]


def test_images_that_a_core_needs(symbols, tmp_path):
    """They are the images of a backtrace."""
    path = tmp_path / "x.core"
    path.write_bytes(synthetic_process(Arch.ARM64, threads=1, images=3, depth=3).core())
    done = symbols("missing", path)

    assert done.returncode == 1
    assert "3 images: 3 missing" in done.stdout


@pytest.mark.peer
@pytest.mark.parametrize("text", ["", "no list here\n", "{}"])
def test_a_report_without_images_is_an_error(symbols, text):
    done = symbols("missing", "-", input=text)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("machtrace: no list of binary images: ")


def test_gc_removes_only_requested_files(symbols, archive):
    """A dry run removes nothing."""
    symbols("add", archive)

    assert symbols("gc").stdout == "0 files removed, 0 bytes\n"
    assert "0 files removed" in symbols("gc", "--unused-for", "1d", "--orphans").stdout
    dry = symbols("gc", "--max-size", "0", "--dry-run")
    assert "2 files would be removed" in dry.stdout
    assert symbols("find", "App").stdout.count("\n") == 2
    assert "2 files removed" in symbols("gc", "--max-size", "0").stdout
    assert "0 images, 0 files" in symbols("list").stdout
    assert symbols("gc", "--unused-for", "soon").returncode == 2


def aged(path, content=b"x"):
    """Create a file of 2001, too old to be still written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (1e9, 1e9))
    return path


@pytest.mark.parametrize("name", ["photo.meta", "ab/photo.meta", "ab/cdef", "ab/x/debuginfo.meta"])
def test_a_folder_that_is_no_store_is_not_cleaned(symbols, tmp_path, name):
    retained = aged(tmp_path / "other" / name)

    done = symbols("gc", "--store", tmp_path / "other", "--max-size", "0", "--orphans")

    assert (done.returncode, done.stdout) == (1, "")
    assert "this folder is no symbol store" in done.stderr
    assert retained.exists()


def test_other_files_in_a_store_stay(symbols, archive, tmp_path):
    """Only names that the store itself writes are leftovers."""
    symbols("add", archive)
    store = tmp_path / "store"
    folder = next(store.glob("??/*"))
    retained = [aged(store / "photo.meta"), aged(store / "zz/x/debuginfo.meta")]
    retained.append(aged(folder / "photo.meta"))
    gone = [aged(folder / "debuginfo.arm64e.meta"), aged(folder / ".unfinished-1")]

    assert "2 files removed" in symbols("gc").stdout
    assert all(path.exists() for path in retained)
    assert not any(path.exists() for path in gone)


def test_exporting_for_lldb(symbols, archive, tmp_path):
    """Selected images are exported, or all; words that match nothing are reported."""
    symbols("add", archive)
    done = symbols("export", tmp_path / "uuids", "App", "Other")

    assert done.returncode == 1
    assert done.stdout == "      2  written\n"
    assert "machtrace: nothing for Other" in done.stderr
    link = tmp_path / "uuids/82D1/3D98/219E/3040/B62A/07A297007A7C"
    assert link.read_bytes() == DSYM
    assert symbols("export", tmp_path / "uuids").stdout == "      2  already there\n"
    assert symbols("export", tmp_path / "other", "--layout", "build-id").returncode == 1


@pytest.mark.peer
def test_a_terminal_shows_a_progress_bar(symbols, archive):
    """It disappears at the end; the summary stays."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "MACHTRACE_SYMBOLS": str(archive.parent / "pty"), "TERM": "xterm"}
    environment.pop("NO_COLOR", None)
    done = symbols("add", archive, stderr=theirs, stdout=subprocess.PIPE, capture_output=False,
                   env=environment)  # fmt: skip
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:  # the end, as Linux reports it
        pass
    os.close(ours)

    assert "added               2" in done.stdout
    assert b"already there" in shown
    assert b"\x1b[" in shown


@pytest.mark.peer
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT to send")
def test_ctrl_c_leaves_nothing_half_written(tmp_path):
    """The store's files are complete, and no scratch file is left; the status is 130."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3000):
        data = ThinFile(uuid=UUID(int=number + 1), code=bytes(100_000)).build()
        if number < 8:
            (folder / str(number)).write_bytes(data)
        else:
            os.link(folder / str(number % 8), folder / str(number))
    for attempt in range(5):
        root = tmp_path / f"store-{attempt}"
        command = [sys.executable, "-m", "machtrace", "symbols", "add", folder, "--store", root]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
            deadline = time.monotonic() + 30
            while not root.exists() and time.monotonic() < deadline:
                time.sleep(0.001)
            running.send_signal(signal.SIGINT)
            _, complaint = running.communicate(timeout=30)
        if running.returncode != 0:  # on a busy machine it may be done before it is interrupted
            break

    assert (running.returncode, complaint) == (130, b"")
    left = [path for path in root.rglob("*") if path.is_file()]
    assert [path for path in left if "unfinished" in path.name] == []
    assert {len(ThinFile(code=bytes(100_000)).build())} >= {
        path.stat().st_size for path in left if path.suffix != ".meta"
    }


def test_a_store_that_is_a_file_is_an_error(symbols, tmp_path, archive):
    (tmp_path / "store").write_text("")
    done = symbols("add", archive)

    assert done.returncode == 1
    assert done.stderr.count("\n") == 2
    assert str(tmp_path / "store") in done.stderr


@pytest.mark.live
@pytest.mark.skipif(sys.platform != "linux", reason="other processes are read on Linux only")
def test_a_process_needs_nothing_that_this_machine_has(symbols):
    """Its executable is found at the path it was started from; the vdso has no file."""
    with subprocess.Popen(["sleep", "60"]) as running:
        try:
            document = json.loads(symbols("missing", running.pid, "--format", "json").stdout)
        finally:
            running.kill()
    (own,) = (image for image in document["images"] if image["name"] == "sleep")

    assert "executable" in own["stored"]
    assert all("vdso" not in image["name"] for image in document["images"])


@pytest.mark.live
@pytest.mark.skipif(sys.platform != "linux", reason="other processes are read on Linux only")
@pytest.mark.parametrize("form", ["apple", "ips", "json"])
def test_written_stacks_need_what_their_process_needs(symbols, tmp_path, form):
    """Build-ids are read from each format that lists images."""
    with subprocess.Popen(["sleep", "60"]) as running:
        try:
            process = json.loads(symbols("missing", running.pid, "--format", "json").stdout)
            command = [sys.executable, "-m", "machtrace", "backtrace", str(running.pid), "-f", form]
            text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        finally:
            running.kill()
    (tmp_path / "stacks").write_text(text)
    listed = json.loads(symbols("missing", tmp_path / "stacks", "--format", "json").stdout)

    expected = {(image["uuid"], image["path"]) for image in process["images"]}
    assert {(image["uuid"], image["path"]) for image in listed["images"]} == expected
    assert expected
