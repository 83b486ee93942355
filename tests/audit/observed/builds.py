"""Spools of two builds of an app, whose calls are known."""

import struct

from tests.support.writers import spool as writer

RULES = """
schema = 1
name = "test"
policies = ["before-consent: fault"]
[[rules]]
watch = "observed"
category = "Contacts"
"""
APP, SDK = 0x1_0000_0000, 0x2_0000_0000
OLD, NEW = b"o" * 16, b"n" * 16
BY_APP, BY_SDK = writer.node(0, APP + 0x1A0), writer.node(0, SDK + 0x40)
DAY = 86_400_000_000_000


def spool(build, stacks, *, day=0, ticks=1_000_000, state=2, mark=None):
    """Return a spool with an event for each stack, before consent.

    Args:
        build: the program's identifier.
        stacks: nodes; the first call is a millisecond after the start.
        day: of the start.
        ticks: the start on the clock of events.
        state: of the spool.
        mark: a text that the program stores half a microsecond after the first call.
    """
    chains = writer.varints(0, 1, 0, 0x1A0 << 1 | 1, 1, 0, 1, 0, 0x40 << 1 | 1, 2)
    log = [
        (writer.RULE, writer.rule(0, "observed")),
        (writer.IMAGE, writer.image(1, APP, 0x8000, "/data/Demo", build, 1)),
        (writer.IMAGE, writer.image(2, SDK, 0x8000, "/data/libsdk.so", b"s" * 16)),
        (writer.NODES, chains),
    ]
    first = ticks + 1_000_000
    if mark is not None:
        log.append((writer.MARK, struct.pack("<QII", first + 500, 0, 0) + mark.encode()))
    calls = [writer.Call(first + 1000 * at, stack, 1 << 9) for at, stack in enumerate(stacks)]
    started = writer.STARTED + day * DAY
    return writer.spool(log, [calls], started=started, ticks=ticks, state=state)
