"""Spools of two builds of an app, whose calls are known."""

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


def spool(build, stacks, *, day=0):
    """Return a spool with an event for each stack, before consent."""
    chains = writer.varints(0, 1, 0, 0x1A0 << 1 | 1, 1, 0, 1, 0, 0x40 << 1 | 1, 2)
    log = [
        (writer.RULE, writer.rule(0, "observed")),
        (writer.IMAGE, writer.image(1, APP, 0x8000, "/data/Demo", build, 1)),
        (writer.IMAGE, writer.image(2, SDK, 0x8000, "/data/libsdk.so", b"s" * 16)),
        (writer.NODES, chains),
    ]
    calls = [writer.Call(2_000_000 + at, stack, 1 << 9) for at, stack in enumerate(stacks)]
    return writer.spool(log, [calls], started=writer.STARTED + day * DAY)
