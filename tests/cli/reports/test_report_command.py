"""``machtrace report``: what reports have in common, on the command line."""

import gzip
import json
import subprocess
import sys

import pytest

from machtrace.reports.writers import write_reports
from tests.support.command_line import run_command
from tests.support.reports.models import made_report, made_thread


@pytest.fixture
def folder(tmp_path):
    """Return a folder with two crashes of one problem, and one of another."""
    reports = {
        "a": made_report(made_thread(0, ["system:abort", "fail", "main"], crashed=True)),
        "b": made_report(made_thread(0, ["system:raise", "fail", "main"], crashed=True)),
        "c": made_report(
            made_thread(
                0,
                ["system:__psynch_mutexwait", "system:_pthread_mutex_firstfit_lock_slow", "lock"],
                crashed=True,
            )
        ),
    }
    for name, report in reports.items():
        (tmp_path / f"{name}.json").write_bytes(write_reports([report], "json"))
    return tmp_path


def run(*arguments):
    """Run the command, and return its status, standard output and standard error."""
    done = run_command("report", *arguments)
    return done.returncode, done.stdout, done.stderr


def test_without_options_it_shows_all_parts(folder):
    """The parts are groups, waits and functions."""
    status, out, _ = run(folder)
    assert status == 0
    assert "Groups: 2 of 3 reports" in out
    assert "Functions of 3 stacks" in out
    assert "_pthread_mutex_firstfit_lock_slow" in out.partition("Waits in")[2]


def test_reports_without_waits_are_named(folder):
    """Printing nothing would not differ from a failure."""
    a = str(folder / "a.json")
    assert run(a, "--waits") == (0, "", f"machtrace: no known waits in {a}\n")
    assert run(a, "--waits", "--top", "1")[2] == ""
    assert run(a, "--waits", "--format", "json")[2] == ""


def test_groups_as_json(folder):
    """The groups have the frames of their fingerprints."""
    status, out, _ = run(folder, "--groups", "--format", "json")
    assert status == 0
    document = json.loads(out)
    assert {"reports", "groups"} == set(document)
    first = document["groups"][0]
    assert len(first["reports"]) == 2
    assert [frame["name"] for frame in first["frames"]] == ["fail", "main"]
    assert first["frames"][0]["reason"] == "it is the program"


def test_explained_groups(folder):
    """The output lists the frames that counted, and the reasons."""
    _, out, _ = run(folder / "a.json", "--explain")
    assert "of the thread that crashed, and there of the app's frames" in out
    assert "it is the program" in out
    assert "Functions of" not in out


def test_differences(folder):
    """New and gone groups are listed, and the change of functions' shares."""
    _, out, _ = run(folder / "c.json", "--diff", folder / "a.json")
    groups = out.partition("Functions:")[0]
    assert "new" in groups
    assert "gone" in groups
    assert "-100.0 %" in out


def test_the_top(folder):
    """It lists the requested number of functions."""
    _, out, _ = run(folder, "--top", "2")
    assert len(out.splitlines()) == 4


def test_unreadable_files(folder, tmp_path):
    """An unreadable file on the command line is an error; the others are still analysed."""
    bad = tmp_path / "bad.txt"
    bad.write_text("no report")
    status, out, err = run(folder / "a.json", bad, "--groups")
    assert status == 1
    assert "Groups: 1 of 1 report\n" in out
    assert "bad.txt" in err
    status, out, err = run(tmp_path / "nowhere")
    assert (status, out) == (1, "")
    assert "nowhere" in err


def test_an_unknown_format(folder):
    """The error lists the formats."""
    status, _, err = run(folder, "--format", "xml")
    assert status != 0
    assert "'xml' is not one of 'text', 'json'" in err


def test_nothing_to_compare_with_is_no_difference(folder):
    """Groups are not new in comparison with a folder without reports."""
    (folder / "empty").mkdir()
    for other in (folder / "empty", folder / "none"):
        status, out, err = run(folder / "a.json", "--diff", other)
        assert (status, out) == (1, "")
        assert str(other) in err


@pytest.mark.peer
def test_reports_come_by_standard_input(folder):
    """Compressed reports are accepted, too."""
    done = subprocess.run(
        [sys.executable, "-m", "machtrace", "report", "-", "--groups"],
        input=gzip.compress((folder / "a.json").read_bytes()),
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0
    assert b"Groups: 1 of 1 report\n" in done.stdout


def test_mangled_names_are_written_as_people_do(tmp_path):
    """Groups ignore the numbers of closures."""
    for number in (0, 1):
        name = f"$s4Demo3runyyFyycfU{'_' if number == 0 else f'{number - 1}_'}"
        made = made_report(made_thread(0, ["system:abort", name, "main"], crashed=True))
        (tmp_path / f"{number}.json").write_bytes(write_reports([made], "json"))
    status, out, _ = run(tmp_path, "--groups", "--top", "5")
    assert status == 0
    assert "Groups: 1 of 2 reports" in out
    assert "Demo.run()" in out
    assert "$s4Demo" not in out
