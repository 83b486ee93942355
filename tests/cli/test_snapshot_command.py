"""``machtrace snapshot``: the file, the summary, errors and exit statuses."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from machtrace.model.arch import Arch
from tests.support.command_line import run_command as machtrace
from tests.support.writers.processes import synthetic_process

TIME = re.compile(r"stopped for [\d.]+ [µm]s")


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    """Return a complete core of three threads."""
    path = tmp_path_factory.mktemp("core") / "whole.core"
    path.write_bytes(synthetic_process(Arch.ARM64, threads=3, images=2, depth=6).core())
    return path


@pytest.mark.emulated
def test_the_demo_is_printed_the_same_from_its_core(tmp_path):
    """Only the stop times differ, as from one run to the next."""
    pytest.importorskip("unicorn", reason="emulated:demo needs the extra 'emulator'")
    path = tmp_path / "demo.core"
    done = machtrace("snapshot", "emulated:demo", "-o", path)
    size = path.stat().st_size

    assert (done.returncode, done.stderr) == (0, "")
    assert f"{path}: Demo, 10 threads, 1 image, {size:,} bytes\n" == done.stdout
    assert size < 100_000
    live, saved = (machtrace("backtrace", spec) for spec in ("emulated:demo", path))
    assert TIME.sub("", live.stdout) == TIME.sub("", saved.stdout)
    assert live.stdout.count("stopped for") == saved.stdout.count("stopped for") == 10


def test_json_has_the_path_the_size_and_the_process(core, tmp_path):
    path = tmp_path / "x.core"
    done = machtrace("snapshot", core, "--output", path, "--format", "json", "--thread", "#2")
    document = json.loads(done.stdout)

    assert done.returncode == 0
    assert {"path": str(path), "format": "macho", "size": path.stat().st_size} == {
        key: document[key] for key in ("path", "format", "size")
    }
    assert [len(document["threads"]), document["images"], document["problems"]] == [1, 2, []]
    assert document["process"]["name"] == "Synthetic"


def test_its_options_are_those_of_backtrace(core, tmp_path):
    """``--stack-limit`` truncates stacks; ``--images none`` omits code and tables."""
    whole, bare = tmp_path / "whole.core", tmp_path / "bare.core"
    machtrace("snapshot", core, "-o", whole)
    done = machtrace("snapshot", core, "-o", bare, "--images", "none", "--stack-limit", "4096")

    assert done.returncode == 0
    assert bare.stat().st_size < whole.stat().st_size


def test_missing_parts_are_reported_and_the_rest_is_saved(core, tmp_path):
    """The core is truncated: the status is 1, and the saved core has the same problems."""
    cut, saved = tmp_path / "cut.core", tmp_path / "saved.core"
    data = core.read_bytes()
    cut.write_bytes(data[: len(data) - 4096])
    done = machtrace("snapshot", cut, "-o", saved)
    again = machtrace("backtrace", saved)

    assert done.returncode == 1
    assert "3 threads" in done.stdout
    assert "cut off" in done.stderr
    assert again.returncode == 1
    assert done.stderr == again.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("/no/such/file", "-o", "OUT"),
        ("CORE", "-o", "/no/such/folder/x.core"),
        ("CORE", "-o", "."),
        ("CORE", "-o", "OUT", "--thread", "nobody"),
        ("4194304000", "-o", "OUT"),
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_an_error_is_a_fact_and_a_hint_with_status_1(core, tmp_path, words):
    """No file is left."""
    places = {"CORE": str(core), "OUT": str(tmp_path / "x.core")}
    done = machtrace("snapshot", *(places.get(word, word) for word in words))

    assert (done.returncode, done.stdout) == (1, "")
    fact, hint = done.stderr.splitlines()
    assert fact.startswith("machtrace: ")
    assert hint.startswith("hint: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_an_error(core):
    """No summary is printed."""
    done = machtrace("snapshot", core, "-o", "/dev/full")

    assert (done.returncode, done.stdout) == (1, "")
    assert "no space left on device" in done.stderr


@pytest.mark.peer
def test_it_goes_to_standard_output(core, tmp_path):
    """The bytes are the same as a file's, and the summary goes to standard error."""
    path = tmp_path / "x.core"
    printed = machtrace("snapshot", core, "-o", path).stdout
    done = machtrace("snapshot", core, "-o", "-", text=False, cwd=tmp_path)

    assert done.returncode == 0
    assert path.read_bytes() == done.stdout
    assert printed.replace(str(path), "standard output") == done.stderr.decode()
    assert [path] == list(tmp_path.iterdir())


@pytest.mark.peer
def test_a_terminal_is_no_place_for_it(core):
    pty = pytest.importorskip("pty", reason="this system has no pseudo-terminals")
    primary, terminal = pty.openpty()
    try:
        done = machtrace(
            *("snapshot", core, "-o", "-"),
            capture_output=False,
            stdout=terminal,
            stderr=subprocess.PIPE,
        )
    finally:
        os.close(terminal)
        os.close(primary)

    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "machtrace: a terminal cannot show binary data: standard output",
        "hint: redirect it, or name an output file",
    ]


def test_a_snapshot_without_images_has_a_hint_to_pass_them(core, tmp_path):
    """The hint appears on saving, and if callers were guessed without it."""
    bare = tmp_path / "bare.core"
    done = machtrace("snapshot", core, "-o", bare, "--images", "none")
    walked = machtrace("backtrace", bare)

    assert [done.returncode, walked.returncode] == [0, 0]
    assert "--search" in done.stderr
    assert "in 3 of 3 stacks the first caller is a guess" in walked.stderr
    assert machtrace("backtrace", core).stderr == ""


def test_a_place_for_it_must_be_named(core):
    """Where to write is no guess of ours."""
    assert machtrace("snapshot", core).returncode == 2
