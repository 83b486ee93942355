"""A profile in the style of Apple's ``sample``, and folded."""

import io

import pytest

from machtrace.model.profile import MissingFrames
from machtrace.model.symbol import InlineFrame, PythonFrame, SourceLocation
from machtrace.render import folded, sample_text
from tests.support.reports.models import Seen, function, profile

START = function("start", offset=0x100, at=8)
MAIN = function("main", offset=0x200, at=16, line=12)
MAIN_LATER = function("main", offset=0x200, at=32, line=14)
HOT = function("hot", offset=0x300, at=4, line=30, is_leaf=True)
HOT_LATER = function("hot", offset=0x300, at=12, line=31, is_leaf=True)
COLD = function("cold", offset=0x400, at=8, is_leaf=True)
NAMELESS = function("", offset=0x500, at=4, is_leaf=True)


def graph(recorded, **options):
    """Return the lines of the call graph."""
    text = write(sample_text, recorded, **options)
    return text.partition("\nCall graph:\n")[2].partition("\n\n")[0].split("\n")


def write(form, recorded, **options):
    """Return a profile in a format."""
    sink = io.StringIO()
    form.write(recorded, sink, **options)
    return sink.getvalue()


@pytest.fixture
def busy():
    """Return a profile of a thread that works, and one that waits."""
    return profile(
        [
            Seen(0, [START, MAIN, HOT], 5),
            Seen(0, [START, MAIN, HOT_LATER], 2),
            Seen(0, [START, MAIN, COLD], 1),
            Seen(0, [START, MAIN_LATER, COLD], 2),
            Seen(1, [START, NAMELESS], 10),
        ],
        names=("main", None),
    )


def test_the_call_graph(busy):
    """A line for each place that called on; where stacks end a line for each function.

    The first thread's lines are led on to the second; that one's are not.
    """
    assert graph(busy) == [
        "    10 Thread_259: main",
        "    + 10 start  (in Demo) + 8  [0x102060108]",
        "    +   8 main  (in Demo) + 16  [0x102060210]  demo.c:12",
        "    +   ! 7 hot  (in Demo) + 4,12  [0x102060304,0x10206030c]  demo.c:30,31",
        "    +   ! 1 cold  (in Demo) + 8  [0x102060408]",
        "    +   2 main  (in Demo) + 32  [0x102060220]  demo.c:14",
        "    +     2 cold  (in Demo) + 8  [0x102060408]",
        "    10 Thread_260",
        "      10 start  (in Demo) + 8  [0x102060108]",
        "        10 ???  (in Demo)  load address 0x102060000 + 0x504  [0x102060504]",
    ]


def test_connecting_lines_differ_by_depth():
    """``+ ! : |`` in turn, and no line where nothing follows."""
    names = "abcdefg"
    outer = [function(name, offset=0x100 * number) for number, name in enumerate(names, 1)]
    ends = [function(f"end_{name}", offset=0x1000, at=4) for name in names]
    seen = [Seen(0, [*outer, ends[0]], 9)]
    seen += [Seen(0, [*outer[:depth], ends[depth]]) for depth in range(1, 6)]
    lines = graph(profile(seen))

    assert lines[0] == "    14 Thread_259: main"
    assert [line.partition("  (in")[0] for line in lines[1:10]] == [
        "      14 a",
        "        13 b",
        "        + 12 c",
        "        + ! 11 d",
        "        + ! : 10 e",
        "        + ! : | 9 f",
        "        + ! : | + 9 g",
        "        + ! : | +   9 end_a",
        "        + ! : | 1 end_f",
    ]


def test_the_lists_at_the_end(busy):
    """They list functions with many lines, functions at the top of stacks, and images."""
    text = write(sample_text, busy)

    assert (
        "Sort by top of stack, same collapsed (when >= 5):\n"
        "        ???  (in Demo)        10\n"
        "        hot  (in Demo)        7\n"
        "\n"
        "Binary Images:\n"
        "       0x102060000 -        0x10206ffff +Demo "
        "<D5BD0E97-65E0-3DBD-9E18-2E8F1A6F3C11> /Applications/Demo.app/Demo\n"
    ) in text
    recursive = profile([Seen(0, [START, *[MAIN] * 7, HOT])])
    assert (
        "Total number in stack (recursive counted multiple, when >=5):\n"
        "        7       main  (in Demo)\n\n"
    ) in write(sample_text, recursive)


def test_the_header_has_the_sampling_parameters(busy):
    """The heading has times in UTC and the number of lost samples."""
    header = write(sample_text, busy).partition("\n----\n")[0]
    assert "Analysis of sampling Demo (pid 42) every 10 milliseconds\n" in header
    assert "Date/Time:       2023-11-14 22:13:20.000 +0000\n" in header
    assert "Sampled:         10 times in 0.100 s, 3 lost\n" in header
    assert header.endswith("Stopped:         1.00% of the time")


def test_threads_can_be_put_together(busy):
    together = busy.with_merged_threads(by_name=False)
    lines = graph(together)
    assert lines[:2] == [
        "    20 All threads   (2 threads)",
        "      20 start  (in Demo) + 8  [0x102060108]",
    ]
    assert (
        sort_by_stack(write(folded, together), ("hot", "cold", "Demo"))
        == "start;main;hot 7\nstart;main;cold 3\nstart;Demo+0x500 10\n"
    )


def sort_by_stack(text, order):
    """Folded lines in the order of their last function."""
    lines = text.splitlines(keepends=True)
    return "".join(sorted(lines, key=lambda line: [name in line for name in order], reverse=True))


def test_folded(busy):
    """A line for each distinct stack of functions, below the name of its thread."""
    assert sorted(write(folded, busy).splitlines()) == [
        "main [259];start;main;cold 3",
        "main [259];start;main;hot 7",
        "thread [260];start;Demo+0x500 10",
    ]


def test_inlined_and_python_functions_are_functions():
    """Python's functions are between the loop that runs them and the calls inlined into it."""
    loop = function(
        "loop",
        inlined=[
            InlineFrame("inner", SourceLocation("/src/inner.h", 3)),
            InlineFrame("outer", SourceLocation("/src/demo.c", 7)),
        ],
        python=[
            PythonFrame("work", SourceLocation("/app/job.py", 40)),
            PythonFrame("<module>", SourceLocation("/app/job.py", 90)),
        ],
        line=5,
        is_leaf=True,
    )
    recorded = profile([Seen(0, [START, loop], 3)])

    assert (
        write(folded, recorded)
        == "main [259];start;loop;<module> (job.py);work (job.py);outer;inner 3\n"
    )
    assert graph(recorded)[2:] == [
        "        3 loop  (in Demo) + 4  [0x102060104]  demo.c:5",
        "          3 <module>  (in Python)  job.py:90",
        "            3 work  (in Python)  job.py:40",
        "              3 outer  (in Demo)  [0x102060104]  demo.c:7  [inlined]",
        "                3 inner  (in Demo)  [0x102060104]  inner.h:3  [inlined]",
    ]


def test_missing_frames_are_reported():
    """The middle of a deep stack is missing, or the frames before an unknown root."""
    recorded = profile(
        [Seen(0, [MissingFrames.UNKNOWN_CALLERS, START, MissingFrames.LEFT_OUT, HOT], 2)]
    )
    assert write(folded, recorded) == "main [259];[unknown callers];start;[frames left out];hot 2\n"
    assert graph(recorded)[3] == "          2 [frames left out]"


def test_names_cannot_break_lines():
    """Names of functions and threads may have any characters."""
    leaf = function("a;b\nc\x1b[2J d", is_leaf=True)
    recorded = profile([Seen(0, [leaf], 2)], names=("x\ny;z",))

    assert write(folded, recorded) == "x\\ny:z [259];a:b\\nc\\x1b[2J d 2\n"
    assert all(line.isprintable() for line in write(sample_text, recorded).splitlines())


def test_deep_stacks_take_no_more_room_than_a_page_is_wide():
    """Columns would grow with depth: beyond a thousand calls lines are counted."""
    recorded = profile([Seen(0, [MAIN] * 20_000 + [HOT])])
    text = write(sample_text, recorded)
    assert "... 18977 more lines, deeper than 1024 calls" in text
    assert len(text) < 5_000_000
    assert write(folded, recorded).count(";") == 20_001


def test_a_profile_of_nothing_can_be_written():
    """The process ended at once."""
    assert "Call graph:\n\nTotal number" in write(sample_text, profile([], names=()))
    assert write(folded, profile([], names=())) == ""
