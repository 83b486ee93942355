"""Watching an app of a synthetic device with a scripted debugserver: no phone is involved."""

import threading
import time
from dataclasses import replace

import pytest

import machtrace as mt
from machtrace.errors import ConnectionLostError, DeviceError
from machtrace.model.incident.facts import IncidentKind
from machtrace.targets.ios.target import watched_app
from machtrace.watching.thresholds import WatchOptions, parse_cpu
from machtrace.watching.watcher import Watcher
from tests.support.stand_ins.devices import SyntheticDevice, SyntheticDevices
from tests.support.stand_ins.pymobiledevice3 import installed
from tests.support.stand_ins.running_stub import RunningStub, profile

pytestmark = pytest.mark.emulated

PID = 417
APP = "com.example.app"
SPEC = f"device:///{APP}"
LIMIT_NS = 20_000_000_000
VERSIONS = pytest.mark.parametrize("version", ["16.7", "17.5"])


@pytest.fixture(scope="module")
def process():
    pytest.importorskip("unicorn", reason="emulated:demo needs the extra 'emulator'")
    snapshot = mt.snapshot("emulated:demo")
    return replace(snapshot, process=replace(snapshot.process, pid=PID))


class AppStub(RunningStub):
    """debugserver without a process, until it attaches."""

    def answer(self, request):
        """See ``RunningStub``."""
        if request.startswith(b"vAttach;"):
            return RunningStub.answer(self, b"?")
        return RunningStub.answer(self, request)


def device(port, **facts):
    running = {} if "launch" in facts else {APP: PID}
    return SyntheticDevice(**{"apps": {APP: {}}, "running": running, "port": port} | facts)


def watch(fake, options, script):
    """Watch the app until there is an incident, while ``script`` runs beside."""
    incidents = []
    writer = threading.Thread(target=script, daemon=True)
    with (
        installed(SyntheticDevices(devices=[fake])),
        Watcher(SPEC, options, incidents.append) as watcher,
    ):
        writer.start()
        watcher.run(LIMIT_NS, should_stop=lambda: bool(incidents))
    writer.join(20)
    return incidents, watcher


@VERSIONS
def test_a_hot_thread_of_an_app_is_an_incident(process, version):
    """With and without tunnels; then the app runs on and the device is released."""
    stub = AppStub(process)
    main, hot = (thread.info.id for thread in process.threads[:2])

    def send_profiles():
        began = time.monotonic()
        while not stub.closed.is_set():
            used = round((time.monotonic() - began) * 1e6)
            try:
                stub.send_profile(profile({main: (1000, ""), hot: (used, "")}))
            except (OSError, AssertionError):
                return
            time.sleep(0.05)

    options = WatchOptions(hang_ns=None, cpu=parse_cpu("80%/500ms", processors=1), lines=False)
    with stub.serving() as port:
        fake = device(port, version=version)
        incidents, watcher = watch(fake, options, send_profiles)
    assert incidents[0].kind is IncidentKind.CPU
    assert incidents[0].thread.id == hot
    assert incidents[0].pid == PID
    # None if this process was halted until the incident was over.
    assert watcher.cost.stops <= stub.interrupts
    assert stub.requests[-1] == b"D"
    assert fake.calls[-1] == "close"
    assert ("aclose tunnel" in fake.calls) == (version == "17.5")
    assert not any(call.startswith("launch") for call in fake.calls)


def test_an_app_that_does_not_run_is_launched_and_its_crash_seen(process):
    stub = AppStub(process)
    crashed = process.threads[1].info.id
    reply = f"T91thread:{crashed:x};metype:1;mecount:2;medata:1;medata:10;".encode()
    options = WatchOptions(hang_ns=None, lines=False)
    with stub.serving() as port:
        fake = device(port, launch=lambda *_: PID)
        incidents, _ = watch(fake, options, lambda: stub.stop(reply))
    assert incidents[0].kind is IncidentKind.CRASH
    assert incidents[0].thread.id == crashed
    assert f"launch {APP} kill_existing=False start_suspended=False" in fake.calls
    assert stub.requests[-1] == b"D"  # the exception is passed on
    assert fake.calls[-1] == "close"


def test_an_app_is_interrupted_only_for_hangs(process):
    for interrupts in (False, True):
        stub = AppStub(process)
        with stub.serving() as port:
            fake = device(port)
            with (
                installed(SyntheticDevices(devices=[fake])),
                watched_app(SPEC, interrupts=interrupts) as target,
            ):
                main = next(info.id for info in target.threads() if info.is_main)
                before = stub.interrupts
                poll = target.poll_thread(main, with_status=False)
                assert stub.interrupts - before == int(interrupts)
        assert (poll.is_running is not None) == interrupts
        assert fake.calls[-1] == "close"


def test_a_device_that_cannot_be_watched_is_released():
    fake = device(1)  # nothing listens there
    with installed(SyntheticDevices(devices=[fake])), pytest.raises(ConnectionLostError):
        Watcher(SPEC, WatchOptions(hang_ns=None))
    assert fake.calls[-1] == "close"
    fake = device(1, apps={})
    with installed(SyntheticDevices(devices=[fake])), pytest.raises(DeviceError, match="installed"):
        Watcher(SPEC, WatchOptions(hang_ns=None))
    assert fake.calls[-1] == "close"
