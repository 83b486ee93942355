"""Snapshots of a device's app from recorded conversations.

One was recorded from lldb-server in place of debugserver; one follows debugserver's documentation.
Neither was recorded from a phone; see the heads of the files.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from uuid import UUID

import pytest

import machtrace as mt
from machtrace.model.arch import Arch
from machtrace.targets.ios.target import DeviceTarget
from tests.support.stand_ins.devices import SyntheticDevice, SyntheticDevices
from tests.support.stand_ins.gdb_stub import SnapshotStub
from tests.support.stand_ins.pymobiledevice3 import installed

RECORDINGS = Path(__file__).parent / "recordings"
APP = "com.example.app"
READ = re.compile(rb"[mx]([0-9a-f]+),([0-9a-f]+)")
RANGE = re.compile(rb"([0-9a-f]+),([0-9a-f]+)")


def unescaped(text):
    """Return the bytes of a line of a recording."""
    return ast.literal_eval("b'" + text.replace("'", "\\'") + "'")


class Recorded(SnapshotStub):
    """Replays a recording; memory may be read in other chunks than the recorded ones."""

    def __init__(self, name):
        super().__init__(snapshot=None)
        self.replies = {}
        self.bytes = {}
        asked = b""
        for line in (RECORDINGS / f"{name}.txt").read_text("ascii").splitlines():
            kind, text = line[:1], line[2:]
            if kind == ">":
                asked = unescaped(text)
            elif kind == "<":
                self.replies.setdefault(asked, []).append(unescaped(text))
                if asked.startswith(b"m"):
                    self.hold(int(READ.fullmatch(asked)[1], 16), bytes.fromhex(text))
            elif kind == "=":
                start, data = text.split()
                self.hold(int(start, 16), bytes.fromhex(data))

    def hold(self, start, data):
        """Store known memory."""
        self.bytes |= {start + at: byte for at, byte in enumerate(data)}

    def read(self, start, size):
        """Return the known prefix of the range."""
        data = bytearray()
        while len(data) < size and start + len(data) in self.bytes:
            data.append(self.bytes[start + len(data)])
        return bytes(data)

    def answer(self, request):
        """Return the recorded reply; an empty one for unknown requests."""
        if request == b"QStartNoAckMode":
            self.acknowledges = False
        if request in self.replies:
            said = self.replies[request]
            return said.pop(0) if len(said) > 1 else said[0]
        if request.startswith(b"MultiMemRead"):
            parts = [self.read(int(one[1], 16), int(one[2], 16)) for one in RANGE.finditer(request)]
            return b",".join(b"%x" % len(part) for part in parts) + b";" + b"".join(parts)
        found = READ.fullmatch(request)
        if found is None:
            return b""
        data = self.read(int(found[1], 16), int(found[2], 16))
        return (data if request[:1] == b"x" else data.hex().encode()) or b"E08"


def taken(name, pid, **facts):
    """Return a snapshot of a device's app by a recording, the requests, and the round trips."""
    stub = Recorded(name)
    with stub.serving() as port:
        device = SyntheticDevice(apps={APP: {}}, running={APP: pid}, port=port, **facts)
        with (
            installed(SyntheticDevices(devices=[device])),
            DeviceTarget(f"device:///{APP}") as target,
        ):
            copied = target.snapshot(stack_limit=512)
            trips = target.round_trips
    return copied, stub.requests, trips


@pytest.mark.parametrize("version", ["16.7", "17.5"])
def test_the_documented_conversation_of_debugserver(version):
    """Threads, queues, images, the shared cache, addresses without signatures; few round trips."""
    copied, asked, trips = taken("debugserver", 0x1A1, version=version)
    assert copied.problems == ()
    assert copied.process.pid == 0x1A1
    assert copied.process.name == "App"
    assert copied.process.arch is Arch.ARM64
    assert [(item.info.id, item.info.name, item.info.queue) for item in copied.threads] == [
        (711252, None, "com.apple.main-thread"),
        (711253, "com.example.decoder", None),
    ]
    assert [(item.name, item.load_address) for item in copied.images] == [
        ("App", 0x104200000),
        ("libdispatch.dylib", 0x1A0000000),
    ]
    assert copied.shared_cache is not None
    assert copied.shared_cache.base == 0x180000000
    assert copied.shared_cache.uuid == UUID("674DB25A-34B2-3C56-8BD4-7D78005B2F2E")
    addresses = [[frame.address for frame in item.addresses] for item in mt.unwind(copied)]
    assert addresses == [
        [0x104204010, 0x104204050, 0x1A0001000],
        [0x1A0002100, 0x1A0002500],
    ]
    assert trips <= 16
    # If the connection breaks, debugserver must detach from the app, and not end it.
    assert b"QSetDetachOnError:1" in asked
    assert asked[-1] == b"D"


def test_the_recorded_conversation_of_lldb_server():
    """The threads have the recorded registers and stacks."""
    copied, asked, _ = taken("lldb-server", 20429)
    assert copied.process.pid == 20429
    assert copied.process.arch is Arch.X86_64
    assert [
        (thread.info.id, thread.info.name, thread.info.is_main) for thread in copied.threads
    ] == [
        (20429, "demo", True),
        (20430, "worker", False),
    ]
    assert [thread.registers.pc for thread in copied.threads] == [0x7FC5013EAF16, 0x7FC501438DF2]
    assert [(thread.stack.start, len(thread.stack.data)) for thread in copied.threads] == [
        (0x7FFFD73515E0, 512),
        (0x7FC501360E30, 512),
    ]
    assert asked[-1] == b"D"
