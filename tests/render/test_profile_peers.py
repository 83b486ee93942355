"""Our profiles in other programs: speedscope's schema, and the Firefox Profiler.

They are npm packages: `npm install speedscope @firefox-devtools/profiler-cli` in a folder, whose
``node_modules`` MACHTRACE_NODE_MODULES names.
"""

import base64
import json
import re
import subprocess

import pytest

from machtrace.model.snapshot import ThreadState
from machtrace.model.symbol import InlineFrame, SourceLocation
from machtrace.render import firefox, speedscope
from tests.support.peers.chromium import chromium_program
from tests.support.peers.npm import PeerMissingError, firefox_profiler, npm_package
from tests.support.reports.models import Seen, function, profile

START = function("start", offset=0x100, at=8)
HOT = function(
    "hot",
    offset=0x300,
    line=30,
    inlined=[InlineFrame("inner", SourceLocation("/src/inner.h", 3))],
    is_leaf=True,
)
COLD = function("cold", offset=0x400, is_leaf=True)
PROFILE = profile(
    [Seen(0, [START, HOT], 75), Seen(0, [START, COLD], 25), Seen(1, [START, COLD], 100)],
    names=("main", "worker"),
)

ACTIVE = profile(
    [
        Seen(0, [START, HOT], 80, ThreadState.RUNNING, 9_000_000),
        Seen(0, [START, COLD], 20, ThreadState.SLEEPING, 0),
        Seen(1, [START, COLD], 100, ThreadState.SLEEPING, 0),
    ],
    names=("busy", "worker"),
)
"""A thread that ran for 0.72 of a second, and one that waited."""


def complaints(value, schema, whole, place="file"):  # noqa: C901 - a rule for each keyword
    """Return violations of a JSON schema, as much of which is implemented as speedscope's uses."""
    if "$ref" in schema:
        schema = whole["definitions"][schema["$ref"].removeprefix("#/definitions/")]
    if "anyOf" in schema:
        branches = [list(complaints(value, item, whole, place)) for item in schema["anyOf"]]
        if all(branches):
            yield from min(branches, key=len)
        return
    kinds = {"object": dict, "array": list, "string": str, "number": int | float}
    if "type" in schema and not isinstance(value, kinds[schema["type"]]):
        yield f"{place} is no {schema['type']}"
        return
    if "const" in schema and value != schema["const"]:
        yield f"{place} is not {schema['const']}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{place} is none of {schema['enum']}"
    if isinstance(value, dict):
        yield from (f"{place} lacks {name}" for name in set(schema["required"]) - set(value))
        for name, item in value.items():
            if name not in schema["properties"]:
                yield f"{place} has {name}"
            else:
                yield from complaints(item, schema["properties"][name], whole, f"{place}.{name}")
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from complaints(item, schema["items"], whole, f"{place}[{number}]")


def test_speedscope_s_schema_has_nothing_to_complain_of():
    """The schema is the one that speedscope's package publishes."""
    try:
        path = npm_package("speedscope") / "dist" / "release" / "file-format-schema.json"
    except PeerMissingError as missing:
        pytest.skip(str(missing))
    schema = json.loads(path.read_text())
    for recorded in (PROFILE, ACTIVE, ACTIVE.without_idle(), ACTIVE.with_merged_threads()):
        document = json.loads(json.dumps(speedscope.document(recorded)))
        assert list(complaints(document, {"$ref": schema["$ref"]}, schema)) == []
    document["profiles"][0]["unit"] = "parsecs"
    assert list(complaints(document, {"$ref": schema["$ref"]}, schema))


@pytest.mark.peer
def test_the_firefox_profiler_reads_it(tmp_path):
    """It shows the same functions and shares of time."""
    path = tmp_path / "demo.json"
    path.write_text(json.dumps(firefox.document(PROFILE)))
    try:
        with firefox_profiler(path, tmp_path) as ask:
            functions = json.loads(ask("thread", "functions", "--thread", "t-0", "--json"))
            information = ask("profile", "info")
    except PeerMissingError as missing:
        pytest.skip(str(missing))
    shares = {
        one["name"].rpartition("!")[2]: (one["selfSamples"], one["totalSamples"])
        for one in functions["functions"]
    }
    assert shares == {"start": (0, 100), "hot": (0, 75), "inner": (75, 75), "cold": (25, 25)}
    assert "2 threads" in information


@pytest.mark.peer
def test_the_firefox_profiler_shows_the_processor_time_of_threads(tmp_path):
    """Threads are sorted by it, and the time of activity is that of the running samples."""
    path = tmp_path / "active.json"
    path.write_text(json.dumps(firefox.document(ACTIVE)))
    try:
        with firefox_profiler(path, tmp_path) as ask:
            information = ask("profile", "info")
            worker = ask("thread", "info", "--thread", "t-1")
            samples = ask("thread", "samples", "--thread", "t-0")
    except PeerMissingError as missing:
        pytest.skip(str(missing))
    assert "t-0: busy [tid 259] - 711.000ms" in information  # the first sample does not count
    assert "t-1: worker [tid 260] - 0.000ms" in information
    assert "- 90% for " in information
    assert "No significant activity" in worker
    assert "idle excluded" in samples
    assert "(80 running samples)" in samples


@pytest.mark.peer
def test_speedscope_shows_the_profile_of_processor_time(tmp_path):
    """In Chromium: the thread's name and the number of profiles, of which the third is that one."""
    chromium = chromium_program()
    if chromium is None:
        pytest.skip("no Chromium")
    try:
        page = npm_package("speedscope") / "dist" / "release" / "index.html"
    except PeerMissingError as missing:
        pytest.skip(str(missing))
    document = speedscope.document(ACTIVE) | {"activeProfileIndex": 2}
    encoded = base64.b64encode(json.dumps(document).encode()).decode()
    script = tmp_path / "profile.js"
    script.write_text(f"speedscope.loadFileFromBase64('demo.json', '{encoded}')")
    shown = subprocess.run(
        [
            *(chromium, "--headless", "--no-sandbox", "--disable-dev-shm-usage"),
            *("--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"),
            *(f"--user-data-dir={tmp_path / 'data'}", "--virtual-time-budget=20000", "--dump-dom"),
            f"{page.as_uri()}#localProfilePath={script}",
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    assert re.sub(r"<[^>]*>", "", shown).count("busy [259] (CPU) (3/3)") == 1
