"""Texts of ``sample``: depths by columns, images by address, offsets of several places."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest

from machtrace.model.profile import MissingFrames
from machtrace.model.report import Adjustment, NameSource, Report, ReportedSymbol, SampledNode
from machtrace.model.symbol import Frame, InlineFrame, PythonFrame, SourceLocation
from machtrace.render import sample_text
from machtrace.reports.readers import read_source
from machtrace.reports.sample import graph_frame, read, thread_heading
from machtrace.reports.source import ReportSource
from machtrace.reports.stacks.profiles import profile_of, sampling_run
from machtrace.reports.writers import write_reports
from tests.support.reports.models import Seen, function, profile

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
    assert [image.name for image in report.images] == ["dyld"]
    assert [(node.frame.address, node.frame.image) for node in report.trees[0].nodes] == [
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
    assert [(node.frame.address, name(node)) for node in report.trees[0].nodes] == [
        (None, "start"),
        (0x100000ED8, None),
    ]


WHOLE = """\
Sampling process 455 for 3 seconds with 2 milliseconds of run time between samples
Sampling completed, processing symbols...
Analysis of sampling App (pid 455) every 2 milliseconds
Process:         App [455]
Path:            /Users/USER/*/App.app/Contents/MacOS/App
Load Address:    0x100000000
Identifier:      org.example.app
Version:         1.2 (34)
Code Type:       ARM64
Platform:        macOS
Parent Process:  launchd [1]

Date/Time:       2026-02-03 04:05:06.789 +0900
Launch Time:     2026-02-03 04:00:00.001 +0900
OS Version:      macOS 26.2 (25C56)
Report Version:  7
Analysis Tool:   /usr/bin/sample

Physical footprint:         720K
Physical footprint (peak):  724K
Idle exit:                  untracked
----

Call graph:
    100 Thread_7001   DispatchQueue_1: com.apple.main-thread  (serial)
    + 60 main  (in App) + 12  [0x10000010c]  main.m:14
    + ! 50 draw  (in App) + 4,8,...  [0x100000204,0x100000208,...]  draw.m:3,4,...
    + ! 10 ???  (in App)  load address 0x100000000 + 0x300  [0x100000300]
    + 40 odd  (in App)  load address 0x100000000 + 1024  [0x100000400]
    100 Thread_7002: worker   DispatchQueue_13: com.apple.root.default-qos  (concurrent)
      100 start_wqthread  (in libsystem_pthread.dylib) + 8  [0x180000008]
        100 ???  (in <unknown binary>)  [0x5000]

Total number in stack (recursive counted multiple, when >=5):

Sort by top of stack, same collapsed (when >= 5):
        ???  (in <unknown binary>)        100
        draw  (in App)        50

Binary Images:
       0x100000000 -        0x100007fff +org.example.app (1.2 - 34) <82D13D98-219E-3040-B62A-07A297007A7C> /Users/USER/*/App.app/Contents/MacOS/App
       0x180000000 -        0x180003fff  libsystem_pthread.dylib (539.100.4) <A5D3B725-78C3-3E19-A765-CCEB22355093> /usr/lib/system/libsystem_pthread.dylib
       0x190000000 -                ???  odd /usr/lib/odd
"""  # noqa: E501 - lines of sample


def read_text(text: str) -> Report:
    """Return the one report of a text."""
    (report,) = read_source(ReportSource("sample", text.encode())).reports
    return report


def test_a_text_is_written_as_it_was_read() -> None:
    """Header, marks, queues, lists and images, with everything in them that is unusual."""
    assert write_reports([read_text(WHOLE)], "sample").decode() == WHOLE


def test_parts_of_a_text_are_written_as_they_were_read() -> None:
    graph = "Call graph:\n" + WHOLE.partition("Call graph:\n")[2]
    assert write_reports([read_text(graph)], "sample").decode() == graph


def test_the_run_is_the_text_s() -> None:
    """Threads are sampled at the same time: the time is that of one."""
    run = sampling_run(read_text(WHOLE))
    assert (run.interval_ns, run.ticks, run.duration_ns) == (2_000_000, 100, 200_000_000)
    assert run.started_at_ns == 1_770_059_106_789_000_000
    assert profile_of(read_text(WHOLE)).run == run


def test_names_from_files_are_written_in_the_text_s_form() -> None:
    """Offsets of all addresses are from the function's start, and the lists are counted again."""
    report = read_text(WHOLE)
    (main, worker) = report.trees
    named = [
        node._replace(
            frame=node.frame._replace(
                symbol=ReportedSymbol("paint", 2, NameSource.EXACT),
                location=SourceLocation("/src/paint.m", 7),
                details={key: node.frame.details[key] for key in ("addresses",)},
            )
        )
        if name(node) == "draw"
        else node
        for node in main.nodes
    ]
    changed = replace(report, trees=(replace(main, nodes=tuple(named)), worker))
    text = write_reports([changed], "sample").decode()
    assert (
        "    + ! 50 paint  (in App) + 2,6,...  [0x100000204,0x100000208,...]  paint.m:7\n" in text
    )
    assert "        paint  (in App)        50\n" in text
    assert "draw" not in text


def test_a_profile_s_text_comes_back() -> None:
    """With inlined calls, functions of Python, unknown callers and the parameters of the run."""
    inner = InlineFrame("inner", SourceLocation("/src/inner.h", 3))
    python = PythonFrame("work", SourceLocation("/app/job.py", 40))
    recorded = profile(
        [
            Seen(0, [function("main"), function("hot", offset=0x300, inlined=[inner])], 7),
            Seen(0, [function("main"), function("loop", offset=0x500, python=[python])], 2),
            Seen(1, [MissingFrames.UNKNOWN_CALLERS, function("", offset=0x600)], 6),
        ],
        names=("main", "worker"),
    )
    sink = StringIO()
    sample_text.write(recorded, sink)
    report = read_text(sink.getvalue())
    assert write_reports([report], "sample").decode() == sink.getvalue()
    again = profile_of(report)
    assert (again.run.interval_ns, again.run.lost) == (10_000_000, 3)
    assert (again.run.ticks, again.run.duration_ns) == (9, 90_000_000)
    frames = [frame for frame in again.frames if isinstance(frame, Frame)]
    assert [call.name for frame in frames for call in frame.inlined] == ["inner"]
    assert [call.name for frame in frames for call in frame.python] == ["work"]
    assert MissingFrames.UNKNOWN_CALLERS in again.frames
