"""Texts of ``sample``: depths by columns, images by address, offsets of several places."""

from __future__ import annotations

import pytest

from machtrace.model.report import Adjustment, Report, SampledNode
from machtrace.reports.readers import read_source
from machtrace.reports.sample import graph_frame, read, thread_heading
from machtrace.reports.source import ReportSource

HEAD = "Analysis of sampling App (pid 455) every 1 millisecond\nProcess:         App [455]\n\n"


def sampled(graph: str, images: str = "") -> Report:
    """Return the report of a call graph."""
    text = f"{HEAD}Call graph:\n{graph}\nBinary Images:\n{images}"
    (report,) = read(ReportSource("sample", text.encode()))
    return report


def name(node: SampledNode) -> str | None:
    """Return the name of a node's function."""
    return None if node.frame.symbol is None else node.frame.symbol.name


def test_columns_determine_callers_not_marks() -> None:
    """Each depth has two columns, in which marks lead on from one sibling to the next."""
    report = sampled(
        "    100 Thread_7001   DispatchQueue_1: com.apple.main-thread  (serial)\n"
        "    + 60 a  (in App) + 4  [0x104]\n"
        "    + ! 30 b  (in App) + 8  [0x108]\n"
        "    + !   30 c  (in App) + 8  [0x10c]\n"
        "    + ! 30 d  (in App) + 8  [0x110]\n"
        "    + 40 e  (in App) + 8  [0x114]\n"
        "    100 Thread_7002: worker\n"
        "      100 f  (in App) + 8  [0x118]\n"
    )
    main, worker = report.trees
    assert [(name(node), node.parent, node.samples) for node in main.nodes] == [
        ("a", None, 60),
        ("b", 0, 30),
        ("c", 1, 30),
        ("d", 0, 30),
        ("e", None, 40),
    ]
    assert [name(node) for node in main.nodes if node.frame.adjustment is Adjustment.EXACT] == [
        *("c", "d", "e"),
    ]
    assert (main.thread, main.queue, main.count) == (7001, "com.apple.main-thread", 100)
    assert (worker.thread, worker.name, worker.queue) == (7002, "worker", None)


def test_images_are_found_by_address_where_the_list_has_identifiers() -> None:
    """A frame's name is the file's; the listed name is its label."""
    report = sampled(
        "    1 Thread_1\n      1 run  (in My Kit (2)) + 4,8,...  [0x100000104,0x100000108,...]\n",
        "       0x100000000 -        0x100007fff +org.example.kit (1.2 - 34) "
        "<82D13D98-219E-3040-B62A-07A297007A7C> /x/My Kit (2)\n",
    )
    (node,) = report.trees[0].nodes
    assert (node.frame.image, node.frame.offset) == (0, 0x104)
    assert node.frame.details == {
        "offsets": "4,8,...",
        "addresses": "0x100000104,0x100000108,...",
    }
    (image,) = report.images
    assert (image.name, image.details["label"]) == ("My Kit (2)", "org.example.kit")


def test_of_two_images_of_one_name_the_one_at_the_address_counts() -> None:
    """Plug-ins share names."""
    row = "       0x{0}00000000 -        0x{0}00007fff  Plugin <{1}> /{0}/Plugin\n"
    uuid = "82D13D98-219E-3040-B62A-07A29700000"
    report = sampled(
        "    1 Thread_1\n      1 a  (in Plugin) + 4  [0x200000104]\n",
        row.format(1, uuid + "1") + row.format(2, uuid + "2"),
    )
    assert report.trees[0].nodes[0].frame.image == 1


@pytest.mark.parametrize(
    ("text", "id", "thread", "queue"),
    [
        ("Thread_15758523", 15758523, None, None),
        ("Thread_0x1f03: tail", 0x1F03, "tail", None),
        ("Thread_2b03", 0x2B03, None, None),
        ("Thread_1: CFSocket: a", 1, "CFSocket: a", None),
        ("Thread_1   DispatchQueue_<multiple>: a b  (concurrent)", 1, None, "a b"),
        ("Thread_1: name   DispatchQueue_1: main  (serial)", 1, "name", "main"),
        ("Thread_70x2", None, "Thread_70x2", None),
        ("All threads", None, "All threads", None),
    ],
)
def test_headings(text: str, id: int | None, thread: str | None, queue: str | None) -> None:  # noqa: A002 - the field's name
    """Numbers are decimal, hexadecimal in old ones; a name may stand before the queue."""
    heading = thread_heading(text)
    assert (heading.id, heading.name, heading.queue) == (id, thread, queue)


@pytest.mark.parametrize(
    ("text", "symbol", "image", "address", "base"),
    [
        ("main  (in App) + 12  [0x1a0]  main.m:14", ("main", 12), "App", 0x1A0, None),
        ("f (in x)  (in App) + 12,16  [0x1a0,0x1a4]", ("f (in x)", 12), "App", 0x1A0, None),
        ("???  (in App)  load address 0x100 + 0x20  [0x120]", None, "App", 0x120, 0x100),
        ("f  (in App)  load address 0x100 + 0x20  [0x120]", ("f", None), "App", 0x120, 0x100),
        ("???  [0x1234]", None, None, 0x1234, None),
        ("_dyld_start  (in dyld) + 0", ("_dyld_start", 0), "dyld", None, None),
        ("no image", ("no image", None), None, None, None),
    ],
)
def test_frames(
    text: str,
    symbol: tuple[str, int | None] | None,
    image: str | None,
    address: int | None,
    base: int | None,
) -> None:
    """An offset behind a load address is from the image's start, not the function's."""
    frame = graph_frame(text)
    assert (frame.symbol and tuple(frame.symbol)[:2], frame.image) == (symbol, image)
    assert (frame.address, frame.base) == (address, base)


def test_other_lines_of_the_graph_are_stored() -> None:
    """In the details, with the tables that follow."""
    report = sampled("    1 Thread_1\n      odd line\n\nSort by top of stack:\n        a  3\n")
    assert report.details["call graph"] == ["      odd line"]
    assert report.details["Sort by top of stack:"] == ["        a  3"]


def test_a_graph_may_stand_alone() -> None:
    """As it is copied; memory of no image has none."""
    text = (
        "Call graph:\n    100 Thread_7001\n    + 100 start  (in dyld) + 4  [0x104]\n"
        "    +   100 ???  (in <unknown binary>)  [0x5000]\n"
    )
    (report,) = read_source(ReportSource("graph", text.encode())).reports
    assert [one.name for one in report.images] == ["dyld"]
    assert [(one.frame.address, one.frame.image) for one in report.trees[0].nodes] == [
        (0x104, 0),
        (0x5000, None),
    ]


def test_version_6_has_fewer_brackets() -> None:
    """Numbers of processes, and addresses without a symbol, have none around them."""
    text = (
        "Analysis of sampling App (pid 455) every 1 millisecond\nProcess:         App 455\n"
        "Parent Process:  launchd 1\nReport Version:  6\n\nCall graph:\n"
        "    100 Thread_7001\n      100 start\n        100 0x100000ed8\n"
    )
    (report,) = read_source(ReportSource("sample", text.encode())).reports
    process = report.process
    assert (process.name, process.pid, process.parent, process.parent_pid) == (
        "App",
        455,
        "launchd",
        1,
    )
    assert [(one.frame.address, name(one)) for one in report.trees[0].nodes] == [
        (None, "start"),
        (0x100000ED8, None),
    ]
