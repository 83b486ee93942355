"""Profiles for other programs: speedscope, the Firefox Profiler, pprof, and readers of JSON."""

import gzip
import io
import json
import shutil
import subprocess
from itertools import pairwise

import pytest

from machtrace.model.profile import MissingFrames
from machtrace.model.snapshot import ThreadState
from machtrace.model.symbol import InlineFrame, PythonFrame, SourceLocation
from machtrace.render import firefox, pprof, profile_json, speedscope
from tests.support.reports.models import IMAGE, Seen, function, profile

START = function("start", offset=0x100, at=8)
MAIN = function("main", offset=0x200, at=16, line=12)
HOT = function(
    "hot",
    offset=0x300,
    at=4,
    line=30,
    inlined=[InlineFrame("inner", SourceLocation("/src/inner.h", 3))],
    is_leaf=True,
)
COLD = function("cold;\udcff\n", offset=0x400, at=8, is_leaf=True)
LOOP = function(
    "loop", offset=0x500, python=[PythonFrame("work", SourceLocation("/app/job.py", 40))]
)
PROFILE = profile(
    [
        Seen(0, [START, MAIN, HOT], 3),
        Seen(1, [START, LOOP, COLD], 2),
        Seen(0, [START, MAIN, COLD], 1),
        Seen(0, [START, MAIN, HOT], 2),
        Seen(1, [MissingFrames.UNKNOWN_CALLERS, COLD], 1),
        Seen(1, [], 1),
    ],
    names=("main", "worker"),
)
COLD_NAME = "cold;\\udcff\n"


def text(form, profile):
    """Return the text in a format."""
    sink = io.StringIO()
    form.write(profile, sink)
    return sink.getvalue()


def written(form, profile=PROFILE):
    """Return the parsed text in a format."""
    return json.loads(text(form, profile).encode())


ACTIVE = profile(
    [
        Seen(0, [START, MAIN, HOT], 1, ThreadState.RUNNING),
        Seen(0, [START, MAIN, HOT], 2, ThreadState.RUNNING, 9_000_000),
        Seen(0, [START, MAIN, COLD], 1, ThreadState.SLEEPING, 500),
        Seen(0, [START, MAIN, HOT], 1, ThreadState.SLEEPING, 0),
        Seen(1, [START, COLD], 3, ThreadState.SLEEPING, 0),
    ],
    names=("main", "worker"),
)
"""A profile with states and processor times; the first sample has no time."""

# --- speedscope ---


def test_speedscope_has_a_profile_of_processor_time_of_threads_that_used_any():
    """It follows those of all threads, and has the same samples."""
    document = written(speedscope, ACTIVE)
    assert [one["name"] for one in document["profiles"]] == [
        "main [259]",
        "worker [260]",
        "main [259] (CPU)",
    ]
    wall, _, cpu = document["profiles"]
    assert cpu["samples"] == wall["samples"]
    assert (cpu["weights"], cpu["endValue"]) == ([18_000_000, 500, 0], 18_000_500)
    assert wall["weights"] == [30_000_000, 10_000_000, 10_000_000]


def test_speedscope_has_a_sampled_profile_of_each_thread():
    """Stacks list functions outermost first, and last as long as consecutive samples show them."""
    document = written(speedscope)
    names = [frame["name"] for frame in document["shared"]["frames"]]
    main, worker = document["profiles"]

    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert [main["name"], worker["name"]] == ["main [259]", "worker [260]"]
    assert [[names[frame] for frame in sample] for sample in main["samples"]] == [
        ["start", "main", "hot", "inner"],
        ["start", "main", COLD_NAME],
        ["start", "main", "hot", "inner"],
    ]
    assert main["weights"] == [30_000_000, 10_000_000, 20_000_000]
    assert tuple(main[key] for key in ("type", "unit", "startValue", "endValue")) == (
        "sampled",
        "nanoseconds",
        0,
        60_000_000,
    )
    assert [[names[frame] for frame in sample] for sample in worker["samples"]] == [
        ["start", "loop", "work", COLD_NAME],
        ["[unknown callers]", COLD_NAME],
        [],
    ]


def test_speedscope_frames_have_their_files():
    """The file is the source's if known, else the image's."""
    files = {frame["name"]: frame.get("file") for frame in written(speedscope)["shared"]["frames"]}
    assert {
        "start": IMAGE.path,
        "main": "/src/demo.c",
        "inner": "/src/inner.h",
        "work": "/app/job.py",
        "[unknown callers]": None,
    } == {name: files[name] for name in ("start", "main", "inner", "work", "[unknown callers]")}


# --- the Firefox Profiler ---

COLUMNS = {
    "stackTable": {"frame", "prefixOffset"},
    "frameTable": {
        *("address", "lib", "inlineDepth", "category", "subcategory", "func", "nativeSymbol"),
        *("innerWindowID", "line", "column", "originalLocation"),
    },
    "funcTable": {
        *("name", "isJS", "relevantForJS", "resource", "source", "lineNumber", "columnNumber"),
        "originalLocation",
    },
    "resourceTable": {"name", "host", "type"},
    "nativeSymbols": {"libIndex", "address", "name", "functionSize"},
    "sources": {"id", "filename", "startLine", "startColumn", "sourceMapURL", "content"},
    "sourceLocationTable": {"source", "line", "column"},
}
"""Members of ``RawProfileSharedData`` in the profiler's ``src/types/profile.ts``, version 70."""


def firefox_stack(document, row):
    """Return names, lines and inline depths of a stack, outermost first."""
    shared = document["shared"]
    frames, functions, stack = shared["frameTable"], shared["funcTable"], []
    while True:
        frame = shared["stackTable"]["frame"][row]
        name = shared["stringArray"][functions["name"][frames["func"][frame]]]
        stack.insert(0, (name, frames["line"][frame], frames["inlineDepth"][frame]))
        offset = shared["stackTable"]["prefixOffset"][row]
        if not offset:
            return stack
        row -= offset


def test_firefox_tables_are_those_of_version_70():
    """All columns exist, and those of a table are equally long."""
    document = written(firefox)

    assert document["meta"]["preprocessedProfileVersion"] == 70
    assert {*COLUMNS, "stringArray"} == set(document["shared"])
    for table, columns in COLUMNS.items():
        values = document["shared"][table]
        assert {*columns, "length"} == set(values), table
        assert {values["length"]} == {len(values[column]) for column in columns}, table


@pytest.mark.parametrize("found", [PROFILE, profile([], names=()), profile([], names=(None,))])
def test_firefox_indices_are_within_their_tables(found):
    document = written(firefox, found)
    shared = document["shared"]
    counts = {name: shared[name]["length"] for name in COLUMNS} | {
        "strings": len(shared["stringArray"]),
        "libs": len(document["libs"]),
        "categories": len(document["meta"]["categories"]),
    }
    links = {
        ("stackTable", "frame"): "frameTable",
        ("frameTable", "func"): "funcTable",
        ("frameTable", "lib"): "libs",
        ("frameTable", "nativeSymbol"): "nativeSymbols",
        ("frameTable", "category"): "categories",
        ("funcTable", "name"): "strings",
        ("funcTable", "resource"): "resourceTable",
        ("funcTable", "source"): "sources",
        ("resourceTable", "name"): "strings",
        ("nativeSymbols", "name"): "strings",
        ("nativeSymbols", "libIndex"): "libs",
        ("sources", "filename"): "strings",
    }
    for (table, column), to in links.items():
        for value in shared[table][column]:
            assert value is None or -1 <= value < counts[to], (table, column)
    for row, offset in enumerate(shared["stackTable"]["prefixOffset"]):
        assert 0 <= offset <= row
    for thread in document["threads"]:
        samples = thread["samples"]
        assert {samples["length"]} == {len(samples[name]) for name in ("stack", "time", "weight")}
        assert all(one is None or 0 <= one < counts["stackTable"] for one in samples["stack"])
        assert all(before <= after for before, after in pairwise(samples["time"]))


def test_firefox_stacks_have_inlined_calls():
    """They have the address of the function that contains them."""
    document = written(firefox)
    main, worker = document["threads"]

    assert firefox_stack(document, main["samples"]["stack"][0]) == [
        ("start", None, 0),
        ("main", 12, 0),
        ("hot", 30, 0),
        ("inner", 3, 1),
    ]
    assert main["samples"]["time"] == [0, 10, 20, 30, 40, 50]
    assert (firefox_stack(document, worker["samples"]["stack"][0])) == [
        ("start", None, 0),
        ("loop", None, 0),
        ("work", 40, 0),
        (COLD_NAME, None, 0),
    ]
    assert worker["samples"]["stack"][-1] is None
    frames = document["shared"]["frameTable"]
    by_name = {
        document["shared"]["stringArray"][
            document["shared"]["funcTable"]["name"][function]
        ]: address
        for function, address in zip(frames["func"], frames["address"], strict=True)
    }
    # A return address is that of the call: one byte earlier.
    assert tuple(by_name[name] for name in ("start", "hot", "inner", "work")) == (
        0x107,
        0x304,
        0x304,
        -1,
    )


def test_firefox_libraries_have_breakpad_ids():
    """A UUID's digits and the age 0."""
    (library,) = written(firefox)["libs"]
    assert ("Demo", IMAGE.path, "D5BD0E9765E03DBD9E182E8F1A6F3C110", None) == tuple(
        library[key] for key in ("name", "path", "breakpadId", "codeId")
    )


def test_firefox_samples_have_the_processor_time_since_the_one_before():
    """In the unit that the metadata states; without any there is no such column."""
    document = written(firefox, ACTIVE)
    assert document["meta"]["sampleUnits"]["threadCPUDelta"] == "ns"
    main, worker = (thread["samples"] for thread in document["threads"])
    assert main["threadCPUDelta"] == [None, 9_000_000, 9_000_000, 500, 0]
    assert worker["threadCPUDelta"] == [0, 0, 0]
    assert all("threadCPUDelta" not in one["samples"] for one in written(firefox)["threads"])


def test_firefox_stacks_of_idle_samples_end_in_a_category_that_the_profiler_leaves_out():
    """The innermost frame is a copy; other samples, and frames, are as before."""
    document = written(firefox, ACTIVE)
    shared, categories = document["shared"], document["meta"]["categories"]
    frames, stacks = shared["frameTable"], shared["stackTable"]

    def end(row):
        frame = stacks["frame"][row]
        category = categories[frames["category"][frame]]
        return category["name"], category["subcategories"][frames["subcategory"][frame]]

    main, worker = (thread["samples"]["stack"] for thread in document["threads"])
    assert [end(row) for row in main] == [
        *[("Native", "Other")] * 3,
        *[("Idle", "sleeping")] * 2,
    ]
    assert firefox_stack(document, main[4]) == firefox_stack(document, main[0])
    assert {end(row) for row in worker} == {("Idle", "sleeping")}
    assert {frames["length"]} == {len(frames[name]) for name in COLUMNS["frameTable"]}
    assert "Idle" not in {one["name"] for one in written(firefox)["meta"]["categories"]}


# --- pprof ---


def test_pprof_has_the_processor_time_and_the_state_where_they_are_known():
    """A stack has a sample for each state; an unknown time adds nothing."""
    message = fields(gzip.decompress(pprof.data(ACTIVE)))
    strings = [value.decode() for number, value in message if number == 6]

    def label(entry):
        parts = dict(fields(entry))
        return strings[parts[1]], strings[parts[2]] if 2 in parts else parts[3]

    types = [[strings[one] for _, one in fields(value)] for number, value in message if number == 1]
    samples = [fields(value) for number, value in message if number == 2]
    assert types == [["samples", "count"], ["wall", "nanoseconds"], ["cpu", "nanoseconds"]]
    main = {"thread": "main [259]", "tid": 259}
    assert [
        (varints(dict(sample)[2]), dict(label(value) for number, value in sample if number == 3))
        for sample in samples
    ] == [
        ([3, 30_000_000, 18_000_000], main | {"state": "running"}),
        ([1, 10_000_000, 500], main | {"state": "sleeping"}),
        ([1, 10_000_000, 0], main | {"state": "sleeping"}),
        ([3, 30_000_000, 0], {"thread": "worker [260]", "tid": 260, "state": "sleeping"}),
    ]


def varints(data):
    """Return packed numbers."""
    values, shift = [0], 0
    for byte in data:
        values[-1] |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            values.append(0)
            shift = 0
    return values[:-1]


def fields(data):
    """Return the fields of a message: number, and the value or the bytes."""
    at, fields = 0, []

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            fields.append((key >> 3, varint()))
        else:
            assert key & 7 == 2
            size = varint()
            fields.append((key >> 3, data[at : at + size]))
            at += size
    return fields


def test_pprof_messages_can_be_read_by_the_encoding_s_rules():
    """Ids begin with 1 and are valid; the first string is empty."""
    message = fields(gzip.decompress(pprof.data(PROFILE)))
    strings = [value.decode() for number, value in message if number == 6]
    functions = [dict(fields(value)) for number, value in message if number == 5]
    locations = [fields(value) for number, value in message if number == 4]
    samples = [dict(fields(value)) for number, value in message if number == 2]

    assert strings[0] == ""
    assert [*range(1, len(functions) + 1)] == [entry[1] for entry in functions]
    assert [*range(1, len(locations) + 1)] == [dict(entry)[1] for entry in locations]
    names = {entry[1]: strings[entry[2]] for entry in functions}
    lines = {
        dict(entry)[1]: [names[dict(fields(line))[1]] for number, line in entry if number == 4]
        for entry in locations
    }
    stacks = {
        tuple(name for location in sample[1] for name in lines[location]): sample[2][0]
        for sample in samples
    }
    assert stacks == {
        ("inner", "hot", "main", "start"): 5,
        (COLD_NAME, "main", "start"): 1,
        (COLD_NAME, "work", "loop", "start"): 2,
        (COLD_NAME, "[unknown callers]"): 1,
    }


@pytest.fixture
def go_pprof(tmp_path):
    """Return a function that returns the output of ``go tool pprof`` for a profile."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("no go (Debian: golang-go)")

    def shown(profile, *options):
        path = tmp_path / "demo.pb.gz"
        path.write_bytes(pprof.data(profile))
        home = str(tmp_path)
        return subprocess.run(
            [go, "tool", "pprof", *options, str(path)],
            capture_output=True,
            text=True,
            check=True,
            env={"HOME": home, "PATH": "/usr/bin:/bin", "PPROF_TMPDIR": home},
            timeout=120,
        ).stdout

    return shown


@pytest.mark.peer
def test_go_s_pprof_reads_it(go_pprof):
    """The oracle is its own count of each function's own and total samples."""
    rows = go_pprof(PROFILE, "-top", "-sample_index=samples", "-nodecount=50").splitlines()
    totals = {row[5]: (row[0], row[3]) for row in map(str.split, rows) if row[5:]}

    assert totals["inner"] == ("5", "5")
    assert totals["hot"] == ("0", "5")
    assert totals["main"] == ("0", "6")
    assert totals["start"] == ("0", "8")
    assert totals["work"] == ("0", "2")


@pytest.mark.peer
def test_go_s_pprof_shows_processor_time_and_states(go_pprof):
    """All processor time is that of one function, and most samples are of waiting threads."""
    rows = go_pprof(ACTIVE, "-top", "-sample_index=cpu", "-unit=ms").splitlines()
    totals = {row[5]: (row[0], row[3]) for row in map(str.split, rows) if row[5:]}
    assert (totals["inner"], totals["hot"]) == (("18ms", "18ms"), ("0", "18ms"))
    running = go_pprof(ACTIVE, "-top", "-sample_index=samples", "-tagfocus=state=running")
    assert "Showing nodes accounting for 3, " in running
    assert "5.0 (62.50%): sleeping" in go_pprof(ACTIVE, "-tags", "-sample_index=samples")


def test_the_same_profile_is_the_same_file():
    """It does not depend on the time of writing."""
    assert pprof.data(PROFILE) == pprof.data(PROFILE)


# --- JSON ---


def test_json_has_all_that_the_profile_has():
    """Frames are as in ``machtrace backtrace``, and columns as in the profile."""
    document = written(profile_json)

    assert (
        document["schema"],
        document["process"]["pid"],
        document["process"]["name"],
    ) == (1, 42, "Demo")
    assert [thread["samples"] for thread in document["threads"]] == [6, 4]
    assert list(PROFILE.stacks.callers) == document["stacks"]["callers"]
    assert list(PROFILE.samples.stacks) == document["samples"]["stacks"]
    assert {"missing": "unknown callers"} in document["frames"]
    hot = next(frame for frame in document["frames"] if frame.get("symbol") == "hot")
    assert (hot["address"], hot["inlined"][0]["symbol"]) == (0x102060304, "inner")
    assert (
        document["run"]["end"],
        document["run"]["lost"],
        pytest.approx(document["run"]["stopped_share"]),
    ) == ("duration", 3, 0.01)


def test_json_has_states_and_processor_times_where_they_are_known():
    """An unknown one is null; a profile without any has no such column."""
    document = written(profile_json, ACTIVE)
    samples, (main, worker) = document["samples"], document["threads"]
    assert samples["states"] == ["running"] * 3 + ["sleeping"] * 5
    assert samples["cpu_ns"] == [None, 9_000_000, 9_000_000, 500, 0, 0, 0, 0]
    assert (main["running"], main["cpu_ns"], main["left_out"]) == (3, 18_000_500, 0)
    assert (worker["running"], worker["cpu_ns"], worker["merged"]) == (0, 0, None)
    assert {"states", "cpu_ns"}.isdisjoint(written(profile_json)["samples"])


@pytest.mark.parametrize("by_name", [True, False])
def test_merged_threads_are_one_in_every_format(by_name):
    merged = profile(
        [Seen(number, [START, COLD], 2, ThreadState.RUNNING, 5) for number in range(3)],
        names=("main", "pool", "pool"),
    ).with_merged_threads(by_name=by_name)
    names = ["main", "pool"] if by_name else ["All threads"]
    assert [thread["name"] for thread in written(firefox, merged)["threads"]] == names
    profiles = [one["name"] for one in written(speedscope, merged)["profiles"]]
    assert profiles == [*names, *(f"{name} (CPU)" for name in names)]
    assert [thread["merged"] for thread in written(profile_json, merged)["threads"]] == (
        [1, 2] if by_name else [3]
    )
    data = gzip.decompress(pprof.data(merged))
    assert b"tid" not in data
    assert all(name.encode() in data for name in names)
