"""Spools of the agent: columns, the report, damage; truth is in tests/support/writers/spool.py."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import machtrace as mt
from machtrace.errors import FileAccessError, FormatError, MachtraceError
from machtrace.model.report import Adjustment, Report, ReportKind
from machtrace.reports.analysis.watched_calls import watched_calls
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource
from machtrace.reports.spool import calls as calls_module
from machtrace.reports.spool.facts import RuleState, spool_facts
from machtrace.reports.spool.node_columns import varints
from machtrace.reports.spool.spool import EventFlag, Spool, SpoolFrame
from machtrace.reports.spool.tree import StackTree
from machtrace.reports.stacks.profiles import profile_of
from machtrace.reports.writers import write_reports
from tests.support.writers import spool as writer
from tests.support.writers.spool import LOADED, MAIN, OUTSIDE, SPOOL, WORK, Call

SUMS = {(0, 0): 5, (0, MAIN): 40, (0, WORK): 2, (0, OUTSIDE): 2, (2, WORK): 3, (2, LOADED): 1}


def parse(data: bytes = SPOOL) -> Spool:
    return Spool.parse(data, "app.spool")


def report(data: bytes = SPOOL) -> Report:
    (result,) = read_source(ReportSource("app.spool", data)).reports
    return result


def sums(spool: Spool) -> dict[tuple[int, int], int]:
    return {(rule, stack): calls for rule, _, stack, calls in spool.sums().tolist()}


def test_events_are_columns() -> None:
    events = parse().events
    assert events["time"].tolist() == [1_000_500, 1_002_000, 1_001_000, 1_003_000]
    assert events["calls"].tolist() == [1, 2, 1, 1]
    assert events["thread"].tolist() == [1, 1, 1, 2]
    assert events["stack"].dtype == np.uint32


def test_calls_are_summed_by_rule_and_stack() -> None:
    spool = parse()
    assert sums(spool) == SUMS
    assert spool.sums()["calls"].tolist() == sorted(SUMS.values(), reverse=True)
    assert spool.calls[:3].tolist() == [49, 0, 4]


def test_a_stack_is_images_and_offsets() -> None:
    spool = parse()
    app, system = spool.images
    assert (app.identifier, app.path) == (bytes(range(1, 17)), "/private/var/App.app/App")
    assert (system.identifier, system.size) == (b"", 0x4000)
    assert spool.stack(WORK) == (SpoolFrame(app, 0x300), SpoolFrame(app, 0x1A0))
    assert spool.stack(OUTSIDE)[0] == SpoolFrame(None, 0x1234_5678)
    assert spool.stack(LOADED) == (SpoolFrame(app, 0x200),), "an era's mark is no frame"
    assert spool.stack(0) == spool.stack(4095) == ()


def test_rules_threads_and_what_else_a_spool_has() -> None:
    spool = parse()
    assert [(rule.symbol, rule.state, rule.other) for rule in spool.rules] == [
        ("open", 1, ""),
        ("absent", 2, ""),
        ("-[A b:]", 4, "-[B b:]"),
    ]
    assert spool.threads[1].name == "worker"
    assert spool.threads[1].id == 700
    assert spool.unknown_records == {77: 1, 5: 1}
    assert spool.is_stopped
    assert spool.losses.events_counted == 43
    assert spool.wall_ns(1_000_500) == 1_770_000_000_000_000_500
    assert spool.problems == ()


def test_a_file_is_read_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "app.spool"
    path.write_bytes(SPOOL)
    assert Spool.read(path).pid == 455
    (from_path,) = mt.read_reports(path)
    assert from_path == report()
    with pytest.raises(FileAccessError):
        Spool.read(tmp_path / "missing")


def test_folded_events_count_once() -> None:
    """Their calls are in cells already, though their segment is not overwritten yet."""
    data = writer.spool(
        writer.sample_log(),
        [[Call(1, MAIN, 0), Call(2, MAIN, 0), Call(3, WORK, 0)]],
        cells=[(0, MAIN, 2)],
        folded=2,
    )
    spool = parse(data)
    assert sums(spool) == {(0, MAIN): 2, (0, WORK): 1}
    assert spool.events["time"].tolist() == [3]


@pytest.mark.parametrize("stored", [0, 1], ids=["before", "after"])
def test_a_change_of_a_cell_is_completed(stored: int) -> None:
    key = 1 << 63 | MAIN
    data = writer.spool(
        writer.sample_log(),
        [[Call(1, MAIN, 0), Call(2, WORK, 0)]],
        cells=[(0, MAIN, 7 + stored)],
        folded=stored,
        change=(2, 0, key, 8),
    )
    assert sums(parse(data)) == {(0, MAIN): 8, (0, WORK): 1}
    data = writer.spool(writer.sample_log(), change=(1, 8 + 3, 0, 9))
    assert sums(parse(data)) == {(3, 0): 9}, "calls without a stack"


def test_the_report_has_a_tree_for_each_function() -> None:
    result = report()
    assert result.kind is ReportKind.SPOOL
    assert str(result.process) == "App [455]"
    assert [(tree.name, tree.count) for tree in result.trees] == [("open", 49), ("-[A b:]", 4)]
    for tree in result.trees:
        assert tree.root_samples == tree.count
    watched = result.trees[0].nodes[-1].frame
    assert (watched.symbol and watched.symbol.name, watched.address) == ("open", 0x1_8000_0040)
    assert watched.image == 1
    caller = next(node.frame for node in result.trees[0].nodes if node.frame.image == 0)
    assert (caller.offset, caller.adjustment) == (0x1A0, Adjustment.RETURN)


def test_the_report_states_what_is_missing() -> None:
    facts = spool_facts(report())
    assert facts is not None
    assert [(rule.symbol, rule.state, rule.calls, rule.timed) for rule in facts.rules] == [
        ("open", RuleState.WATCHED, 49, 4),
        ("-[A b:]", RuleState.INHERITED, 4, 1),
        ("absent", RuleState.NOT_DEFINED, 0, 0),
    ]
    assert report().warnings == (
        "calls without a known stack: 5",
        "stacks without outer frames, since they were too deep: 1",
        "calls without time and thread, since they were too fast: 43",
        "records of kinds that this version does not know: 2",
    )
    killed = report(writer.spool(writer.sample_log(), state=1))
    assert killed.incident.kind == "killed or running"
    assert killed.warnings[0].startswith("the agent was not stopped")


def test_calls_beyond_a_budget_have_their_call_site_alone() -> None:
    mark = writer.node(0, 2)
    site = writer.node(mark, writer.START + 0x1A0)
    era = writer.node(0, 17)
    later_mark = writer.node(era, 2)
    later = writer.node(later_mark, writer.START + 0x200)
    chains = (0, 2, 0, 1, 0, 2, 0, 0x1A0 << 1 | 1, 1), (0, 3, 0, 1, 0, 17, 0, 0, 2)
    chains = chains[0], (*chains[1], 0, 0x200 << 1 | 1, 1)
    log = writer.sample_log()[:6]
    log[0] = writer.RULE, writer.rule(0, "open", flags=4)
    log += [(writer.NODES, writer.varints(*chain)) for chain in chains]
    cells = [(0, site, 1_000), (0, later, 30), (0, MAIN, 2)]
    data = writer.spool(log, [[Call(1_000_500, WORK, 0)]], cells=cells, stackless=[7])
    facts = spool_facts(report(data))
    assert facts is not None
    (rule,) = (rule for rule in facts.rules if rule.symbol == "open")
    assert (rule.calls, rule.untaken, rule.stacks) == (1_040, 1_037, 2)
    assert rule.text == "watched, 1 import slot, stack taken 3 of 1,040"
    assert [parse(data).stack(node)[0].offset for node in (site, later)] == [0x1A0, 0x200]
    calls = watched_calls(report(data), 1)
    assert calls is not None
    caller, missing = calls.stacks[0].frames
    assert caller.offset == 0x1A0
    assert missing.symbol is not None
    assert missing.symbol.name == "[unknown callers]"
    assert calls.facts.events_counted == 0


def test_calls_by_functions_without_frame_pointers_are_counted() -> None:
    flag = EventFlag.NO_FRAME_POINTER
    calls = [Call(1, MAIN, 0, flags=flag | EventFlag.NESTED, calls=3), Call(2, MAIN, 0, flags=8)]
    (warning,) = report(writer.spool(writer.sample_log()[:7], [calls])).warnings
    assert warning == (
        "calls without outer frames, since a function without frame pointers called: 3"
    )


def test_the_state_of_a_function_is_in_words() -> None:
    rules = [
        (writer.RULE, writer.rule(0, "slots")),
        (writer.RULE, writer.rule(1, "entry", flags=2)),
        (writer.RULE, writer.rule(2, "short\0it is too short", state=6, flags=2)),
        (writer.RULE, writer.rule(3, "-[A b:]\0-[B b:]", state=5, flags=1)),
        (writer.RULE, writer.rule(4, "later", state=99)),
    ]
    facts = spool_facts(report(writer.spool(rules)))
    assert facts is not None
    assert [rule.text for rule in facts.rules] == [
        "watched, 1 import slot",
        "watched at its first instruction",
        "refused: it is too short",
        "shared with -[B b:], 1 import slot, stacks are not taken",
        "unknown, 1 import slot",
    ]


def test_an_incident_is_that_of_its_last_record_with_all_stacks() -> None:
    (incident,) = parse().incidents
    assert [stack.stack for stack in incident.stacks] == [WORK, MAIN]
    assert (incident.kind, incident.verdict, incident.thread) == ("hang", "blocked", 700)
    assert incident.has_ended
    text = "hang of thread 700: 900.0 ms, limit 250.0 ms, blocked, 2 stacks"
    assert incident.text == text
    assert ("incidents", (text,)) in report().application_information
    values = (32_000_000, 64_000_000, 48_000_000)
    memory = [(writer.INCIDENT, writer.incident(2, 2, value=value, kind=3)) for value in values]
    (lasting,) = parse(writer.spool(memory)).incidents
    assert "64.0 MB" in lasting.text
    assert "not ended" in lasting.text


def test_texts_count_calls() -> None:
    assert "49 calls" in str(report())
    page = write_reports([report()], "html").decode()
    assert "Calls of" in page
    assert "49 calls" in page


def test_the_most_frequent_stacks_come_first() -> None:
    calls = watched_calls(report(), 2)
    assert calls is not None
    assert [(stack.function, stack.calls) for stack in calls.stacks] == [
        ("open", 40),
        ("open", 5),
        ("-[A b:]", 3),
    ]
    assert [frame.offset for frame in calls.stacks[0].frames] == [0x1A0]
    assert calls.functions[0].callers == (("App", 42), ("", 7))
    assert watched_calls(report(), 0) is not None
    (other,) = read_source(ReportSource("x", b"main;work 3\n")).reports
    assert watched_calls(other, 1) is None


def test_calls_are_in_time_where_it_is_known() -> None:
    profile = profile_of(report())
    assert list(profile.samples.times_ns) == [0, 0, 0, 500, 1_000, 2_000, 3_000]
    assert sum(profile.samples.weights) == 53
    assert profile.run.started_at_ns == 1_770_000_000_000_000_000


def test_folded_stacks_are_weighted_by_calls() -> None:
    lines = write_reports([report()], "folded").decode().splitlines()
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == 53
    assert "open [0];App+0x1a0;open 40" in [line.replace("App + 0x", "App+0x") for line in lines]


def test_another_version_is_refused() -> None:
    with pytest.raises(FormatError, match="version 2, not 1"):
        parse(writer.spool([], version=2))


def test_each_beginning_of_a_spool_is_a_spool_or_an_error() -> None:
    for size in range(0, len(SPOOL), 7):
        try:
            spool = parse(SPOOL[:size])
        except FormatError:
            assert size < 248
        else:
            assert "the spool is truncated" in spool.problems[0]


def test_a_damaged_record_ends_its_sequence() -> None:
    at = SPOOL.index(b"-[A b:]")
    damaged = bytearray(SPOOL)
    damaged[at] ^= 1
    spool = parse(bytes(damaged))
    assert [rule.symbol for rule in spool.rules] == ["open", "absent"]
    assert "the log: record 2 is damaged" in spool.problems[0]
    assert spool.problems[-1] == "calls whose stack is not in the file: 48"
    assert sum(sums(spool).values()) == 53


def test_invalid_records_with_right_checksums_are_counted() -> None:
    log = [
        (writer.IMAGE, b"short"),
        (writer.IMAGE, writer.image(0, 1, 1, "x")),
        (writer.NODES, b"\x80"),
        (writer.NODES, writer.varints(9, 1, 0, 2)),
        (writer.NODES, writer.varints(0, 1 << 60, 0, 1, 0, 4096)),
        (writer.NODES, writer.varints(0, 1, 0, 1, 5)),
        (writer.NODES, b"\xff" * 9 + b"\x02"),
        (writer.RULE, b""),
        (writer.RULE, writer.rule(8, "of no such number")),
        (writer.THREAD, b"1"),
    ]
    spool = parse(writer.spool(log, cells=[(0, 7, 1 << 60), (900, 7, 1), (1, 7, 2)]))
    assert spool.problems == (
        "invalid records in the log: 10",
        "cells with impossible values: 2",
        "calls whose stack is not in the file: 2",
    )
    assert sums(spool) == {(1, 0): 2}


@pytest.mark.parametrize("size", [0, 9, 4096])
def test_numbers_are_decoded_in_bulk(size: int) -> None:
    source = random.Random(size)  # noqa: S311 - no secret
    values = [source.getrandbits(source.randint(1, 64)) for _ in range(size)]
    numbers = varints(np.frombuffer(writer.varints(*values), np.uint8))
    assert numbers is not None
    assert numbers.tolist() == values


BITS = 14


def random_records(seed: int, images: Mapping[int, tuple[int, int]]) -> list[memoryview]:
    """Return records of nodes with marks, code outside of images, and long chains."""
    source = random.Random(seed)  # noqa: S311 - no secret
    nodes, taken, payloads = [0], {0}, []
    for _ in range(source.randrange(1, 30)):
        values, image = [], 0
        for _ in range(source.randrange(0, 4)):
            node = source.choice(nodes)
            count = source.choice((1, 2, 7, source.randrange(1, 400)))
            values += [node, count]
            for _ in range(count):
                number = source.choice((image, image, image, 0, *images))
                offset = source.getrandbits(20)
                if not number:
                    offset = source.choice((1, 2, 16, 17, 1 << 16, 0x7FFF_1234_5678, (1 << 64) - 1))
                address = offset + (images[number][1] if number else 0)
                distance, home = 0, writer.node(node, address, bits=BITS)
                while (home + distance) % (1 << BITS) in taken:
                    distance += 1
                node = (home + distance) % (1 << BITS)
                nodes.append(node)
                taken.add(node)
                code = (offset << 1 if number else 0) | (number != image)
                values += [distance, code, *([number] if number != image else ())]
                values += [] if number else [offset]
                image = number
        payloads.append(memoryview(writer.varints(*values)))
    return payloads


@pytest.mark.parametrize("seed", range(40))
def test_nodes_are_the_same_in_bulk_and_one_by_one(seed: int) -> None:
    images = {3: (0, 0x1_0000_0000), 5: (1, 0x7FFF_0000_0000)}
    payloads = random_records(seed, images)
    bulk, single = StackTree(BITS), StackTree(BITS)
    assert bulk.read(payloads, images) == 0
    assert [single.add(payload, images) for payload in payloads] == [True] * len(payloads)
    assert bulk.rows == single.rows
    assert (bulk.callers, bulk.images, bulk.offsets) == (
        single.callers,
        single.images,
        single.offsets,
    )
    rows = range(len(single))
    assert [bulk.is_empty(row) for row in rows] == [single.is_empty(row) for row in rows]
    assert bulk.rows_of(bulk.numbers).tolist() == list(rows)


@pytest.mark.parametrize("seed", range(200))
def test_damaged_nodes_are_the_same_in_bulk_and_one_by_one(seed: int) -> None:
    images = {3: (0, 0x1_0000_0000), 5: (1, 0x7FFF_0000_0000)}
    source = random.Random(seed)  # noqa: S311 - no secret
    payloads = [bytearray(payload) for payload in random_records(seed, images)]
    damaged = [payload for payload in payloads if payload]
    for _ in range(source.choice((1, 2, 5)) if damaged else 0):
        payload = source.choice(damaged)
        payload[source.randrange(len(payload))] = source.randrange(256)
    views = [memoryview(payload) for payload in payloads]
    bulk, single = StackTree(BITS), StackTree(BITS)
    invalid = sum(not single.add(view, images) for view in views)
    assert bulk.read(views, images) == invalid
    assert bulk.rows == single.rows
    assert (bulk.callers, bulk.images) == (single.callers, single.images)
    assert bulk.offsets == single.offsets


def with_head(data: bytes, offset: int, value: int) -> bytes:
    """Return a spool with another word in its head, and the right checksum."""
    result = bytearray(data)
    struct.pack_into("<Q", result, offset, value)
    struct.pack_into("<I", result, 12, zlib.crc32(result[16:144]))
    return bytes(result)


@pytest.mark.parametrize("offset", range(16, 128, 8))
@pytest.mark.parametrize("value", [0, 1, 255, 1 << 20, 1 << 63, (1 << 64) - 1])
def test_every_number_of_the_head_is_hostile(offset: int, value: int) -> None:
    try:
        result = report(with_head(SPOOL, offset, value))
    except MachtraceError:
        return
    assert read_source(ReportSource("x", write_reports([result], "json"))).reports == (result,)


def test_functions_that_share_deep_stacks_are_one_tree_if_they_are_too_large() -> None:
    """Else a file would have the square of its size in trees."""
    depth = 60_000
    chain, nodes = _distinct(depth)
    payload = writer.varints(*chain)
    log = [(writer.RULE, writer.rule(number, f"f{number}")) for number in range(8)]
    log.append((writer.NODES, payload))
    data = writer.spool(
        log, cells=[(number, nodes[-1], 1) for number in range(8)], log_size=1 << 20
    )
    data = with_head(data, 120, 20 | 8 << 32)
    result = report(data)
    (tree,) = result.trees
    assert len(tree.nodes) == depth + 8
    assert tree.count == 8
    calls = watched_calls(result, 1)
    assert calls is not None
    assert len(calls.stacks[0].frames) == depth


def test_stacks_without_room_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The most frequent ones have it; no call is missing."""
    monkeypatch.setattr(calls_module, "_MAX_ROWS", 2)
    result = report()
    assert [tree.count for tree in result.trees] == [49, 4]
    assert sum(len(tree.nodes) for tree in result.trees) == 1 + 1 + 4 + 1 + 2
    assert result.warnings[-1] == "calls whose frames have no room in a report: 8"
    assert sum(profile_of(result).samples.weights) == 53


def test_a_stack_may_be_the_mark_of_an_era_alone() -> None:
    data = writer.spool(writer.sample_log()[:7], cells=[(0, writer.node(0, 16), 3)])
    result = report(data)
    assert [node.samples for node in result.trees[0].nodes] == [3, 3]
    assert result.warnings == ()


def _distinct(depth: int) -> tuple[list[int], list[int]]:
    """Return a chain whose nodes have numbers of their own, and these."""
    chain, nodes, at, used = [0, depth], [], 65_536, {0}
    parent = 0
    for number in range(depth):
        home, distance = writer.node(parent, at, bits=20), 0
        while (home + distance) % (1 << 20) in used:
            distance += 1
        parent = (home + distance) % (1 << 20)
        used.add(parent)
        nodes.append(parent)
        chain += [distance, 1, 0, at] if number == 0 else [distance, 0, at]
        at += 1
    return chain, nodes
