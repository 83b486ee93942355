"""``machtrace sample`` as a user meets it: formats, files, Ctrl-C, errors and statuses."""

import json
import os
import re
import select
import signal
import subprocess
import sys
from contextlib import suppress
from types import SimpleNamespace

import pytest

from machtrace.cli.sample import _summary
from machtrace.model.profile import SamplingEnd
from tests.support.command_line import run_command

pytestmark = pytest.mark.live

if sys.platform != "linux":
    pytest.skip("a process of another program is sampled on Linux here", allow_module_level=True)

COMMAND = [sys.executable, "-m", "machtrace", "sample"]


def sample(*words, **changed):
    """Run the command."""
    return run_command("sample", *words, **changed)


@pytest.fixture(scope="module")
def pid():
    """Start a process with a few threads, and yield its id."""
    command = [sys.executable, "-m", "machtrace.cli.threaded_process"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.stdin.close()


@pytest.fixture(scope="module")
def brief(pid):
    """Return a short time of that process."""
    return pid, "--duration", "0.3", "--hz", "50", "--no-lines"


def test_the_call_graph_and_one_line_on_how_it_went(brief):
    """The profile on standard output, all else on standard error."""
    done = sample(*brief)
    assert done.returncode == 0, done.stderr
    assert "\nCall graph:\n" in done.stdout
    assert re.search(r": compressor   \(\d+ running, \d+\.\d{3} s CPU\)\n", done.stdout)
    (line,) = done.stderr.splitlines()
    assert line.startswith("machtrace: ")
    assert re.search(r" samples of 5 threads in \d+\.\d\d s; ", line)
    assert " of 50 Hz, " in line
    assert "of the time" in line


def test_every_format_can_be_written_to_a_file(brief, tmp_path):
    """It is complete."""
    starts = {
        "text": b"Analysis of sampling ",
        "folded": b"python",
        "speedscope": b'{"$schema":"https://www.speedscope.app/',
        "firefox": b'{"meta":{',
        "pprof": b"\x1f\x8b",
        "json": b'{"schema":1,',
        "html": b"<!DOCTYPE html>",
        "svg": b"<svg ",
    }
    for form, begin in starts.items():
        path = tmp_path / form
        done = sample(*brief, "--format", form, "-o", path, "--thread", "main")
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert path.read_bytes().startswith(begin)
    assert sorted(starts) == sorted(one.name for one in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "begin"),
    [
        ("a.svg", b"<svg "),
        ("a.html", b"<!DOCTYPE html>"),
        ("a.folded", b"python"),
        ("a.speedscope.json", b'{"$schema":"https://www.speedscope.app/'),
        ("a.firefox.json", b'{"meta":{'),
        ("a.pb.gz", b"\x1f\x8b"),
        ("a.json", b'{"schema":1,'),
        ("a.txt", b"Analysis of sampling "),
        ("a", b"Analysis of sampling "),
    ],
)
def test_the_suffix_of_the_output_chooses_the_format(pid, tmp_path, name, begin):
    """Unless --format is given."""
    brief = (pid, "--duration", "20ms", "--no-lines", "--thread", "main")
    path = tmp_path / name
    assert sample(*brief, "-o", path).returncode == 0
    assert path.read_bytes().startswith(begin)
    assert sample(*brief, "-o", path, "--format", "folded").returncode == 0
    assert path.read_bytes().startswith(b"python")


def test_bytes_and_text_can_be_piped(brief):
    """``-`` is standard output, as it is without ``-o``."""
    done = sample(*brief, "--format", "pprof", "-o", "-", text=False)
    assert done.stdout.startswith(b"\x1f\x8b")
    assert json.loads(sample(*brief, "--format", "json").stdout)["run"]["end"] == "duration"


@pytest.fixture
def started():
    """Return a function that starts the command on a terminal and waits for its first sample."""
    processes, terminals = [], []

    def start(*words):
        ours, theirs = os.openpty()
        terminals.append(ours)
        process = subprocess.Popen(
            [*COMMAND, *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=theirs,
            env=os.environ | {"TERM": "xterm", "COLUMNS": "120"},
        )
        processes.append(process)
        os.close(theirs)  # else what was written would have no end
        readable = select.poll()
        readable.register(ours, select.POLLIN)
        shown = b""
        while b" Hz " not in shown:
            assert readable.poll(200_000), shown
            shown += os.read(ours, 1 << 16)

        def finish():
            """Wait for its end, and return all of its output and of its text on the terminal."""
            output, _ = process.communicate(timeout=200)
            written = shown
            with suppress(OSError):  # the end, as Linux reports it; one reading may have less
                while part := os.read(ours, 1 << 16):
                    written += part
            return output.decode(), written.decode()

        return process, finish

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()
    for terminal in terminals:
        os.close(terminal)


def test_ctrl_c_ends_it_and_what_was_taken_is_written(pid, started, tmp_path):
    """The duration has not passed then."""
    path = tmp_path / "x.folded"
    process, finish = started(pid, "--duration", "inf", "--format", "folded", "-o", path)
    process.send_signal(signal.SIGINT)
    _, shown = finish()
    assert process.returncode == 0, shown
    assert ", then interrupted; " in shown
    assert "compressor [" in path.read_text()
    assert [path] == list(tmp_path.iterdir())


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_keeps_what_was_taken(pid, started, tmp_path, ending):
    """timeout(1), systemd and containers send SIGTERM, a closed terminal SIGHUP."""
    if signal.getsignal(ending) is signal.SIG_IGN:
        pytest.skip("the tests' parent ignores the signal, as nohup does")
    path = tmp_path / "x.folded"
    process, finish = started(pid, "--duration", "inf", "--format", "folded", "-o", path)
    process.send_signal(ending)
    _, shown = finish()
    assert process.returncode == 0, shown
    assert "compressor [" in path.read_text()


def test_the_end_of_the_process_ends_sampling(started):
    """The profile has the samples until then, and there is no error."""
    code = "import time; print('ready', flush=True); time.sleep(1000)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        command, finish = started(process.pid, "--duration", "inf", "--format", "folded")
        process.kill()
        output, shown = finish()
    assert command.returncode == 0, shown
    assert ", until the process exited; " in shown
    assert "clock_nanosleep" in output


def test_progress_is_for_terminals(pid, started):
    """It has the rate, lost samples and stop times; at the end one line remains."""
    _, finish = started(pid, "--duration", "0.5", "--no-names")
    _, shown = finish()
    assert "sampling" in shown
    assert " lost  stopped " in shown
    assert shown.count("machtrace: ") == 1
    assert shown.rstrip().endswith("of the time")


def test_threads_are_merged_by_name_or_all(brief):
    """The option takes a value after an equals sign only."""
    pid, *rest = brief
    together = sample("--merge-threads", pid, *rest)
    assert (together.returncode, together.stdout.count(" All threads   (5 threads, ")) == (0, 1)
    by_name = sample(*brief, "--merge-threads=name", "--format", "folded")
    assert "\ncompressor;" in by_name.stdout
    assert " [" not in by_name.stdout.replace("[unknown callers]", "")
    assert sample(*brief, "--merge-threads=all", "--format", "folded").returncode == 0


def test_an_unknown_merge_is_refused(brief):
    done = sample(*brief, "--merge-threads=nmae")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'nmae' is not one of 'all', 'name'" in done.stderr


def test_idle_samples_are_counted_when_they_are_left_out(brief):
    """The threads of the program wait nearly always."""
    done = sample(*brief, "--no-idle")
    assert done.returncode == 0, done.stderr
    assert re.search(r" s; \d+ idle left out; ", done.stderr)


def test_a_summary_without_samples_has_no_unknown_share():
    run = SimpleNamespace(
        duration_ns=10**9, interval_ns=10**7, end=SamplingEnd.DURATION, rate=100.0, lost=1
    )
    profile = SimpleNamespace(run=run, samples=(), threads=(), stopped_share=None)
    expected = "0 samples of 0 threads in 1.00 s; 99 idle left out; 100.0 of 100 Hz, 1 lost"
    assert _summary(profile, 99) == expected


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--hz", "0"], "cannot sample at 0 Hz; pass 0.001 to 10,000 samples per second"),
        (["--duration", "nan"], "cannot sample for nan seconds; pass more than 0"),
        (["--duration", "-inf"], "cannot sample for -inf seconds; pass more than 0"),
        (["--thread", "nobody"], "no thread matches 'nobody'; choose all, main, or one of "),
        (["-o", "/nowhere/x"], "no such directory: /nowhere/x; name a file"),
        (["-o", "/"], "is a directory: /; name a file"),
        (["--search", "/nowhere"], "No such file or directory: /nowhere"),
    ],
)
def test_wrong_input_is_reported_before_sampling(pid, words, complaint):
    done = sample(pid, *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.replace("\nhint:", ";").startswith(f"machtrace: {complaint}")
    assert done.stderr.count("\n") == 2


def test_what_cannot_be_sampled():
    """The targets are no process, and one that does not run."""
    gone = sample(2**22 + 1)
    assert (gone.returncode, len(gone.stderr.splitlines())) == (1, 2)
    still = sample("emulated:demo")
    assert "an emulated program does not run" in still.stderr
    assert (still.returncode, len(still.stderr.splitlines())) == (1, 2)


def test_python_functions_need_names(pid):
    """The interpreter's loop is recognised by its symbol name."""
    done = sample(pid, "--python", "--no-names")
    assert done.returncode == 2
    assert "--python requires --names" in done.stderr


def test_the_hint_for_a_program_without_python_names_the_option():
    """The samples are printed all the same."""
    with subprocess.Popen(["sleep", "60"]) as running:
        try:
            done = sample(running.pid, "--python", "--duration", "200ms")
        finally:
            running.kill()

    fact, hint = done.stderr.splitlines()[-2:]
    assert "sleep" in done.stdout
    assert fact == "machtrace: no CPython found in the process"
    assert hint.startswith("hint: omit --python (in Python: python=True)")
