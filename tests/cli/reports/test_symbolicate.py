"""``machtrace symbolicate`` and ``convert`` as a user meets them."""

from __future__ import annotations

import gzip
import io
import json
import os
import stat
import subprocess
import sys
import zipfile

import pytest

from machtrace.cli.main import main
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource
from tests.support.reports.samples import APP_UUID, REPORT_SAMPLES, SYSTEM_UUID

IPS, CRASH = REPORT_SAMPLES["ips"], REPORT_SAMPLES["crash"]


@pytest.fixture
def machtrace(monkeypatch, capfdbinary):
    """Return a function that runs the command here: status, standard output, standard error."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["machtrace", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfdbinary.readouterr()
        assert b"Traceback" not in err
        return ended.value.code or 0, out, err.decode()

    return run


def reports(data):
    """Return the reports in ``data``."""
    return read_source(ReportSource("written", data)).reports


def zipped(**members):
    """Return the bytes of an archive with these members."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return sink.getvalue()


def test_one_file_goes_to_standard_output(machtrace, tmp_path):
    """The output is Apple's text; missing images are listed with UUIDs, most frames first."""
    (tmp_path / "a.ips").write_bytes(IPS)
    status, out, err = machtrace("symbolicate", tmp_path / "a.ips", "-f", "apple")

    assert status == 0
    assert out.lstrip().startswith(b"Incident Identifier: 11111111-2222")
    lines = err.splitlines()
    assert lines[-2] == (
        f"machtrace: no symbols for libsystem_kernel.dylib arm64e {str(SYSTEM_UUID).upper()}:"
        " 2 frames"
    )
    assert lines[-1] == f"machtrace: no symbols for App arm64 {str(APP_UUID).upper()}: 1 frame"
    assert "0 frames named from files; 1 keeps its name from the report; 3 have none" in err


def test_a_file_is_written_to_the_requested_path(machtrace, tmp_path):
    """The path is a file, an existing folder, or ``-`` for standard output."""
    source = tmp_path / "a.ips"
    source.write_bytes(IPS)
    (tmp_path / "folder").mkdir()

    assert machtrace("symbolicate", source, "-o", tmp_path / "b.crash")[:2] == (0, b"")
    assert machtrace("symbolicate", source, "-o", tmp_path / "folder")[:2] == (0, b"")
    written = (tmp_path / "b.crash").read_bytes()
    assert written == (tmp_path / "folder" / "a.crash").read_bytes()
    assert written == machtrace("symbolicate", source, "-o", "-", "-f", "apple")[1]


@pytest.mark.parametrize("kind", ["ips", "crash", "sample", "call-stack-symbols", "lldb", "bs"])
def test_one_file_keeps_its_form(machtrace, tmp_path, kind):
    """It is read as the same kind again; KSCrash's JSON is not written, so it becomes a text."""
    (tmp_path / "a").write_bytes(REPORT_SAMPLES[kind])
    (tmp_path / "k").write_bytes(REPORT_SAMPLES["kscrash"])
    out = machtrace("symbolicate", tmp_path / "a")[1]
    (report,) = read_source(ReportSource("out", out)).reports
    assert report.kind.value == kind
    assert machtrace("symbolicate", tmp_path / "a", "-o", tmp_path / "b.txt")[:2] == (0, b"")
    assert (tmp_path / "b.txt").read_bytes() == out
    text = machtrace("symbolicate", tmp_path / "k")[1]
    assert b"Incident Identifier" in text
    several = machtrace("symbolicate", tmp_path / "a", tmp_path / "k")[1]
    assert several.count(b"Binary Images:") >= 1


def test_folders_and_archives_are_searched(machtrace, tmp_path):
    """Files that are not reports are skipped and counted."""
    folder = tmp_path / "in" / "deeper"
    folder.mkdir(parents=True)
    (folder / "a.ips").write_bytes(IPS)
    (folder / "readme.md").write_text("nothing of the kind")
    (tmp_path / "in" / "b.gz").write_bytes(gzip.compress(CRASH))
    (tmp_path / "in" / "c.zip").write_bytes(zipped(**{"x/a.ips": IPS, "x/d.zip": zipped(e=CRASH)}))
    status, out, err = machtrace("symbolicate", tmp_path / "in", "-o", tmp_path / "out")

    assert (status, out) == (0, b"")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["a-2.crash", "a.crash", "b.crash", "e.crash"]
    assert "4 reports of 5 files, 1 file was no report" in err


def test_a_folder_within_its_own_output_is_not_read_again(machtrace, tmp_path):
    """Nor does an output replace its report, unless the output path names it."""
    (tmp_path / "a.crash").write_bytes(CRASH)
    for _ in range(2):
        status, _, err = machtrace("symbolicate", tmp_path, "-o", tmp_path / "out")
        assert status == 0
        assert "1 report of" not in err
    machtrace("symbolicate", tmp_path, "-o", tmp_path)

    assert (tmp_path / "a.crash").read_bytes() == CRASH
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["a-2.crash", "a-3.crash", "a.crash", "out"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.crash"]


@pytest.mark.parametrize(
    "name",
    [
        "../../../escaped.ips",
        "/etc/escaped.ips",
        "..\\..\\escaped.ips",
        "C:\\escaped.ips",
        "..",
        ".ips",
        "new\nline\x1b[31m.ips",
        "n" * 3000 + ".ips",
        "テ" * 500 + ".ips",
        " .ips",
    ],
    ids=lambda name: ascii(name)[:20],
)
def test_names_in_archives_stay_in_the_folder(machtrace, tmp_path, name):
    """Each name results in one new file in the output folder, and none outside."""
    (tmp_path / "a.zip").write_bytes(zipped(**{name: IPS}))
    out = tmp_path / "deep" / "out"
    status, _, err = machtrace("symbolicate", tmp_path / "a.zip", "-o", out)

    assert status == 0
    (made,) = out.iterdir()
    assert made.name.endswith(".crash")
    assert made.name.isprintable()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip", "deep"]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]
    assert "\x1b" not in err


def test_several_files_of_one_stem_are_all_written(machtrace, tmp_path):
    """Names that differ in case only count as equal, as on some file systems."""
    for name in ("x/a.ips", "y/a.ips", "z/A.ips", "w/a.crash"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(CRASH)
    files = sorted(tmp_path.glob("*/*"))
    machtrace("symbolicate", *files, "-o", tmp_path / "out")

    assert len({path.name.lower() for path in (tmp_path / "out").iterdir()}) == 4


def test_json_of_several_is_one_document(machtrace, tmp_path):
    """The document on standard output reads back as all reports."""
    for number in range(70):
        (tmp_path / f"{number:02}.ips").write_bytes(IPS if number % 2 else CRASH)
    status, out, _ = machtrace("symbolicate", tmp_path, "--format", "json", "--jobs", "1")

    assert status == 0
    written = reports(out)
    assert len(written) == 70
    assert written[::2] == reports(CRASH) * 35
    assert written[1::2] == reports(IPS) * 35


def test_several_processes_write_the_same_output_as_one(machtrace, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(66):
        text = IPS.decode().replace('"pid": 455', f'"pid": {number}')
        (folder / f"{number:02}.ips").write_text(text)
    single = machtrace("symbolicate", folder, "--jobs", "1")
    double = machtrace("symbolicate", folder, "--jobs", "2")

    assert single == double
    assert single[0] == 0
    assert single[1].count(b"Incident Identifier") == 66


@pytest.mark.parametrize("name", ["ips", "speedscope", "firefox", "pprof"])
def test_formats_of_one_report_want_a_folder_for_several(machtrace, tmp_path, name):
    """These formats cannot be concatenated; a payload of several diagnostics has several files."""
    (tmp_path / "a").write_bytes(REPORT_SAMPLES["metrickit"])
    (tmp_path / "b").write_bytes(IPS)
    status, out, err = machtrace("symbolicate", tmp_path / "a", tmp_path / "b", "-f", name)
    assert (status, out) == (1, b"")
    assert "write them to a folder: -o FOLDER" in err
    status, out, err = machtrace("symbolicate", tmp_path / "a", "-f", name)
    assert (status, out) == (1, b"")
    assert "holds one report, not 2" in err

    (tmp_path / "out").mkdir()
    assert machtrace("symbolicate", tmp_path / "a", "-f", name, "-o", tmp_path / "out")[0] == 0
    assert len(list((tmp_path / "out").iterdir())) == 2


@pytest.fixture
def two(tmp_path):
    """Return a folder with two reports."""
    folder = tmp_path / "reports"
    folder.mkdir()
    (folder / "a.ips").write_bytes(IPS)
    (folder / "b.crash").write_bytes(CRASH)
    return folder


def test_a_page_of_several_files_is_one_page_with_an_overview(machtrace, two, tmp_path):
    page = tmp_path / "all.html"
    assert machtrace("convert", two, page)[0] == 0
    status, out, _ = machtrace("convert", two, "--format", "html")

    assert status == 0
    assert out == page.read_bytes()
    assert out.lower().count(b"<!doctype") == 1
    for part in (b"<h2>Groups</h2>", b'id="report-1"', b'id="report-2"'):
        assert out.count(part) == 1


def test_many_files_in_several_processes_are_one_page(machtrace, tmp_path):
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number}.ips").write_bytes(IPS)
    page = tmp_path / "all.html"
    assert machtrace("symbolicate", folder, "-f", "html", "-o", page, "--jobs", "2")[0] == 0
    assert page.read_bytes().lower().count(b"<!doctype") == 1
    assert b'id="report-40"' in page.read_bytes()


def test_a_file_name_with_the_formats_suffix_is_one_file(machtrace, two, tmp_path):
    status, _, _ = machtrace("symbolicate", two, "-f", "json", "-o", tmp_path / "two.json")
    assert status == 0
    assert len(reports((tmp_path / "two.json").read_bytes())) == 2

    status, _, err = machtrace("symbolicate", two, "-f", "ips", "-o", tmp_path / "two.ips")
    assert status == 1
    assert "write them to a folder: -o FOLDER" in err
    assert not (tmp_path / "two.ips").exists()


def test_no_file_is_written_if_there_is_no_report(machtrace, tmp_path):
    folder = tmp_path / "none"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / name).write_text("no report")
    (tmp_path / "all.html").write_text("before")
    assert machtrace("convert", folder, tmp_path / "all.html")[0] == 1
    assert (tmp_path / "all.html").read_text() == "before"


def test_usage_errors_are_reported_before_any_file_is_read(machtrace, tmp_path):
    """Each is a fact and a hint."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # reading it would never end

    status, out, err = machtrace("symbolicate", pipe, "--format", "appel")
    assert (status, out) == (2, b"")
    fact, hint = err.splitlines()
    assert "'appel' is not one of apple, ips, json" in fact
    assert hint == "hint: see machtrace symbolicate --help"
    status, _, err = machtrace("convert", pipe, tmp_path / "x.docx")
    assert status == 1
    assert "no format has the suffix" in err
    assert machtrace("symbolicate")[0] == 2
    assert machtrace("symbolicate", pipe, "--jobs", "0")[0] == 2


def test_errors_name_the_input_as_it_was_given(machtrace, monkeypatch):
    """An address is no path, whose slashes may be merged."""
    status, _, err = machtrace("convert", "http://example.invalid//a")
    assert status == 1
    assert err.splitlines()[0].endswith("no such file or directory: http://example.invalid//a")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    status, _, err = machtrace("convert", "-")
    assert status == 1
    assert err == "machtrace: standard input has no content\nhint: pipe a report into it\n"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no content"),
        (bytes(100), "no content"),
        (b"hello", "unknown kind of report"),
        (b"\x1f\x8bnothing", "cannot be decompressed"),
        (b"PK\x03\x04nothing", "cannot be unpacked"),
    ],
)
def test_a_file_without_a_report_is_an_error(machtrace, tmp_path, data, reason):
    """The status is 1, and no file is written."""
    (tmp_path / "a").write_bytes(data)
    status, out, err = machtrace("symbolicate", tmp_path / "a", "-o", tmp_path / "b")

    assert (status, out) == (1, b"")
    assert reason in err
    assert err.count("\n") == 2
    assert not (tmp_path / "b").exists()


def test_an_unreadable_file_costs_only_itself(machtrace, tmp_path):
    """The others are written, and the status is 1."""
    (tmp_path / "a.ips").write_bytes(IPS)
    missing = tmp_path / "missing.ips"
    status, out, err = machtrace("symbolicate", missing, tmp_path / "a.ips", "/dev/null")

    assert status == 1
    assert out.lstrip().startswith(b"Incident Identifier")
    assert f"no such file or directory: {missing}" in err
    assert "/dev/null" in err
    assert "1 report of 3 files" in err


def test_an_empty_folder_is_an_error(machtrace, tmp_path):
    status, out, err = machtrace("symbolicate", tmp_path)

    assert (status, out) == (1, b"")
    assert "no files" in err


def test_pipes_in_folders_are_not_waited_for(machtrace, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a.ips").write_bytes(IPS)
    status, out, _ = machtrace("symbolicate", tmp_path)

    assert status == 1
    assert out.lstrip().startswith(b"Incident Identifier")


def test_unwritable_output_paths_are_errors(machtrace, tmp_path):
    """One is a file instead of a folder, the other a folder below a file."""
    for name in ("a.ips", "b.ips"):
        (tmp_path / name).write_bytes(IPS)
    files = sorted(tmp_path.iterdir())
    (tmp_path / "there").write_text("kept")

    status, _, err = machtrace("symbolicate", *files, "-o", tmp_path / "there")
    assert (status, (tmp_path / "there").read_text()) == (1, "kept")
    assert "is a file, and there are several reports" in err
    status, _, err = machtrace("symbolicate", *files, "-o", tmp_path / "there" / "below")
    assert status == 1
    assert "not a directory" in err
    status, _, err = machtrace("symbolicate", files[0], "-o", tmp_path / "no" / "such" / "f.crash")
    assert status == 1
    assert "pass the name of a file in a folder" in err
    (tmp_path / "out" / "a.crash").mkdir(parents=True)
    status, _, err = machtrace("symbolicate", *files, "-o", tmp_path / "out")
    assert status == 1
    assert "a.crash" in err
    assert (tmp_path / "out" / "b.crash").is_file()


def test_convert_goes_by_the_name_that_is_written(machtrace, tmp_path):
    """A converted report converts back to an equal one."""
    source, profile = tmp_path / "a.crash", tmp_path / "c.speedscope.json"
    source.write_bytes(CRASH)
    assert machtrace("convert", source, tmp_path / "b.json") == (0, b"", "")
    status, out, err = machtrace("convert", tmp_path / "b.json", "-", "--format", "json")

    assert (status, err) == (0, "")
    assert reports(out) == reports(CRASH)
    assert machtrace("convert", source, profile) == (0, b"", "")
    assert "speedscope" in json.loads(profile.read_text())["$schema"]


def test_reports_have_the_permissions_of_other_new_files(machtrace, tmp_path):
    (tmp_path / "a.ips").write_bytes(IPS)
    machtrace("convert", tmp_path / "a.ips", tmp_path / "b.json")

    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert len(modes) == 1


@pytest.mark.peer
def test_standard_input_may_be_an_archive_or_a_report():
    """``-`` is read as bytes."""
    for data in (IPS, gzip.compress(IPS)):
        done = subprocess.run(
            [sys.executable, "-m", "machtrace", "symbolicate", "-", "-f", "apple"],
            input=data,
            capture_output=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0
        assert done.stdout.lstrip().startswith(b"Incident Identifier")


@pytest.mark.peer
def test_bytes_are_not_for_a_terminal(tmp_path):
    """The command refuses it before the report is read; one file has no progress bar."""
    parent, child = os.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "machtrace", "convert", tmp_path / "x", "-f", "pprof"],
        stdout=child,
        stderr=subprocess.PIPE,
        check=False,
        timeout=60,
    )
    os.close(child)
    os.close(parent)

    assert done.returncode == 1
    assert b"a terminal cannot show binary data" in done.stderr


def test_wrong_options_have_a_status_of_their_own(machtrace, tmp_path):
    """The status is 2, and the error lists the choices."""
    (tmp_path / "a.ips").write_bytes(IPS)
    for words in (
        ("symbolicate", tmp_path / "a.ips", "--format", "nope"),
        ("convert", tmp_path / "a.ips", "--format", "nope\n"),
        ("report", tmp_path / "a.ips", "--format", "nope"),
    ):
        status, out, err = machtrace(*words)
        assert (status, out) == (2, b"")
        assert err.startswith("machtrace: invalid value for '--format' / '-f': 'nope")
        assert err.count("\n") == 2
        assert "json" in err


@pytest.mark.parametrize("command", ["symbolicate", "convert", "report"])
def test_places_without_reports_are_named(machtrace, tmp_path, command):
    """The folder is empty, or has other files; the hint names valid inputs."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.c").write_text("int a;")
    for _ in range(2):
        for folder in ("empty", "other"):
            status, out, err = machtrace(command, tmp_path / folder)
            assert (status, out) == (1, b"")
            assert err.splitlines()[-2].endswith(f" in {tmp_path / folder}")
            assert err.splitlines()[-1].startswith("hint: pass reports")
        (tmp_path / "other" / "b.c").write_text("int b;")


@pytest.mark.parametrize(
    "data", [gzip.compress(IPS, mtime=0)[:-20], zipped(a=IPS)[:-30], b"PK\x03\x04"]
)
def test_damaged_archives_are_to_be_copied_again(machtrace, tmp_path, data):
    (tmp_path / "a.gz").write_bytes(data)
    for command in ("symbolicate", "report"):
        status, out, err = machtrace(command, tmp_path / "a.gz")
        assert (status, out) == (1, b"")
        assert "copy the file again" in err
        assert err.count("\n") == 2
