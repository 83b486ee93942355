"""A device whose debugserver is lldb-server and whose library is synthetic, end to end.

The process is one of this machine, and no phone is involved. Everything between the command line
and the socket is the code that runs with a phone, except for the library.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

import machtrace as mt
from machtrace.errors import DeviceError
from machtrace.targets.ios.session import LibraryAccess
from machtrace.targets.ios.target import DeviceTarget
from machtrace.targets.linux.process import LinuxProcessTarget
from tests.support.stand_ins.devices import SyntheticDevice, SyntheticDevices
from tests.support.stand_ins.pymobiledevice3 import installed
from tests.support.stand_ins.usbmuxd import (
    UDID,
    SyntheticUsbmuxd,
    forward_to,
    free_port,
    receive_plist,
    send_plist,
)

DEADLINE_S = 30
LLDB_SERVERS = ("lldb-server", *(f"lldb-server-{version}" for version in range(22, 13, -1)))
APP = "com.example.threads"
APPS = {
    APP: {
        "CFBundleDisplayName": "Threads",
        "ApplicationType": "User",
        "Entitlements": {"get-task-allow": True},
    }
}


@pytest.fixture
def debugserver():
    """Start lldb-server without a process, like debugserver on a device; return its port."""
    server = next(filter(None, map(shutil.which, LLDB_SERVERS)), None)
    if server is None:
        pytest.skip("lldb-server is not installed")
    port = free_port()
    stub = subprocess.Popen(
        [server, "gdbserver", f"127.0.0.1:{port}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + DEADLINE_S
    while f":{port:04X} 00000000:0000 0A" not in Path("/proc/net/tcp").read_text():
        assert stub.poll() is None, "lldb-server ended"
        assert time.monotonic() < deadline, "lldb-server does not listen"
        time.sleep(0.02)
    yield port
    stub.kill()
    stub.wait()


def state(pid):
    """Return the state letter of a process and its tracer."""
    text = Path(f"/proc/{pid}/status").read_text()
    return re.search(r"State:\t(\w)", text)[1], int(re.search(r"TracerPid:\t(\d+)", text)[1])


@pytest.fixture
def process(build, start, wait_blocked):
    """A program with eight threads."""
    started = start(build("threads", "-g"))
    wait_blocked(started.pid, "spin")
    return started


def addresses(snapshot):
    """Return the addresses of each blocked thread by its name."""
    return {
        walked.thread.info.name: [frame.address for frame in walked.addresses]
        for walked in mt.unwind(snapshot)
        if walked.thread.info.name != "spin"
    }


@pytest.mark.parametrize("version", ["16.7", "17.5"])
def test_a_running_app_is_captured_and_continues(
    version, debugserver, process, wait_until, wait_blocked
):
    """With and without tunnels: the stacks are those that the kernel of this machine gives."""
    device = SyntheticDevice(
        version=version, apps=APPS, running={APP: process.pid}, port=debugserver
    )
    with LinuxProcessTarget(process.pid) as target:
        local = target.snapshot()
    wait_blocked(process.pid, "spin")  # until then they are about to restart their calls
    with installed(SyntheticDevices(devices=[device])):
        copied = mt.snapshot(f"device:///{APP}")
    assert copied.problems == ()
    assert len(copied.threads) == 8
    assert addresses(copied) == addresses(local)
    assert copied.process.pid == process.pid
    assert not any(call.startswith("launch") for call in device.calls)
    assert device.calls[-1] == "close"
    assert ("aclose tunnel" in device.calls) == (version == "17.5")
    wait_until(lambda: state(process.pid) == ("S", 0), "it waits, untraced")


def test_the_command_captures_a_running_app_by_bundle_id(debugserver, process, wait_until):
    """``machtrace backtrace device://UDID/bundle-id``, in a process of its own."""
    script = f"""
from tests.support.stand_ins.pymobiledevice3 import installed
from tests.support.stand_ins.devices import SyntheticDevice, SyntheticDevices
from tests.support.stand_ins.usbmuxd import (
    UDID,
    SyntheticUsbmuxd,
    forward_to,
    receive_plist,
    send_plist,
)
device = SyntheticDevice(version="17.5", apps={APPS!r}, running={{{APP!r}: {process.pid}}},
                      port={debugserver})
with installed(SyntheticDevices(devices=[device])):
    from machtrace.cli.main import main
    main()
"""
    spec = f"device://00008110-001C2D3E4F50601A/{APP}"
    done = subprocess.run(
        [sys.executable, "-c", script, "backtrace", spec, "--format", "lldb"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "`descend at threads.c:" in done.stdout
    assert done.stdout.count("* thread #1") == 1
    assert done.stderr == ""
    wait_until(lambda: state(process.pid) == ("S", 0), "it waits, untraced")


def test_an_app_that_does_not_run_is_launched_and_continues(
    debugserver, build, start, wait_blocked, wait_until
):
    started = []

    def launch(bundle_id, is_suspended):
        assert (bundle_id, is_suspended) == (APP, False)
        process = start(build("threads"))
        wait_blocked(process.pid, "spin")
        started.append(process.pid)
        return process.pid

    device = SyntheticDevice(apps=APPS, launch=launch, port=debugserver)
    with installed(SyntheticDevices(devices=[device])):
        copied = mt.snapshot(f"device:///{APP}")
    assert len(copied.threads) == 8
    assert [copied.process.pid] == started
    wait_until(lambda: state(started[0]) == ("S", 0), "it waits, untraced")


def test_a_process_id_is_attached_to_without_listing_apps(debugserver, process):
    """The spec is ``device://UDID/PID``."""
    device = SyntheticDevice(port=debugserver)
    with (
        installed(SyntheticDevices(devices=[device])),
        DeviceTarget(f"device://{device.udid}/{process.pid}") as target,
    ):
        assert len(target.threads()) == 8
        assert target.round_trips < 20
    assert "get_apps" not in device.calls


def test_a_refusal_to_attach_has_debugservers_words_and_a_remedy(debugserver):
    """The remedy is to sign the app for development."""
    app = {APP: {"Entitlements": {}}}
    device = SyntheticDevice(apps=app, running={APP: 4194303}, port=debugserver)
    with installed(SyntheticDevices(devices=[device])), pytest.raises(DeviceError) as refused:
        mt.snapshot(f"device:///{APP}")
    assert "which is not signed with get-task-allow" in str(refused.value)
    assert "vAttach;3fffff" in str(refused.value)
    assert "get-task-allow" in refused.value.remedy
    assert device.calls[-1] == "close"


def test_ctrl_c_detaches_from_the_process(debugserver, process, wait_until, monkeypatch):
    """The device's connections are closed after debugserver was ordered to detach."""

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("machtrace.targets.gdbremote.stacks.RemoteStackReader.read", interrupted)
    device = SyntheticDevice(apps=APPS, running={APP: process.pid}, port=debugserver)
    with installed(SyntheticDevices(devices=[device])), pytest.raises(KeyboardInterrupt):
        mt.snapshot(f"device:///{APP}")
    wait_until(lambda: state(process.pid) == ("S", 0), "it waits, untraced")
    assert device.calls[-1] == "close"


@pytest.mark.skipif(
    find_spec("pymobiledevice3") is None,
    reason="pymobiledevice3, the extra 'device', is not installed",
)
def test_the_real_library_with_a_synthetic_usbmuxd(
    debugserver, process, wait_until, monkeypatch, tmp_path
):
    """Devices, apps and the stacks of a process."""
    app = {"ApplicationType": "User", "Entitlements": {"get-task-allow": True}}

    def installation(connection):
        receive_plist(connection)
        send_plist(connection, {"Status": "Complete", "LookupResult": {APP: app}})

    usbmuxd = SyntheticUsbmuxd(
        "16.7",
        {
            "com.apple.debugserver.DVTSecureSocketProxy": forward_to(debugserver),
            "com.apple.mobile.installation_proxy": installation,
        },
    )
    monkeypatch.setenv("HOME", str(tmp_path))  # where the library stores pairing records
    with usbmuxd.serving() as address:
        monkeypatch.setenv("USBMUXD_SOCKET_ADDRESS", address)
        access = LibraryAccess()
        (device,) = access.devices()
        assert (device.udid, device.version, device.connection) == (UDID, "16.7", "USB")
        assert device.problem is None
        with access.open(UDID.replace("-", "")) as session:
            (installed,) = session.apps()
            assert (installed.bundle_id, installed.is_debuggable) == (APP, True)
            with pytest.raises(DeviceError, match="cannot look for the process") as refused:
                session.running_pid(APP)
            assert "mounter auto-mount" in refused.value.remedy
        copied = mt.snapshot(f"device:///{process.pid}")
    assert len(copied.threads) == 8
    assert copied.problems == ()
    assert "StartService com.apple.debugserver.DVTSecureSocketProxy" in usbmuxd.requests
    wait_until(lambda: state(process.pid) == ("S", 0), "it waits, untraced")
