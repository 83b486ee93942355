"""A device's crash reports are copied completely or not at all, and only into the given folder."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from machtrace.errors import ConnectionLostError, DeviceError, FileAccessError
from machtrace.pipeline.device_reports import (
    ReportChoice,
    chosen_reports,
    pull_reports,
    safe_parts,
)
from machtrace.targets.ios.access import DeviceFile
from machtrace.targets.ios.session import LibraryAccess
from tests.support.stand_ins.devices import SyntheticDevice, SyntheticDevices
from tests.support.stand_ins.pymobiledevice3 import installed

BIG = bytes(range(256)) * 16384
"""More than one part."""
REPORTS = {
    "App-2026-01-02-030405.ips": b'{"app_name":"App"}\n{}',
    "Retired/App-2025-11-01-000000.ips": b"old",
    "Panics/panic-full.ips": BIG,
    "link.ips": None,
    "Empty.ips": b"",
}


class Counting:
    """A progress that counts."""

    def __init__(self, at=None):
        self.files, self.size, self._at = 0, 0, at

    def begin(self, file):
        """Count a report."""
        del file
        self.files += 1

    def advance(self, size):
        """Count bytes; raise KeyboardInterrupt at the chosen one."""
        self.size += size
        if self._at is not None and self.size >= self._at:
            raise KeyboardInterrupt


def files_in(folder):
    """Return contents by path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def pull(device, folder, choice=None, progress=None):
    """Copy all reports of a device."""
    with installed(SyntheticDevices(devices=[device])), LibraryAccess().open(None) as session:
        files = chosen_reports(session, choice or ReportChoice())
        return pull_reports(session, files, folder, progress or Counting())


@pytest.mark.parametrize("version", ["16.7", "18.1"])
def test_all_reports(version, tmp_path):
    """By their paths on the device, with their times; links and folders are not reports."""
    progress = Counting()
    folder = tmp_path / "made" / "for it"
    pulled = pull(SyntheticDevice(version=version, reports=REPORTS), folder, progress=progress)
    expected = {path: data for path, data in REPORTS.items() if data is not None}
    assert files_in(folder) == expected
    assert sorted(pulled.written) == sorted(folder / path for path in expected)
    assert (pulled.kept, pulled.problems) == ([], [])
    assert (progress.files, progress.size) == (4, sum(map(len, expected.values())))
    for path in expected:
        assert (folder / path).stat().st_mtime == 1_700_000_000 + len(path)


def test_existing_files_are_not_copied_again(tmp_path):
    """Files that were changed locally stay as they are."""
    device = SyntheticDevice(reports=REPORTS)
    pull(device, tmp_path)
    (tmp_path / "Empty.ips").write_bytes(b"mine")
    (tmp_path / "Retired/App-2025-11-01-000000.ips").unlink()
    device.calls.clear()
    progress = Counting()
    again = pull(device, tmp_path, progress=progress)
    assert [path.name for path in again.written] == ["App-2025-11-01-000000.ips"]
    assert len(again.kept) == 3
    assert (tmp_path / "Empty.ips").read_bytes() == b"mine"
    assert sum(call.startswith("fopen") for call in device.calls) == 1
    assert progress.files == 4


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        (ReportChoice(name="app-"), {"App-2026-01-02-030405.ips", "App-2025-11-01-000000.ips"}),
        (ReportChoice(name="*2026*"), {"App-2026-01-02-030405.ips"}),
        (ReportChoice(name="[a]*"), set()),
        (ReportChoice(newer_than=1_700_000_030), {"App-2025-11-01-000000.ips"}),
        (ReportChoice(newer_than=time.time()), set()),
    ],
)
def test_reports_are_selected_by_name_and_time(choice, names, tmp_path):
    """The name by prefix or pattern."""
    pull(SyntheticDevice(reports=REPORTS), tmp_path, choice)
    assert {Path(path).name for path in files_in(tmp_path)} == names


@pytest.mark.parametrize(
    "name",
    [
        "../outside.ips",
        "../../../../etc/cron.d/x",
        "a/../../outside.ips",
        "//etc/passwd",
        "a//b.ips",
        "./b.ips",
        "a/.",
        "..",
        "...",
        "",
        " ",
        "a\\..\\b.ips",
        "C:\\x.ips",
        "C:x.ips",
        "nul\0.ips",
        "line\nbreak.ips",
        "\x1b[2Jx.ips",
        "con.ips",
        "COM1",
        "x.ips.",
        "x.ips ",
        "n" * 300,
        "folder/" * 3,
    ],
)
def test_dangerous_names_are_refused(name, tmp_path):
    """Nothing is written for them, and the others are copied."""
    with pytest.raises(DeviceError, match="refused"):
        safe_parts(DeviceFile(path=f"/{name}", size=1, modified=0), "UDID")
    folder = tmp_path / "reports"
    outside = {path for path in tmp_path.rglob("*") if path != folder}
    device = SyntheticDevice(reports={"good.ips": b"good"})
    with installed(SyntheticDevices(devices=[device])), LibraryAccess().open(None) as session:
        files = [
            DeviceFile(path=f"/{name}", size=4, modified=0),
            *chosen_reports(session, ReportChoice()),
        ]
        pulled = pull_reports(session, files, folder, Counting())
    assert len(pulled.problems) == 1
    assert repr(f"/{name}") in str(pulled.problems[0])
    assert files_in(folder) == {"good.ips": b"good"}
    assert {path for path in tmp_path.rglob("*") if folder not in (path, *path.parents)} == outside


def test_dangerous_names_in_a_listing_are_refused(tmp_path):
    folder = tmp_path / "reports"
    reports = {"../outside.ips": b"bad", "good.ips": b"good"}
    pulled = pull(SyntheticDevice(reports=reports), folder)
    assert files_in(folder) == {"good.ips": b"good"}
    assert not (tmp_path / "outside.ips").exists()
    assert len(pulled.problems) <= 1


def test_links_in_the_folder_are_not_followed_out_of_it(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    folder = tmp_path / "reports"
    folder.mkdir()
    (folder / "Retired").symlink_to(tmp_path / "elsewhere")
    (folder / "Empty.ips").symlink_to(tmp_path / "elsewhere" / "new")
    pulled = pull(SyntheticDevice(reports=REPORTS), folder)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert [str(error) for error in pulled.problems if "outside" in str(error)]
    assert folder / "Empty.ips" in pulled.kept
    assert (folder / "Panics/panic-full.ips").read_bytes() == BIG


@pytest.mark.parametrize("at", [1, 100, 2 << 20])
def test_ctrl_c_leaves_only_whole_files(at, tmp_path):
    """The device's file is closed."""
    device = SyntheticDevice(reports=REPORTS)
    with pytest.raises(KeyboardInterrupt):
        pull(device, tmp_path, progress=Counting(at))
    for path, data in files_in(tmp_path).items():
        assert data == REPORTS[path]
    assert not list(tmp_path.glob(".*"))
    assert device.calls[-1] == "close"
    assert any(call.startswith("fclose") for call in device.calls)
    assert len(pull(device, tmp_path).problems) == 0
    assert files_in(tmp_path) == {path: data for path, data in REPORTS.items() if data is not None}


@pytest.mark.parametrize(
    ("failure", "kind"),
    [("AfcException", DeviceError), ("ConnectionTerminatedError", ConnectionLostError)],
)
def test_an_unreadable_report_is_a_problem_and_not_written(failure, kind, tmp_path):
    """After a broken connection the copying ends."""
    device = SyntheticDevice(reports=REPORTS, failures={"fopen /Panics/panic-full.ips r": failure})
    pulled = pull(device, tmp_path)
    assert [type(error) for error in pulled.problems] == [kind]
    assert "panic-full.ips" in str(pulled.problems[0])
    assert not (tmp_path / "Panics").exists()
    assert len(pulled.written) == 3 if kind is DeviceError else len(pulled.written) < 3
    assert not list(tmp_path.glob(".*"))


def test_a_report_far_larger_than_stated_is_refused(tmp_path):

    class Endless:
        device = SyntheticDevice()

        def read_report(self, path):
            """Yield without end."""
            del path
            while True:
                yield bytes(1 << 18)

    files = [
        DeviceFile(path="/endless.ips", size=10, modified=0),
        DeviceFile(path="/negative.ips", size=-1, modified=0),
        DeviceFile(path="/giant.ips", size=1 << 60, modified=0),
    ]
    pulled = pull_reports(Endless(), files, tmp_path, Counting())
    assert len(pulled.problems) == 3
    assert "is longer than its 10 bytes" in str(pulled.problems[0])
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_the_folder_is_an_error(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileAccessError):
        pull(SyntheticDevice(reports=REPORTS), tmp_path / "file" / "below")
