"""Programs that machtrace starts: their streams, signals, exit statuses and refusals."""

import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.command_line import run_command

pytestmark = pytest.mark.live

if sys.platform != "linux":
    pytest.skip("programs are started under ptrace on Linux", allow_module_level=True)

HANDLING = """\
import os, signal, sys
def handle(number, frame):
    os.write(1, b"signal %d\\n" % number)
    if number == signal.SIGTERM:
        sys.exit(7)
for number in signal.SIGINT, signal.SIGTERM:
    signal.signal(number, handle)
os.write(1, b"ready\\n")
while True:
    signal.pause()
"""
PYTHON = (sys.executable, "-I", "-S", "-c")


def sample(*words, **options):
    """Sample a program that is started, in a process of its own."""
    return run_command("sample", "--no-lines", "--format", "folded", *words, **options)


@pytest.fixture
def started():
    """Return a function that starts the command; what is left over is killed."""
    processes = []

    def start(*words, **options):
        process = subprocess.Popen(
            [sys.executable, "-m", "machtrace", *map(str, words)], text=True, **options
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_a_program_is_sampled_from_before_main(tmp_path):
    """A constructor that runs before main() is in the profile."""
    source, program = tmp_path / "early.c", tmp_path / "early"
    source.write_text(
        "static volatile long n;\n"
        "__attribute__((constructor, noinline)) static void early(void) {\n"
        "    while (n < 300000000) n++;\n"
        "}\n"
        "int main(void) { return 0; }\n"
    )
    subprocess.run(["cc", "-O1", source, "-o", program], check=True)
    profile = tmp_path / "early.folded"
    done = sample("-o", profile, "--", program)
    assert done.returncode == 0, done.stderr
    assert ", until the process exited; " in done.stderr
    assert ";early " in profile.read_text()


def test_the_program_has_the_streams_of_the_command_and_its_own_options(tmp_path):
    """Options behind -- are the program's; so is standard input."""
    done = sample(
        *("-o", tmp_path / "x", "--", *PYTHON, "import sys; print(sys.argv, input())", "--hz", "x"),
        input="typed\n",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['-c', '--hz', 'x'] typed\n"


@pytest.mark.parametrize(
    ("code", "status", "fact"),
    [
        ("raise SystemExit(3)", 3, "exited with status 3"),
        ("import os; os.kill(os.getpid(), 9)", 137, "was ended by SIGKILL"),
    ],
)
def test_the_exit_status_is_the_programs(tmp_path, code, status, fact):
    done = sample("-o", tmp_path / "x", "--", *PYTHON, code, timeout=100)
    assert done.returncode == status
    assert done.stderr.splitlines()[-1] == f"machtrace: {sys.executable} {fact}"


def test_programs_that_cannot_be_started(tmp_path, monkeypatch):
    """Each has a fact, a hint and the status that shells give it."""
    monkeypatch.chdir(tmp_path)
    for name, text, mode in (
        ("data", "text", 0o644),
        ("noise", "text", 0o755),
        ("script", "#!/no/interpreter\n", 0o755),
        ("here", "#!/bin/sh\n", 0o755),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    cases = {
        "no-such-program": (127, "no such file or directory: no-such-program", "in PATH"),
        str(os.getpid()): (127, "no such file", f"to capture process {os.getpid()}, leave out --"),
        "here": (127, "no such file", "pass ./here"),
        "./script": (127, "its interpreter does not exist: ./script", "first line"),
        "./data": (126, "permission denied: ./data", "chmod +x"),
        "./noise": (126, "exec format error: ./noise", "#!"),
        str(tmp_path): (126, "permission denied", "pass a program"),
    }
    for program, (status, fact, hint) in cases.items():
        done = sample("--", program)
        assert done.returncode == status, program
        first, second = done.stderr.splitlines()
        assert first.startswith(f"machtrace: {fact}"), program
        assert second.startswith("hint: "), program
        assert hint in second, program


def test_a_target_and_a_program_exclude_each_other():
    for words, fact in (
        (("1", "--", "true"), "pass '1' or a program to start, not both"),
        (("--",), "name a program to start after --"),
        ((), "missing argument"),
    ):
        done = sample(*words)
        assert done.returncode == 2
        assert done.stderr.startswith(f"machtrace: {fact}")


def test_a_program_is_killed_if_it_cannot_be_sampled(tmp_path):
    """It did not run at all: it wrote nothing."""
    for words in (("--thread", "none"), ("-o", tmp_path / "no" / "folder")):
        done = sample(*words, "--", *PYTHON, "print('ran')", timeout=100)
        assert (done.returncode, done.stdout) == (125, "")
        assert done.stderr.startswith("machtrace: no ")


def test_signals_are_passed_on_and_the_profile_is_written(started, tmp_path):
    """The first signal leaves sampling on; the program decides what it does."""
    profile = tmp_path / "x.folded"
    command = started(
        *("sample", "--no-lines", "--format", "folded", "-o", profile, "--", *PYTHON, HANDLING),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # no terminal sends Ctrl-C to the program, too
    )
    assert command.stdout.readline() == "ready\n"
    command.send_signal(signal.SIGINT)
    assert command.stdout.readline() == f"signal {signal.SIGINT.value}\n"
    assert not profile.exists()
    command.send_signal(signal.SIGTERM)
    rest, messages = command.communicate(timeout=100)
    assert (rest, command.returncode) == (f"signal {signal.SIGTERM.value}\n", 7), messages
    assert profile.read_text()


def test_ctrl_c_on_a_terminal_reaches_the_program_once(tmp_path):
    """The terminal sends it to both; it is not passed on a second time."""
    profile = tmp_path / "x.folded"
    child, terminal = pty.fork()
    if child == 0:
        words = ("sample", "--no-lines", "-f", "folded", "-o", str(profile), "--")
        code = HANDLING.replace("== signal.SIGTERM", "== signal.SIGINT")
        os.execv(sys.executable, [sys.executable, "-m", "machtrace", *words, *PYTHON, code])  # noqa: S606
    shown = b""
    while b"ready" not in shown:
        shown += os.read(terminal, 1 << 12)
    os.write(terminal, b"\x03")
    try:
        while part := os.read(terminal, 1 << 12):
            shown += part
    except OSError:  # the end of a terminal
        pass
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    assert shown.count(b"signal 2") == 1, shown
    assert os.waitstatus_to_exitcode(status) == 7
    assert profile.read_text()


def test_a_program_outlives_the_duration(started, tmp_path):
    """The profile is there while the program runs; the command waits for it."""
    profile = tmp_path / "x.folded"
    command = started(
        *("sample", "-d", "50ms", "--no-lines", "-f", "folded", "-o", profile),
        *("--", *PYTHON, "print(input())"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    while not (line := command.stderr.readline()).startswith("machtrace: waiting for process "):
        assert line, command.poll()
    assert profile.read_text()
    out, _ = command.communicate("still here\n", timeout=100)
    assert (out, command.returncode) == ("still here\n", 0)


def test_a_set_user_id_program_is_refused(tmp_path):
    """Traced by another user than root, it would run without its rights."""
    if os.geteuid() != 0:
        pytest.skip("root makes the program and another user runs it")
    from machtrace.errors import TargetAccessError
    from machtrace.targets.child_process import StartedProgram

    program = tmp_path / "program"
    program.write_bytes(Path("/bin/true").read_bytes())
    program.chmod(0o4755)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    if os.statvfs(program).f_flag & os.ST_NOSUID:
        pytest.skip("the file system ignores such rights")
    os.seteuid(65534)
    try:
        with pytest.raises(TargetAccessError, match="runs with the rights of user 0"):
            StartedProgram([str(program)])
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("option", ["--python", "--python=only"])
def test_python_functions_are_read_once_the_interpreter_has_started(tmp_path, option):
    """At its first instruction a process has no interpreter; that is no problem later."""
    program, profile = tmp_path / "program.py", tmp_path / "x.folded"
    program.write_text("def busy():\n    for _ in range(10_000_000):\n        pass\nbusy()\n")
    done = sample(option, "-o", profile, "--", sys.executable, program, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "busy" in profile.read_text()
    assert len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.parametrize("command", ["sample", "watch"])
def test_a_program_that_outlasts_the_command_is_waited_for(started, tmp_path, command):
    """It ends when its input does, which is after that was stated."""
    options = ("--duration", "10ms", "-o", tmp_path / "x") if command == "sample" else ("--for", 0)
    program = ("sh", "-c", "exec cat 2>/dev/null")
    process = started(
        command, *options, "--", *program, stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    in_vain = threading.Timer(60, process.kill)
    in_vain.start()
    stated = any("waiting for process" in line for line in process.stderr)
    in_vain.cancel()
    assert stated
    assert process.poll() is None
    process.stdin.close()
    process.stdin = None
    assert process.wait() == 0
