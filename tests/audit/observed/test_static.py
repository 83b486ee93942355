"""`audit run --static`: two SDKs in one stripped program, which counts its calls itself."""

import json
import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from machtrace.cli.application import app
from machtrace.model.image import BuildId
from machtrace.model.report import ReportedImage
from machtrace.symbolizer.report_names import ReportNames
from tests.agent.build import library as agent_library
from tests.audit.observed.static_program import (
    CALLS,
    PROGRAMS,
    THREADS,
    build,
    compiler,
    record,
    run,
)

SCHEMA = json.loads(Path("docs/audit.schema.json").read_text(encoding="utf-8"))
RULES = """
schema = 1
name = "test"
policies = ["before-consent: fault"]
"""
RULE = '[[rules]]\nwatch = "{}"\ncategory = "Files"\n'
EACH = THREADS * CALLS
FORMS = {
    "stubs": [],
    "slots": ["-fno-plt"],
    "where it was linked for": ["-no-pie", "-fno-pie"],
    "for size": ["-Os"],
    "without frame pointers": ["-fomit-frame-pointer"],
}
pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    return tmp_path_factory.mktemp("agent")


@pytest.fixture(scope="module", params=FORMS)
def recorded(request, agent, tmp_path_factory):
    """The program, its spool, and the calls that it counted by library and function."""
    folder = tmp_path_factory.mktemp("static")
    built = build(folder, *FORMS[request.param])
    return built, folder / "app.spool", record(built, agent, folder / "app.spool")


@pytest.fixture(scope="module")
def simple(agent, tmp_path_factory):
    folder = tmp_path_factory.mktemp("simple")
    built = build(folder)
    return built, folder / "app.spool", record(built, agent, folder / "app.spool")


def audit(spool, *words, libraries=""):
    rules = spool.parent / "rules.toml"
    watched = "".join(RULE.format(name) for name in ("observed", "stat", "fstat"))
    rules.write_text(RULES + watched + libraries, encoding="utf-8")
    options = ["--rules", rules, "--consent", "never", *words]
    return CliRunner().invoke(
        app, ["audit", "run", str(spool), *map(str, options)], standalone_mode=False
    )


def document(spool, *words, libraries=""):
    result = audit(spool, "--format", "json", *words, libraries=libraries)
    assert result.exception is None, result.output
    report = json.loads(result.stdout)
    jsonschema.validate(report, SCHEMA)
    return report


def by_library(report):
    calls = Counter()
    for row in report["calls"]:
        calls[row["library"], row["watch"]] += row["without_consent"]
    return dict(calls)


def reached(report):
    sites = Counter(), Counter()
    for site in report["coverage"]["sites"]:
        sites[0][site["library"], site["watch"]] += site["calls"] > 0
        sites[1][site["library"], site["watch"]] += 1
    return {key: (sites[0][key], number) for key, number in sites[1].items()}


def test_a_link_map_shows_which_sdk_called(recorded):
    built, spool, truth = recorded
    report = document(spool, "--static", built.program, "--link-map", built.link_map)
    assert report["problems"] == []
    assert by_library(report) == truth
    owners = {(row["library"], row["owner"]): row["without_consent"] for row in report["calls"]
              if row["library"] != row["owner"]}  # fmt: skip
    assert owners == {("beta", "alpha"): EACH}


def test_the_debug_file_shows_which_sdk_called(recorded):
    built, spool, truth = recorded
    report = document(spool, "--static", built.program, "--search", built.unstripped)
    assert by_library(report) == truth


def test_coverage_counts_the_sites_that_the_program_reached(recorded):
    built, spool, _ = recorded
    report = document(spool, "--static", built.program, "--link-map", built.link_map)
    assert reached(report) == {
        ("alpha", "observed"): (2, 6),
        ("alpha", "stat"): (1, 1),
        ("alpha", "fstat"): (2, 2),
        ("beta", "observed"): (4, 6),
        ("beta", "stat"): (1, 1),
        ("beta", "fstat"): (2, 2),
        ("app", "observed"): (1, 1),
    }
    assert report["coverage"]["reached"] == 13
    assert report["coverage"]["unlisted"] == []
    jumps = [site for site in report["coverage"]["sites"] if site["return_offset"] is None]
    assert sum(jump["calls"] for jump in jumps) == 3 * EACH + 1


def test_calls_by_a_jump_are_of_the_function_that_jumped(simple):
    built, spool, _ = simple
    report = document(spool, "--static", built.program, "--link-map", built.link_map)
    stacks = [stack for finding in report["findings"] for stack in finding["stacks"]]
    jumps = Counter()
    for stack in stacks:
        if "by a jump, without a frame" in stack["circumstances"]:
            jumps[stack["library"], stack["owner"]] += stack["calls"]
    # A constructor of beta, chain() and, for alpha, tail(); alpha calls its own tail(), too.
    assert jumps == {("beta", "beta"): EACH + 1, ("beta", "alpha"): EACH, ("alpha", "alpha"): EACH}


def test_without_evidence_the_image_is_named(simple):
    built, spool, truth = simple
    report = document(spool, "--static", built.program)
    assert {library for library, _ in by_library(report)} == {"app"}
    assert sum(by_library(report).values()) == sum(truth.values())
    stacks = [stack for finding in report["findings"] for stack in finding["stacks"]]
    assert {stack["library_evidence"] for stack in stacks} == {"none"}


def test_prefixes_of_names_show_which_sdk_called(simple):
    built, spool, truth = simple
    unstripped = spool.parent / "prefixes"
    unstripped.mkdir(exist_ok=True)
    (unstripped / "app").write_bytes(built.unstripped.read_bytes())
    libraries = "".join(
        f'[[libraries]]\nname = "{name}"\nfunctions = ["{name}_"]\n' for name in ("alpha", "beta")
    )
    report = document(spool, "--static", unstripped, libraries=libraries)
    # A static function and a constructor have names without the prefix: neighbours show them.
    calls = by_library(report)
    assert calls["alpha", "stat"] == truth["alpha", "stat"]
    assert calls["beta", "fstat"] == truth["beta", "fstat"]
    assert report["problems"] == []


def test_text_and_page_show_the_call_sites_that_were_not_reached(simple):
    built, spool, _ = simple
    options = ("--static", built.program, "--link-map", built.link_map)
    text = audit(spool, "--all", *options).stdout
    assert "coverage: 13 of 19 call sites reached\n" in text
    assert re.search(r"^alpha +observed +2 +6$", text, re.MULTILINE)
    assert len(re.findall("^not reached: observed in ", text, re.MULTILINE)) == 6
    assert "not reached" not in audit(spool, *options).stdout
    page = audit(spool, "--format", "html", *options).stdout
    assert "coverage: 13 of 19 call sites reached" in page
    assert "<b>alpha</b>, observed: 2 of 6 reached" in page


def test_another_build_is_not_judged(simple, tmp_path):
    _, spool, truth = simple
    other = build(tmp_path, "-O1")
    result = audit(spool, "--static", other.program, "--format", "json")
    assert result.return_value == 2
    assert "another build of it" in result.stderr
    report = json.loads(result.stdout)
    assert report["coverage"]["sites"] == []
    assert sum(by_library(report).values()) == sum(truth.values())


def test_a_link_map_of_another_build_is_refused(simple, tmp_path):
    built, spool, _ = simple
    text = built.link_map.read_text(encoding="utf-8")
    moved = re.sub(r"(?m)^( \.text +0x0{6})0", r"\g<1>1", text)
    (tmp_path / "app.map").write_text(moved, encoding="utf-8")
    result = audit(spool, "--static", built.program, "--link-map", tmp_path / "app.map")
    assert result.return_value == 2
    assert "the link map is of " in result.stderr


def test_a_program_without_a_build_id_is_recognised_by_its_calls(agent, tmp_path):
    built = build(tmp_path, linker=["-Wl,--build-id=none"])
    truth = record(built, agent, tmp_path / "app.spool")
    report = document(
        tmp_path / "app.spool", "--static", built.program, "--link-map", built.link_map
    )
    assert by_library(report) == truth
    other = tmp_path / "other"
    other.mkdir()
    run([compiler()], "-xc", "-", "-o", other / "app", text="int main(void) { return 1; }")
    result = audit(tmp_path / "app.spool", "--static", other)
    assert result.return_value == 2


def test_objects_of_link_time_optimisation_are_no_evidence(agent, tmp_path):
    built = build(tmp_path, "-flto", linker=["-O2"])
    truth = record(built, agent, tmp_path / "app.spool")
    options = ("--static", built.program, "--link-map", built.link_map)
    report = document(tmp_path / "app.spool", *options)
    for (library, watch), calls in by_library(report).items():
        assert library == "unknown" or calls <= truth[library, watch]


JUMPER = "int observed(int); int jumper(int value) { return observed(value); }"
CALLER = """
int jumper(int);
int main(void) { int result = jumper(1); __asm__ volatile("" ::: "memory"); return result == 9; }
"""


@pytest.fixture(scope="module")
def jumper(agent, tmp_path_factory):
    """A program that calls a library, which jumps to what is watched and has no frame at all."""
    folder = tmp_path_factory.mktemp("jumper")
    command = [compiler(), "-O2", "-fno-omit-frame-pointer", f"-Wl,-rpath,{folder}"]
    shared = ["-shared", "-fPIC", f"-L{folder}"]
    run(command, *shared, PROGRAMS / "data.c", "-o", folder / "libdata.so")
    library = [*shared, "-xc", "-", "-ldata", "-o", folder / "libjumper.so"]
    run(command, *library, text=JUMPER)
    program = [f"-L{folder}", "-xc", "-", "-ljumper", "-ldata", "-o", folder / "app"]
    run(command, *program, text=CALLER)
    observe([folder / "app"], agent, folder / "app.spool")
    return folder


def observe(words, agent, spool):
    """Run a program with the agent."""
    environment = {
        **os.environ,
        "LD_PRELOAD": str(agent_library(agent)),
        "MACHTRACE_WATCH": "observed",
        "MACHTRACE_SPOOL": str(spool),
    }
    subprocess.run(words, env=environment, check=True, timeout=60)


PLUGIN_CALLER = """
#include <dlfcn.h>
int main(int count, char **arguments)
{
    void *plugin = dlopen(arguments[1], RTLD_NOW);
    int (*function)(int) = (int (*)(int))dlsym(plugin, "jumper");
    int result = function(count);
    __asm__ volatile("" ::: "memory");
    return result == 9;
}
"""


def test_a_library_that_is_loaded_at_run_time_may_have_jumped(jumper, agent, tmp_path):
    command = [compiler(), "-O2", "-fno-omit-frame-pointer", "-xc", "-", "-ldl"]
    run(command, "-o", tmp_path / "app", text=PLUGIN_CALLER)
    for name in ("libjumper.so", "libdata.so"):
        (tmp_path / name).write_bytes((jumper / name).read_bytes())
    observe([tmp_path / "app", tmp_path / "libjumper.so"], agent, tmp_path / "app.spool")
    report = document(tmp_path / "app.spool", "--static", tmp_path)
    assert by_library(report) == {("unknown", "observed"): 1}
    assert "functions of several libraries may have called it" in report["problems"][0]


def test_a_library_without_any_frame_is_named(jumper):
    report = document(jumper / "app.spool", "--static", jumper)
    assert by_library(report) == {("libjumper", "observed"): 1}
    assert [
        stack["circumstances"] for finding in report["findings"] for stack in finding["stacks"]
    ] == [["by a jump, without a frame"]]
    assert report["problems"] == []


def test_a_library_that_is_not_in_the_app_may_have_jumped(jumper):
    report = document(jumper / "app.spool", "--static", jumper / "app")
    assert by_library(report) == {("unknown", "observed"): 1}
    assert "the caller does not lead to it" in report["problems"][0]


def test_stubs_are_no_functions_of_their_names(simple):
    built, *_ = simple
    names = ReportNames([str(built.unstripped)])
    text = ["readelf", "-n", str(built.unstripped)]
    done = subprocess.run(text, capture_output=True, text=True, check=True)
    digits = re.search(r"Build ID: ([0-9a-f]+)", done.stdout)[1]
    image = ReportedImage(uuid=BuildId(bytes.fromhex(digits)), name="app")
    assert len(names.starts(image, "alpha_tail")) == 1
    assert not names.starts(image, "observed")


def test_a_link_map_needs_the_app(simple):
    built, spool, _ = simple
    result = CliRunner().invoke(
        app, ["audit", "run", str(spool), "--link-map", str(built.link_map)]
    )
    assert result.exit_code == 2
    assert "--link-map needs --static" in result.stderr
