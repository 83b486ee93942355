"""Segments: the stacks of reports as rows, and unions that do not depend on the order."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from machtrace.errors import FileAccessError, FormatError
from machtrace.model.address import ImageOffset
from machtrace.model.report import Incident, Report, ReportedThread
from machtrace.warehouse.builder import SegmentBuilder, Source, parse_time
from machtrace.warehouse.segment import Segment, merge, without_reports
from machtrace.warehouse.segment_files import read_segment, write_segment
from tests.support.reports.models import made_frame, made_report, made_thread, made_tree

NAMES = st.deferred(lambda: st.sampled_from(FUNCTIONS))
THREADS = st.lists(st.lists(NAMES, min_size=1, max_size=6), min_size=1, max_size=3)


FUNCTIONS = ["main", "run", "kit:draw", "system:wait", "helper"]


def thread(index: int, names: list[str]) -> ReportedThread:
    """Return a thread; each function has a return address of its own."""
    frames = tuple(made_frame(name, offset=0x100 * (FUNCTIONS.index(name) + 1)) for name in names)
    return replace(made_thread(index, names, crashed=index == 0), frames=frames)


def report(number: int, stacks: list[list[str]]) -> Report:
    threads = [thread(at, names) for at, names in enumerate(stacks)]
    made = made_report(*threads, version=str(number % 2))
    time = f"2026-11-{number % 28 + 1:02} 10:00:00.000 +0000"
    return replace(made, incident=Incident(id=f"incident-{number}", time=time))


def segment(*reports: Report) -> Segment:
    builder = SegmentBuilder()
    for number, each in enumerate(reports):
        builder.add(each, Source(received=5, number=number))
    return builder.build()


def stacks_of(segment: Segment) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return the incident, role and names of all stacks, the innermost frame first."""
    names = {
        row["frame"]: row["function"] for row in segment.names.to_pylist() if row["place"] == 0
    }
    incidents = segment.reports["incident"].to_pylist()
    return [
        (
            incidents[row["report"]],
            row["role"],
            tuple(names[frame] for frame in segment.tree.stack(row["node"])),
        )
        for row in segment.occurrences.to_pylist()
    ]


def rows_of(segment: Segment) -> list[object]:
    tables = (segment.reports, segment.images, segment.frames, segment.occurrences, segment.names)
    tree = segment.tree
    return [
        *(table.to_pylist() for table in tables),
        segment.stacks.to_pylist(),
        tree.depth.tolist(),
        tree.frame[1:].tolist(),
    ]


def test_a_report_has_its_stacks_and_its_subject():
    made = segment(report(1, [["kit:draw", "run", "main"], ["system:wait", "main"]]))
    assert stacks_of(made) == [
        ("incident-1", "subject", ("draw", "run", "main")),
        ("incident-1", "crashed", ("draw", "run", "main")),
        ("incident-1", "thread", ("wait", "main")),
    ]
    (row,) = made.reports.to_pylist()
    assert (row["kind"], row["app"], row["exception"]) == ("crash", "Demo", "EXC_CRASH")
    assert row["subject"] == 0
    assert row["time"] == parse_time("2026-11-02 10:00:00 +0000")


def test_samples_are_stacks_with_weights():
    tree = made_tree([(None, 10, "main"), (0, 7, "run"), (1, 3, "kit:draw"), (0, 1, "helper")])
    nodes = [
        node._replace(frame=node.frame._replace(offset=ImageOffset(0x100 * at)))
        for at, node in enumerate(tree.nodes)
    ]
    made = segment(made_report(trees=[replace(tree, nodes=tuple(nodes))], exception=None))
    weights = {
        names: row["weight"]
        for (_, role, names), row in zip(stacks_of(made), made.occurrences.to_pylist(), strict=True)
        if role == "sample"
    }
    assert weights == {
        ("main",): 2,
        ("run", "main"): 4,
        ("draw", "run", "main"): 3,
        ("helper", "main"): 1,
    }


@given(st.lists(THREADS, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_a_union_does_not_depend_on_order_or_grouping(stacks, shuffle):
    reports = [report(number, each) for number, each in enumerate(stacks)]
    whole = rows_of(segment(*reports))
    parts = [segment(each) for each in reports]
    shuffle.shuffle(parts)
    middle = shuffle.randrange(len(parts) + 1)
    assert rows_of(merge(parts)) == whole
    assert rows_of(merge([merge(parts[:middle]), merge(parts[middle:])])) == whole
    assert rows_of(merge([*parts, parts[0]])) == whole


@given(st.lists(THREADS, min_size=2, max_size=5))
def test_removed_reports_leave_nothing_behind(stacks):
    reports = [report(number, each) for number, each in enumerate(stacks)]
    keys = {segment(reports[0]).reports["key"][0].as_py()}
    assert rows_of(without_reports(segment(*reports), keys)) == rows_of(segment(*reports[1:]))


def test_equal_stacks_have_one_key_in_every_segment():
    first = segment(report(1, [["run", "main"], ["helper"]]))
    second = segment(report(2, [["helper"], ["kit:draw", "main"], ["run", "main"]]))
    keys = [set(each.stacks["key"].to_pylist()) for each in (first, second)]
    assert len(keys[0]) == 2
    assert len(keys[1]) == 3
    assert keys[0] < keys[1]


def test_a_folder_has_the_same_rows(tmp_path):
    made = segment(report(1, [["run", "main"]]), report(2, [["helper"], ["system:wait"]]))
    size = write_segment(made, tmp_path / "1")
    assert size == sum(file.stat().st_size for file in (tmp_path / "1").iterdir())
    assert rows_of(read_segment(tmp_path / "1")) == rows_of(made)
    with pytest.raises(FileAccessError):
        write_segment(made, tmp_path / "1")


def test_damaged_files_are_stated(tmp_path):
    made = segment(report(1, [["run", "main"]]))
    write_segment(made, tmp_path / "1")
    for file in sorted((tmp_path / "1").iterdir()):
        if file.stem == "stacks":
            continue
        whole = file.read_bytes()
        for data in (b"", whole[: len(whole) // 2], b"PAR1" + whole):
            file.write_bytes(data)
            with pytest.raises((FormatError, FileAccessError)):
                read_segment(tmp_path / "1")
        file.write_bytes(whole)
    (tmp_path / "1" / "frames.parquet").unlink()
    with pytest.raises(FileAccessError):
        read_segment(tmp_path / "1")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-11-23 10:00:00.5000 +0100", 1_795_424_400.5),
        ("2026-11-23 09:00:00 +0000", 1_795_424_400),
        ("2026-11-23T09:00:00Z", 1_795_424_400),
        ("2026-11-23 09:00:00.25", 1_795_424_400.25),
        ("yesterday", None),
        ("", None),
        (None, None),
    ],
)
def test_times_of_reports(text, seconds):
    assert parse_time(text) == (None if seconds is None else int(seconds * 1000) * 10**6)


CHAIN = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["", "f.c"]), st.integers(0, 2)),
    min_size=1,
    max_size=3,
)


@given(st.lists(CHAIN, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_of_several_chains_of_calls_at_a_frame_the_same_one_stays(chains, shuffle):
    """Reports can name one frame differently; the order in which they came does not matter."""
    base = segment(report(1, [["main"]]))

    def named(chain):
        columns = {
            "frame": [0] * len(chain),
            "place": range(len(chain)),
            "function": [name for name, _, _ in chain],
            "file": [file for _, file, _ in chain],
            "line": [line for _, _, line in chain],
            "source": ["report"] * len(chain),
        }
        schema = base.names.schema
        arrays = [pa.array(columns[field.name], field.type) for field in schema]
        return replace(base, names=pa.table(arrays, schema=schema))

    parts = [named(chain) for chain in chains]
    names = merge(parts).names.to_pylist()
    assert [(row["function"], row["file"], row["line"]) for row in names] == min(chains)
    shuffle.shuffle(parts)
    at = shuffle.randrange(len(parts))
    first = [merge(parts[:at])] if at else []
    assert merge([*first, *parts[at:]]).names.to_pylist() == names
