"""No call is missing however a program ends, runs another one, or makes children."""

import csv
import io
import os
import subprocess

import pytest
from click.testing import CliRunner

from machtrace.cli.application import app
from tests.agent.build import library
from tests.audit.observed.test_run import rules_file
from tests.audit.observed.two_sdks import compile_program

pytestmark = pytest.mark.live
CALLS = 7


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ends")
    shared = ["-shared", "-fPIC"]
    compile_program(folder / "libdata.so", "data.c", *shared)
    compile_program(folder / "ends", "ends.c", f"-L{folder}", f"-Wl,-rpath,{folder}", "-ldata")
    return folder


def audit(folder, tmp_path, *words, consent="never"):
    """Return the exit status, the number of calls without and with consent, and the warnings."""
    options = ["--rules", rules_file(tmp_path), "--agent", library(folder), "-f", "csv"]
    command = ["audit", "run", *options, "--consent", consent, "--", folder / "ends", *words]
    result = CliRunner().invoke(app, list(map(str, command)), standalone_mode=False)
    assert result.exception is None, result.output
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    sums = [sum(int(row[name]) for row in rows) for name in ("without_consent", "with_consent")]
    return result.return_value, *sums, result.stderr


@pytest.mark.parametrize(
    ("how", "calls"),
    [
        ("exit", CALLS),
        ("_exit", CALLS),
        ("quick_exit", CALLS),
        ("abort", CALLS),
        ("vfork", 2 * CALLS),
        ("execlp", 2 * CALLS),
        ("execv", 3 * CALLS),
    ],
)
def test_calls_before_the_end_are_counted(folder, tmp_path, how, calls):
    assert audit(folder, tmp_path, how, CALLS)[:3] == (1, calls, 0)


def test_the_calls_of_a_program_that_is_killed_may_be_missing(folder, tmp_path):
    status, calls, _, warnings = audit(folder, tmp_path, "kill", CALLS)
    assert status == 2
    assert calls <= CALLS
    assert "the process was killed: its last calls may be missing" in warnings


def test_children_record_their_calls_with_the_consent_of_the_parent(folder, tmp_path):
    words = ("fork", CALLS, 5)
    assert audit(folder, tmp_path, *words)[:3] == (1, 6 * CALLS, 0)
    # The first call is before.
    assert audit(folder, tmp_path, *words, consent="call:observed")[:3] == (1, 1, 6 * CALLS - 1)


def test_children_of_a_thread_that_does_not_exist_in_them_end(folder, tmp_path):
    """Another thread has the loader's lock in most of the forks: then that is stated."""
    environment = {
        "LD_PRELOAD": str(library(folder)),
        "MACHTRACE_WATCH": "observed",
        "MACHTRACE_SPOOL": str(tmp_path / "%p.spool"),
    }
    command = [folder / "ends", "threads", str(CALLS), "20"]
    done = subprocess.run(
        command, env=environment, check=True, timeout=100, capture_output=True, text=True
    )
    stated = done.stderr.count("is not recorded: its parent used the loader\n")
    assert stated + len(list(tmp_path.glob("*.spool"))) == 21


@pytest.mark.parametrize(
    ("watch", "text"),
    [
        ("observd", "nothing defines what the rules watch"),
        ("-[Contacts all]", "the rules watch no C function"),
    ],
)
def test_rules_that_name_nothing_cannot_be_judged(folder, tmp_path, watch, text):
    rules = tmp_path / "rules.toml"
    rules.write_text(f'schema = 1\nname = "x"\nrules = [{{watch = "{watch}", category = "A"}}]\n')
    words = ["--rules", rules, "--agent", library(folder), "--consent", "never"]
    command = ["audit", "run", *words, "--", folder / "ends", "exit", CALLS]
    result = CliRunner().invoke(app, list(map(str, command)), standalone_mode=False)
    assert result.return_value == 2
    assert text in result.stderr


def test_consent_by_a_function_that_does_not_exist_is_not_judged(folder, tmp_path):
    status, _, _, warnings = audit(folder, tmp_path, "exit", CALLS, consent="call:agre")
    assert status == 2
    assert "nothing defines agre, which gives consent" in warnings


def test_calls_before_the_agent_was_initialised_are_not_judged(folder, tmp_path):
    """The last library that is linked to be initialised first is."""
    early = tmp_path / "early.c"
    early.write_text("__attribute__((constructor)) void early(void) { }")
    words = ["-shared", "-fPIC", "-Wl,-z,initfirst"]
    compile_program(tmp_path / "libearly.so", early, *words)
    links = [f"-L{folder}", f"-Wl,-rpath,{folder}:{tmp_path}", "-ldata", f"-L{tmp_path}"]
    compile_program(tmp_path / "ends", "ends.c", *links, "-Wl,--no-as-needed", "-learly")
    options = ["--rules", rules_file(tmp_path), "--agent", library(folder), "--consent", "never"]
    command = ["audit", "run", *options, "--", tmp_path / "ends", "exit", CALLS]
    result = CliRunner().invoke(app, list(map(str, command)), standalone_mode=False)
    assert result.return_value == 2
    assert "the agent was initialised after other images" in result.stderr


def test_functions_are_counted_under_all_names_of_the_c_library(folder, tmp_path):
    shared = ["-shared", "-fPIC", "-DLIBRARY"]
    compile_program(tmp_path / "libold.so", "old_names.c", *shared)
    links = [f"-L{tmp_path}", f"-Wl,-rpath,{tmp_path}", "-lold"]
    compile_program(tmp_path / "old", "old_names.c", *links)
    rules = tmp_path / "rules.toml"
    truth = {"lstat": 112, "stat": 107, "fstat": 5, "open": 3}
    rows = "".join(f'{{watch = "{name}", category = "Files"}},' for name in truth)
    rules.write_text(f'schema = 1\nname = "files"\nrules = [{rows}]\n')
    options = ["--rules", rules, "--agent", library(folder), "--consent", "never", "-f", "csv"]
    command = ["audit", "run", *options, "--", tmp_path / "old"]
    result = CliRunner().invoke(app, list(map(str, command)), standalone_mode=False)
    counted = csv.DictReader(io.StringIO(result.stdout))
    assert {row["watch"]: int(row["without_consent"]) for row in counted} == truth


def test_what_is_no_file_is_no_spool(tmp_path):
    pipe = tmp_path / "a.spool"
    os.mkfifo(pipe)
    for path in (pipe, "/dev/zero"):
        result = CliRunner().invoke(app, ["audit", "run", str(path)], standalone_mode=False)
        assert result.return_value == 2
        assert "not a regular file" in result.stderr
