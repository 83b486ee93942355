"""Scripts in processes: one that serves a known Darwin process, and faulty ones.

The Darwin process is the emulated one; no phone was used.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

import machtrace as mt
from machtrace.errors import (
    MachtraceError,
    RemoteProtocolError,
    TargetError,
    TargetSpecError,
    ThreadGoneError,
)
from machtrace.targets.frida.agent import Answer, Part
from machtrace.targets.frida.process import FridaTarget
from machtrace.targets.frida.spec import FridaSpec, Reach, parse_spec
from tests.support.stand_ins.frida_agent import SnapshotAgent


@pytest.fixture(scope="module")
def process():
    """The emulated process, copied."""
    pytest.importorskip("unicorn", reason="emulated:demo needs the extra 'emulator'")
    return mt.snapshot("emulated:demo")


def walks(snapshot):
    """Return every thread's addresses, with the source of each."""
    return {
        one.thread.info.id: [(frame.address, frame.kind, frame.trust) for frame in one.addresses]
        for one in mt.unwind(snapshot)
    }


@pytest.mark.emulated
@pytest.mark.parametrize("signs", [False, True], ids=["plain", "signed"])
def test_darwin_process_has_the_same_stacks(process, signs):
    """Each address of each thread, async ones too; names, queues, images; no thread of Frida's."""
    with FridaTarget(SnapshotAgent(process, signs=signs)) as target:
        copied = target.snapshot()
        assert target.hidden_threads == 1
        assert [item.id for item in target.threads()] == [item.info.id for item in process.threads]
    assert copied.problems == ()
    assert walks(copied) == walks(process)
    assert [(item.info.id, item.info.name, item.info.queue) for item in copied.threads] == [
        (item.info.id, item.info.name, item.info.queue) for item in process.threads
    ]
    assert [item.uuid for item in copied.images] == [item.uuid for item in process.images]
    assert [item.size for item in copied.images] == [item.size for item in process.images]
    assert copied.process.arch is process.process.arch
    assert copied.process.pointer_mask.bits == (1 << 47) - 1


@pytest.mark.emulated
def test_names_come_from_memory_alone(process):
    """No file of this machine has the images, as with a phone."""

    class Given:
        def __init__(self, snapshot):
            self._snapshot = snapshot

        def snapshot(self, *_, **__):
            return self._snapshot

    def names(snapshot):
        return [
            [frame.symbol.name for frame in stack.frames if frame.symbol is not None]
            for stack in mt.backtraces(Given(snapshot))
        ]

    with FridaTarget(SnapshotAgent(process)) as target:
        found = names(target.snapshot())
    assert found == names(process)
    assert any(found)


@pytest.mark.emulated
def test_unchanged_images_are_requested_once(process):
    """A second snapshot takes one request."""
    agent = SnapshotAgent(process)
    with FridaTarget(agent) as target:
        target.snapshot()
        del agent.requests[:]
        target.snapshot()
    assert agent.requests == ["capture"]
    assert agent.is_closed


@pytest.mark.emulated
def test_a_thread_that_ends_during_the_capture_leaves_the_others(process):
    first = process.threads[0].info.id
    with FridaTarget(SnapshotAgent(process, gone=frozenset({first}))) as target:
        copied = target.snapshot()
    (problem,) = copied.problems
    assert problem.thread == first
    assert isinstance(problem.error, ThreadGoneError)
    assert len(copied.threads) == len(process.threads) - 1


@pytest.mark.emulated
def test_stacks_are_copied_without_readable_images(process):
    """A problem reports the images."""

    def fault(call, answer):
        return Answer([], ()) if call == "read" and begun else answer

    begun = False
    with FridaTarget(SnapshotAgent(process, fault=fault)) as target:
        begun = True
        copied = target.snapshot()
    assert len(copied.threads) == len(process.threads)
    assert any(isinstance(problem.error, RemoteProtocolError) for problem in copied.problems)


# --- faulty scripts ---


def use(agent):
    """Use a process in every supported manner."""
    with FridaTarget(agent) as target:
        target.threads()
        target.snapshot()


@pytest.mark.emulated
@pytest.mark.parametrize("call", ["begin", "facts", "capture", "threads"])
@pytest.mark.parametrize(
    "value",
    [None, 0, "words", {}, [[]], [{}], {"threads": None}, {"platform": "haiku"}, True, -1],
    ids=repr,
)
def test_a_reply_of_another_kind_is_an_error(process, call, value):
    """The script is released."""
    agent = SnapshotAgent(process, fault=lambda c, a: Answer(value, a.parts) if c == call else a)
    with pytest.raises(MachtraceError) as caught:
        use(agent)
    assert caught.value.remedy
    assert agent.is_closed


@pytest.mark.emulated
@pytest.mark.parametrize(
    "parts",
    [
        (),
        (Part("threads", b"x" * 623), Part("stacks", b""), Part("copied", b"")),
        (Part("threads", b"\xff" * 624), Part("stacks", b""), Part("copied", b"")),
        (Part("threads", b"\0" * 624), Part("stacks", b""), Part("copied", b"")),
        (Part("copied", b""), Part("stacks", b"x")),
    ],
    ids=["nothing", "cut", "ones", "nobody", "stacks alone"],
)
def test_inconsistent_copies_are_an_error_with_the_reply(process, parts):
    agent = SnapshotAgent(
        process, fault=lambda c, a: Answer(a.value, parts) if c == "capture" else a
    )
    with FridaTarget(agent) as target, pytest.raises(RemoteProtocolError, match="capture"):
        target.snapshot()


@pytest.mark.emulated
def test_a_reply_with_a_flipped_bit_is_a_snapshot_or_an_error(process):
    chance = random.Random(17)  # noqa: S311 - the same bits each time
    small = replace(process, threads=process.threads[:3])
    outcomes = set()

    def fault(_call, answer):
        parts = [bytearray(part.data) for part in answer.parts]
        for data in parts:
            if data and chance.random() < 0.3:
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        return Answer(
            answer.value,
            tuple(Part(p.name, bytes(d)) for p, d in zip(answer.parts, parts, strict=True)),
        )

    for _ in range(60):
        try:
            with FridaTarget(SnapshotAgent(small, fault=fault)) as target:
                mt.unwind(target.snapshot())
            outcomes.add("snapshot")
        except MachtraceError:
            outcomes.add("error")
    assert "snapshot" in outcomes


@pytest.mark.emulated
def test_an_old_frida_is_an_error_with_a_remedy(process):
    agent = SnapshotAgent(
        process,
        fault=lambda c, a: Answer({**a.value, "version": "16.7.19"}) if c == "begin" else a,
    )
    with pytest.raises(RemoteProtocolError, match=r"16\.7\.19") as caught:
        FridaTarget(agent)
    assert "same version" in caught.value.remedy


@pytest.mark.emulated
def test_the_error_for_a_process_with_signed_code_only_names_other_targets(process):
    """The C code of the script cannot be compiled there."""
    agent = SnapshotAgent(
        process,
        fault=lambda c, a: Answer({**a.value, "signedOnly": True}) if c == "begin" else a,
    )
    with pytest.raises(TargetError, match="signed code") as caught:
        FridaTarget(agent)
    assert "device://" in caught.value.remedy


# --- specs ---


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("frida://local/12", FridaSpec(reach=Reach.LOCAL, pid=12)),
        ("frida://local/my%20app", FridaSpec(reach=Reach.LOCAL, name="my app")),
        ("frida://usb/com.example.notes", FridaSpec(reach=Reach.USB, name="com.example.notes")),
        ("frida://usb:0000-1C/7", FridaSpec(reach=Reach.USB, address="0000-1C", pid=7)),
        ("frida://phone:27042/7", FridaSpec(reach=Reach.REMOTE, address="phone:27042", pid=7)),
        ("frida://[::1]:9/a", FridaSpec(reach=Reach.REMOTE, address="[::1]:9", name="a")),
        (
            "frida://phone/7?timeout=2.5&token=a%26b",
            FridaSpec(reach=Reach.REMOTE, address="phone", pid=7, token="a&b", timeout=2.5),  # noqa: S106
        ),
    ],
)
def test_the_parts_of_a_valid_spec(text, spec):
    assert parse_spec(text) == spec


@pytest.mark.parametrize(
    "text",
    [
        "frida://",
        "frida://local",
        "frida://local/",
        "frida:///12",
        "frida://local/0",
        "frida://local/99999999999999999999999",
        "frida://local/a%00b",
        "frida://usb:/a",
        "frida://phone:0/a",
        "frida://phone:99999/a",
        "frida://a:b:c/d",
        "frida://local/1?timeout=0",
        "frida://local/1?timeout=nan",
        "frida://local/1?timeout=inf",
        "frida://local/1?speed=3",
        "frida://local/1?token",
    ],
)
def test_an_invalid_spec_has_a_reason_and_a_valid_example(text):
    """The error has the reason, the remedy a valid spec."""
    with pytest.raises(TargetSpecError) as caught:
        parse_spec(text)
    assert text in str(caught.value)
    assert "frida://local/PID" in caught.value.remedy
