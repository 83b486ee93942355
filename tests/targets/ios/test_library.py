"""Calls of pymobiledevice3 match its interface; its failures become errors with a remedy."""

from __future__ import annotations

import asyncio
import inspect
import sys
from importlib import import_module
from importlib.util import find_spec

import pytest

import machtrace as mt
from machtrace.errors import ConnectionLostError, DeviceError, MachtraceError, MissingExtraError
from machtrace.targets.ios.access import Device
from machtrace.targets.ios.event_loop import DeviceLoop
from machtrace.targets.ios.session import REMEDIES, LibraryAccess, device_error
from tests.support.stand_ins.devices import EXCEPTIONS, SyntheticDevice, SyntheticDevices
from tests.support.stand_ins.pymobiledevice3 import PACKAGE, installed, library

APP = "com.example.app"
APPS = {APP: {"CFBundleDisplayName": "App", "Entitlements": {"get-task-allow": True}}}

needs_library = pytest.mark.skipif(
    find_spec(PACKAGE) is None, reason="pymobiledevice3, the extra 'device', is not installed"
)


MADE_BY_THE_LIBRARY = frozenset(
    {
        "AfcService",
        "MuxDevice",
        "RemoteServiceDiscoveryService",
        "ServiceConnection",
        "UsbmuxLockdownClient",
    }
)
"""Classes whose constructors we never call."""


def calls():
    """Return each function and method of the fake library: module, class if any, name."""
    for module, contents in library(SyntheticDevices()).items():
        for name, value in vars(contents).items():
            if inspect.isfunction(value):
                yield module, None, name
            elif inspect.isclass(value) and not issubclass(value, Exception):
                yield from (
                    (module, name, method)
                    for method in dir(value)
                    if inspect.isfunction(getattr(value, method))
                    and (
                        not method.startswith("_")
                        or method == "__aenter__"
                        or (method == "__init__" and name not in MADE_BY_THE_LIBRARY)
                    )
                    and method != "started"
                )


def _parameters(function):
    found = inspect.signature(function).parameters
    return {name: one for name, one in found.items() if name not in ("self", "_")}


@needs_library
@pytest.mark.parametrize(("module", "owner", "name"), list(calls()))
def test_the_library_accepts_the_calls_of_the_fake(module, owner, name):
    """The real library has every signature that the fake has, and is asynchronous where it is."""
    stand_in, real = library(SyntheticDevices())[module], import_module(module)
    if owner is not None:
        stand_in, real = getattr(stand_in, owner), getattr(real, owner)
    stand_in, real = getattr(stand_in, name), getattr(real, name)
    ours, theirs = _parameters(stand_in), _parameters(inspect.unwrap(real))
    assert not ours.keys() - theirs.keys()
    for key, one in theirs.items():
        if key not in ours:
            assert one.default is not one.empty or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        elif ours[key].kind is ours[key].POSITIONAL_OR_KEYWORD:
            assert list(theirs).index(key) == list(ours).index(key)
    is_awaited = inspect.iscoroutinefunction(stand_in)
    assert inspect.iscoroutinefunction(inspect.unwrap(real)) == is_awaited


@needs_library
def test_the_library_has_the_attributes_that_are_read():
    from pymobiledevice3.lockdown import LockdownClient
    from pymobiledevice3.lockdown_service_provider import LockdownServiceProvider
    from pymobiledevice3.remote.remote_service_discovery import RemoteServiceDiscoveryService
    from pymobiledevice3.usbmux import MuxDevice

    for kind in (LockdownClient, RemoteServiceDiscoveryService):
        assert issubclass(kind, LockdownServiceProvider)
        assert {"product_version", "has_developer_mode"} <= set(dir(kind))
    assert {"serial", "connection_type"} <= set(inspect.signature(MuxDevice).parameters)
    assert "self.paired" in inspect.getsource(LockdownClient.__init__)


@needs_library
def test_the_library_has_the_handled_exceptions():
    """Each class with a remedy, and the ancestry of those that tests raise."""
    real = import_module(f"{PACKAGE}.exceptions")
    assert not [name for name in REMEDIES if not issubclass(getattr(real, name), Exception)]
    for name, stand_in in EXCEPTIONS.items():
        if name == "Exception":
            continue
        ancestry = [kind.__name__ for kind in getattr(real, name).__mro__]
        assert {kind.__name__ for kind in stand_in.__mro__} <= set(ancestry)


def test_the_remedy_without_the_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    with pytest.raises(MissingExtraError) as missing:
        mt.open_target(f"device:///{APP}")
    assert "-m pip install 'machtrace[device]'" in missing.value.remedy


def opened(*devices, **host):
    """Open an app of a device that runs it as process 7."""
    with installed(SyntheticDevices(devices=list(devices), **host)):
        try:
            mt.open_target(f"device:///{APP}").close()
        except MachtraceError as error:
            return error
    raise AssertionError("it was opened")


def device(**facts):
    """Build a device that runs the app, and no debugserver."""
    return SyntheticDevice(**{"apps": APPS, "running": {APP: 7}, "port": 1} | facts)


@pytest.mark.parametrize(
    ("facts", "words", "remedy"),
    [
        ({"is_paired": False}, "cannot connect to device 0", "lockdown pair"),
        ({"failures": {"create_using_usbmux": "PasswordRequiredError"}}, "connect to", "unlock"),
        ({"failures": {"create_using_usbmux": "PairingError"}}, "connect to", "tap Trust"),
        ({"apps": {}}, f"app {APP} is not installed", "machtrace device apps"),
        ({"developer_mode": False}, "developer mode is off", "Settings"),
        ({"is_image_mounted": False}, "no developer disk image", "mounter auto-mount"),
        (
            {"developer_mode": False, "is_image_mounted": False},
            "developer mode is off, and no developer disk image",
            "; then run: pymobiledevice3 mounter",
        ),
        ({"version": "17.5", "allows_own_tunnel": False}, "for the process", "remote tunneld"),
        (
            {
                "running": {},
                "failures": {"launch": "StartServiceError"},
            },
            f"cannot launch {APP} on device",
            "unlock",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_each_missing_precondition_has_an_error_and_a_remedy(facts, words, remedy):
    """All that was opened is closed."""
    fake = device(**facts)
    error = opened(fake)
    assert isinstance(error, DeviceError)
    assert words in str(error)
    assert remedy in error.remedy
    assert error.udid == fake.udid
    if "create_using_usbmux" not in fake.failures:
        assert fake.calls[-1] == "close"


def test_an_unreachable_debugserver_is_a_broken_connection():
    error = opened(device())
    assert isinstance(error, ConnectionLostError)
    assert "start debugserver on" in str(error)


def test_the_error_without_a_unique_device_lists_the_devices():
    """None, none with that UDID, several."""
    assert "no device is connected" in str(opened())
    both = opened(device(udid="A"), device(udid="B"))
    assert "2 devices are connected: A, B" in str(both)
    with (
        installed(SyntheticDevices(devices=[device(udid="A")])),
        pytest.raises(DeviceError, match="device C is not connected; connected are: A"),
    ):
        LibraryAccess().open("C")
    error = opened(has_usbmuxd=False)
    assert isinstance(error, DeviceError)
    assert "usbmuxd" in error.remedy


def test_launch_never_does_not_start_the_app():
    fake = device(running={})
    with (
        installed(SyntheticDevices(devices=[fake])),
        pytest.raises(DeviceError, match=f"{APP} is not running"),
    ):
        mt.open_target(f"device:///{APP}?launch=never")
    assert not any(call.startswith("launch") for call in fake.calls)


def test_an_app_launched_for_a_debugger_is_resumed_if_none_attaches():
    fake = device(running={}, launch=lambda *_: 12)
    with installed(SyntheticDevices(devices=[fake])), pytest.raises(ConnectionLostError):
        mt.open_target(f"device:///{APP}?until=stop&launch=always")
    assert f"launch {APP} kill_existing=True start_suspended=True" in fake.calls
    assert fake.calls[-2:] == ["resume 12", "close"]


@pytest.mark.parametrize(
    ("facts", "host", "asked"),
    [
        ({"version": "16.7"}, {}, "com.apple.debugserver.DVTSecureSocketProxy"),
        ({"version": "17.5"}, {}, "aopen"),
        ({"version": "17.5", "has_tunnel": True}, {"has_tunneld": True}, "get_tunneld_device"),
        (
            {"version": "17.5", "has_tunnel": True, "connection": "tunnel"},
            {"has_tunneld": True, "has_usbmuxd": False},
            "get_tunneld_device",
        ),
    ],
    ids=["before 17", "own tunnel", "tunneld", "tunneld without usbmuxd"],
)
def test_a_device_is_reached_by_lockdown_or_a_tunnel(facts, host, asked):
    """By lockdown before iOS 17; since then by tunneld's tunnel, or one of our own."""
    fake = device(**facts)
    opened(fake, **host)
    assert any(call.startswith(asked) for call in fake.calls)
    service = "DVTSecureSocketProxy" if facts["version"] < "17" else "dt.remote.debugproxy"
    assert sum(service in call for call in fake.calls) == 1
    # Pairing prompts the user, so it is not started without a request.
    assert not any("autopair=True" in call for call in fake.calls)


def test_listing_devices():
    """Each once, USB before network, with the reason for missing facts."""
    usb = device(udid="A-1", version="17.5")
    network = device(udid="A-1", connection="Network")
    locked = device(udid="B", failures={"create_using_usbmux": "PasswordRequiredError"})
    with installed(SyntheticDevices(devices=[network, usb, locked])):
        devices = {item.udid: item for item in LibraryAccess().devices()}
    assert devices["A-1"].connection == "USB"
    assert devices["A-1"].name == "Made up"
    assert devices["A-1"].problem is None
    assert devices["B"] == Device(udid="B", connection="USB", problem=devices["B"].problem)
    assert isinstance(devices["B"].problem, DeviceError)


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (ConnectionResetError(104, "Connection reset by peer"), ConnectionLostError, "broke"),
        (asyncio.IncompleteReadError(b"", 4), ConnectionLostError, "broke"),
        (EXCEPTIONS["ConnectionTerminatedError"](), ConnectionLostError, "broke"),
        (TimeoutError(), DeviceError, "does not respond"),
        (KeyError("Properties"), DeviceError, "'Properties'"),
        (AssertionError(), DeviceError, "AssertionError"),
        (EXCEPTIONS["NotPairedError"]("a\nb " + "x" * 1000), DeviceError, "a b xxx"),
    ],
)
def test_every_exception_becomes_one_line_with_a_remedy(error, kind, words):
    """Broken connections, timeouts, the library's own errors."""
    result = device_error(error, "ask", "UDID")
    assert type(result) is kind
    assert words in str(result)
    assert "\n" not in str(result)
    assert len(str(result)) < 500
    assert result.remedy


def test_a_call_that_takes_too_long_is_cancelled():
    """Open connections can still be closed."""
    cancelled = []

    async def sleep():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def nothing():
        return 1

    loop = DeviceLoop()
    try:
        with pytest.raises(TimeoutError):
            loop.run(sleep(), 0.05)
        assert loop.run(nothing(), 5) == 1
        assert cancelled == [True]
    finally:
        loop.close()
        loop.close()
