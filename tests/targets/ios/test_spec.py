"""The spec of a process of an iOS device."""

from __future__ import annotations

import pytest

from machtrace.errors import TargetSpecError
from machtrace.targets.ios.target import DeviceSpec, Launch, parse_device_spec

UDID = "00008110-001C2D3E4F50601A"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (f"device://{UDID}/com.example.App", DeviceSpec(udid=UDID, bundle_id="com.example.App")),
        ("device:///com.example.my-app_2", DeviceSpec(bundle_id="com.example.my-app_2")),
        (f"device://{'a1' * 20}/417", DeviceSpec(udid="a1" * 20, pid=417)),
        ("device:///417?timeout=2.5", DeviceSpec(pid=417, timeout=2.5)),
        (
            "device:///a.b?launch=always&until=stop",
            DeviceSpec(bundle_id="a.b", launch=Launch.ALWAYS, runs_to_stop=True),
        ),
        ("device:///a.b?launch=never", DeviceSpec(bundle_id="a.b", launch=Launch.NEVER)),
    ],
)
def test_the_parts_of_a_valid_spec(text, meant):
    """A UDID of either form or none; a bundle id, or a process id; options."""
    assert parse_device_spec(text) == meant


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("device://", "no UDID"),
        (f"device://{UDID}", "no UDID"),
        (f"device://{UDID}/", "no UDID"),
        ("device:///com.example/app", "no UDID"),
        ("device:///com example", "no UDID"),
        ("device://../../etc/passwd", "no UDID"),
        ("device:///0", "no process id 0"),
        ("device:///99999999999", "no process id"),
        ("device:///417?launch=always", "cannot be launched"),
        ("device:///a.b?launch=maybe", "launch can only be if-needed or always or never"),
        ("device:///a.b?color=red", "no option 'color'"),
        ("device:///a.b?timeout=soon", "'soon' is no number of seconds"),
        ("device:///a.b?until=later", "until can only be stop"),
        ("device:///" + "a" * 300, "no UDID"),
    ],
)
def test_an_invalid_spec_has_a_reason_and_a_remedy(text, reason):
    """The remedy has the commands that list UDIDs and bundle ids."""
    with pytest.raises(TargetSpecError, match=reason) as wrong:
        parse_device_spec(text)
    assert "machtrace device list" in wrong.value.remedy
