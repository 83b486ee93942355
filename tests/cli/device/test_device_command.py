"""Output, errors and exit statuses of ``machtrace device``, with synthetic devices."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from typing import NamedTuple

import pytest

from machtrace.cli.main import main
from tests.support.stand_ins.devices import SyntheticDevice, SyntheticDevices
from tests.support.stand_ins.pymobiledevice3 import installed

APPS = {
    "com.example.mine": {
        "CFBundleDisplayName": "Mine\x1b[31m",
        "CFBundleShortVersionString": "1.2",
        "ApplicationType": "User",
        "Entitlements": {"get-task-allow": True},
    },
    "com.example.bought": {"CFBundleName": "Bought", "ApplicationType": "User"},
    "com.apple.mobilesafari": {"CFBundleDisplayName": "Safari", "ApplicationType": "System"},
}
REPORTS = {"Mine-2026-01-02-030405.ips": b"{}\n{}", "Retired/Old.ips": b"old"}


class Done(NamedTuple):
    """The result of a command."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def machtrace(capsys, monkeypatch):
    """Return a function that runs the command in this process, ten times faster than a new one."""

    def run(*words, devices=None, **host):
        here = [synthetic_device()] if devices is None else devices
        monkeypatch.setattr(sys, "argv", ["machtrace", *map(str, words)])
        capsys.readouterr()
        with installed(SyntheticDevices(devices=here, **host)), pytest.raises(SystemExit) as ended:
            main()
        gc.unfreeze()
        gc.enable()
        written = capsys.readouterr()
        return Done(ended.value.code or 0, written.out, written.err)

    return run


def synthetic_device(**facts):
    """Return a device with apps and reports."""
    return SyntheticDevice(**{"apps": APPS, "reports": REPORTS, "version": "17.5"} | facts)


def test_list(machtrace):
    """The text has a line for each device; the JSON has the same facts."""
    done = machtrace("device", "list")
    assert (done.returncode, done.stderr) == (0, "")
    heading, row = done.stdout.splitlines()
    assert heading.split() == ["UDID", "NAME", "MODEL", "SYSTEM", "CONNECTION"]
    assert row.split() == ["00008110-001C2D3E4F50601A", "Made", "up", "iPhone14,5", "17.5", "USB"]
    document = json.loads(machtrace("device", "list", "--format", "json").stdout)
    assert document["schema"] == 1
    assert document["devices"][0]["version"] == "17.5"
    assert document["devices"][0]["problem"] is None


def test_list_with_one_that_cannot_be_used(machtrace):
    """It is listed, standard error has the reason, and the status is 1."""
    devices = [synthetic_device(udid="AB", is_paired=False), synthetic_device()]
    done = machtrace("device", "list", devices=devices)
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == 3
    assert "cannot use device AB" in done.stderr
    assert "pymobiledevice3 lockdown pair" in done.stderr


@pytest.mark.parametrize(
    ("host", "words"),
    [({}, "no device is connected"), ({"has_usbmuxd": False}, "usbmuxd runs")],
)
def test_no_device(machtrace, host, words):
    """The error is a fact and a hint."""
    done = machtrace("device", "list", devices=[], **host)
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr
    assert done.stderr.count("\n") == 2


def test_apps(machtrace):
    """The user's apps are listed, or all; control characters in names are escaped."""
    done = machtrace("device", "apps")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[1].split() == ["com.example.bought", "no", "?", "Bought"]
    assert lines[2].split() == ["com.example.mine", "yes", "1.2", "Mine\\x1b[31m"]
    assert lines[3] == "2 apps, 1 can be attached to: 00008110-001C2D3E4F50601A"
    assert "mobilesafari" in machtrace("device", "apps", "--all").stdout
    document = json.loads(machtrace("device", "apps", "--format", "json").stdout)
    assert [app["debuggable"] for app in document["apps"]] == [False, True]


def test_reports(machtrace, tmp_path):
    """Reports are copied once; later runs, lists and JSON count them as present."""
    folder = tmp_path / "reports"
    done = machtrace("device", "reports", "-o", folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"2 reports copied: {folder}\n"
    assert (folder / "Retired/Old.ips").read_bytes() == b"old"
    again = machtrace("device", "reports", "-o", folder, "--name", "mine")
    assert again.stdout == f"0 reports copied, 1 already there: {folder}\n"
    listed = machtrace("device", "reports", "--list").stdout.splitlines()
    assert listed[0].split() == ["WRITTEN", "SIZE", "NAME"]
    assert listed[-1] == "2 reports, 8 bytes on 00008110-001C2D3E4F50601A"
    document = json.loads(machtrace("device", "reports", "-o", folder, "--format", "json").stdout)
    assert (len(document["written"]), len(document["kept"])) == (0, 2)
    assert document["problems"] == []


def test_reports_since(machtrace, tmp_path):
    """The option takes a date or an age; anything else is a usage error."""
    for since, count in (("2023-11-14", 2), ("2024-01-01", 0), ("30d", 0), ("99y", 2)):
        done = machtrace("device", "reports", "--list", "--newer-than", since)
        assert done.stdout.splitlines()[-1].startswith(f"{count} report"), since
    for since in ("yesterday", "2026-13-01", "-5d"):
        done = machtrace("device", "reports", "-o", tmp_path, "--newer-than", since)
        assert done.returncode == 2, since
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_cannot_be_copied(machtrace, tmp_path):
    """The others are copied, and the status is 1."""
    devices = [synthetic_device(reports={"../bad.ips": b"bad", "fine.ips": b"fine"})]
    done = machtrace("device", "reports", "-o", tmp_path / "r", devices=devices)
    assert done.returncode == (1 if done.stderr else 0)
    assert (tmp_path / "r" / "fine.ips").read_bytes() == b"fine"
    assert [path.name for path in tmp_path.iterdir()] == ["r"]


def test_wrong_udid(machtrace):
    """The error lists the connected devices."""
    done = machtrace("device", "apps", "0000")
    assert done.returncode == 1
    assert "device 0000 is not connected" in done.stderr
    assert "00008110-001C2D3E4F50601A" in done.stderr


@pytest.mark.peer
def test_without_the_library():
    """The hint installs it; ``--help`` works without it."""
    command = [sys.executable, "-c", "import sys; sys.modules['pymobiledevice3'] = None\n"]
    command[-1] += "from machtrace.cli.main import main; main()"
    for words in (["device", "list"], ["backtrace", "device:///a.b"]):
        done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "-m pip install 'machtrace[device]'" in done.stderr
        assert done.stderr.count("\n") == 2
    done = subprocess.run([*command, "device", "--help"], capture_output=True, check=False)
    assert done.returncode == 0
