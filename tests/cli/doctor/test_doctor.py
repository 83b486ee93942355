"""``machtrace doctor`` in environments that allow more and less."""

import ctypes
import json
import os
import platform
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from machtrace.cli.doctor.darwin import integrity_of, tasks_of
from machtrace.cli.doctor.findings import State
from machtrace.cli.doctor.linux import cores_of, others_of, sandbox_of, scope_of
from machtrace.targets.linux.access import read_rights
from tests.support.command_line import run_command

linux = pytest.mark.skipif(sys.platform != "linux", reason="of Linux")
as_root = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="takes root and setpriv, to give up what root may do",
)
WITHOUT_TRACING = ("setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace")


def doctor(*words, before=(), without=(), **changed):
    """Run the command, optionally without some modules."""
    if not (before or without or changed):
        return run_command("doctor", *words)
    hidden = "".join(f"sys.modules[{name!r}] = None; " for name in without)
    program = f"import sys; {hidden}from machtrace.cli.main import main; main()"
    command = [*before, sys.executable, "-c", program, "doctor", *map(str, words)]
    return subprocess.run(
        command, check=False, **{"capture_output": True, "text": True, "timeout": 60} | changed
    )


def findings(done):
    """Return the findings by name, and the whole document."""
    document = json.loads(done.stdout)
    return {check["name"]: check for check in document["checks"]}, document


@pytest.mark.live
@linux
def test_where_children_can_be_captured_the_status_is_0():
    """A child and a thread of the command itself are captured."""
    done = doctor("--format", "json")
    checks, document = findings(done)

    assert (done.returncode, done.stderr) == (0, "")
    assert document["works"] is True
    assert (checks["own children"]["state"], checks["own children"]["needed"]) == ("ok", True)
    assert "1 thread copied" in checks["own children"]["found"]
    for name in ("this process", "process_vm_readv"):
        assert checks[name]["state"] == "ok", checks[name]["found"]


@pytest.mark.live
@linux
def test_text_has_a_line_for_each_check_and_a_verdict():
    """No colour goes to a pipe."""
    done = doctor()
    lines = done.stdout.splitlines()

    assert lines[-1] == "own children can be captured"
    assert any(line.startswith("  ok") and "own children" in line for line in lines)
    assert "\x1b" not in done.stdout


@pytest.mark.live
def test_the_verdict_on_a_target_is_the_reason_itself():
    """It names no line that names this one."""
    done = doctor("gdb://127.0.0.1:1")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == (
        "gdb://127.0.0.1:1 cannot be captured: cannot connect to 127.0.0.1:1: connection refused"
    )


@pytest.mark.live
@linux
def test_text_on_a_target_has_what_concerns_it():
    """A process that was captured needs no rights; one that was not may need an extension."""
    with subprocess.Popen(["sleep", "60"]) as running:
        try:
            captured = doctor(running.pid).stdout
            refused = doctor(running.pid, without=("machtrace._native._ptrace",)).stdout
            slow = doctor(running.pid, without=("machtrace._native._walk", "frida")).stdout
        finally:
            running.kill()

    first, trial, *_, last = captured.splitlines()
    assert first == "capture"
    assert trial.split()[:2] == ["ok", str(running.pid)]
    assert last == f"{running.pid} can be captured"
    assert "extension" not in captured
    assert "rights" not in captured
    assert "extension _ptrace" in refused
    assert "extension _inprocess" not in refused
    assert "extension _walk" in slow
    assert "frida" not in slow


@pytest.mark.live
@linux
def test_an_extra_is_named_to_who_needs_it():
    """The other extras are not."""
    done = doctor("frida://local/1", without=("frida", "unicorn"))
    assert done.returncode == 1
    assert "extra frida" in done.stdout
    assert "unicorn" not in done.stdout
    assert "core files" not in done.stdout


@pytest.mark.live
@linux
def test_missing_packages_are_reported_with_the_command_that_installs_them():
    """One is an extra, the other a requirement."""
    done = doctor("--format", "json", without=("unicorn",))
    checks, _ = findings(done)
    assert done.returncode == 0
    assert checks["extra emulator (unicorn)"]["state"] == "missing"
    assert checks["extra emulator (unicorn)"]["remedy"].endswith(
        "-m pip install 'machtrace[emulator]'"
    )

    done = doctor("--format", "json", without=("symbolic",))
    checks, document = findings(done)
    assert (done.returncode, document["works"]) == (1, False)
    assert checks["symbolic"]["remedy"].endswith("-m pip install symbolic")


@pytest.mark.live
@linux
def test_missing_extensions_are_reported():
    """Live processes cannot be captured without them, and the status is 1."""
    native = "machtrace._native."
    done = doctor("--format", "json", without=(f"{native}_inprocess", f"{native}_ptrace"))
    checks, _ = findings(done)

    assert done.returncode == 1
    assert checks["own children"]["state"] == "missing"
    assert "wheel" in checks["own children"]["remedy"]
    assert checks["extension _ptrace"]["state"] == "missing"
    assert "other processes cannot be captured" in checks["extension _ptrace"]["found"]
    assert checks["extension _inprocess"]["state"] == "missing"
    assert checks["this process"]["state"] == "missing"
    assert "wheel" in checks["this process"]["remedy"]


@pytest.mark.live
@pytest.mark.parametrize("spec", ["4194304000", "/no/such/core", "emulated:other", "nobody"])
def test_a_target_that_cannot_be_opened_is_reported_with_a_remedy(spec):
    """The status is 1, and all other findings are still printed."""
    done = doctor(spec, "--format", "json")
    checks, document = findings(done)

    assert (done.returncode, done.stderr, document["works"]) == (1, "", False)
    assert checks[spec]["state"] == "missing"
    assert checks[spec]["remedy"]
    assert "numpy" in checks


@pytest.mark.live
def test_a_target_that_opens_is_captured_and_unwound():
    pytest.importorskip("unicorn", reason="the emulator is not installed")
    done = doctor("emulated:demo", "--format", "json")
    checks, document = findings(done)

    assert (
        done.returncode,
        document["works"],
        document["target"],
    ) == (0, True, "emulated:demo")
    assert "threads copied" in checks["emulated:demo"]["found"]


@pytest.mark.live
@as_root
def test_without_the_capability_other_users_are_out_of_reach():
    """The error names the missing capability and its remedy; own children can be captured."""
    with subprocess.Popen(["setpriv", "--reuid=65534", "--clear-groups", "sleep", "60"]) as other:
        try:
            comm = Path(f"/proc/{other.pid}/comm")
            while other.poll() is None and comm.read_text() != "sleep\n":
                time.sleep(0.01)  # until then it may still be root's
            done = doctor(other.pid, "--format", "json", before=WITHOUT_TRACING)
        finally:
            other.kill()
    checks, _ = findings(done)
    assert done.returncode == 1
    assert "root lacks CAP_SYS_PTRACE" in checks[str(other.pid)]["found"]
    assert "--cap-add=SYS_PTRACE" in checks[str(other.pid)]["remedy"]

    done = doctor("--format", "json", before=WITHOUT_TRACING)
    checks, _ = findings(done)
    assert done.returncode == 0
    assert checks["processes of others"]["state"] == "limited"
    assert checks["own children"]["state"] == "ok"


@pytest.mark.live
@as_root
def test_a_process_that_is_not_dumpable_cannot_be_captured():
    """PR_SET_DUMPABLE denies access even to its own user."""
    program = (
        "import ctypes, sys, time; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); "
        "print('ready', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as hidden:
        try:
            assert hidden.stdout.readline() == "ready\n"
            done = doctor(hidden.pid, "--format", "json", before=WITHOUT_TRACING)
        finally:
            hidden.kill()
    checks, _ = findings(done)
    assert done.returncode == 1
    assert checks[str(hidden.pid)]["remedy"]
    assert checks[str(hidden.pid)]["state"] == "missing"


def forbid(*calls):
    """Make these system calls of x86-64 fail with EPERM in this process and its children."""
    load, equal, result = 0x20, 0x15, 0x06
    rows = [(load, 0, 0, 0)]
    rows += [(equal, len(calls) - index, 0, call) for index, call in enumerate(calls)]
    rows += [(result, 0, 0, 0x7FFF0000), (result, 0, 0, 0x00050000 | 1)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *row) for row in rows))
    program = ctypes.create_string_buffer(struct.pack("<H6xQ", len(rows), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.c_void_p(ctypes.addressof(program)), 0, 0) == 0


@pytest.mark.live
@linux
@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of x86-64's system calls")
def test_a_sandbox_that_forbids_tracing_is_named():
    """The filter is like containers' profiles; no other process can be captured under it."""
    ptrace, process_vm_readv = 101, 310
    done = doctor("--format", "json", preexec_fn=lambda: forbid(ptrace, process_vm_readv))
    checks, document = findings(done)

    assert (done.returncode, document["works"]) == (1, False)
    assert "seccomp" in checks["own children"]["found"]
    assert checks["process_vm_readv"]["state"] == "missing"
    assert checks["sandbox"]["state"] == "limited"


@pytest.mark.live
@linux
def test_a_cache_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "file").write_text("no folder")
    done = doctor(
        "--format", "json", env=os.environ | {"MACHTRACE_CACHE": str(tmp_path / "file" / "x")}
    )
    checks, _ = findings(done)

    assert checks["debug indices"]["state"] == "limited"
    assert "MACHTRACE_CACHE" in checks["debug indices"]["remedy"]


@pytest.mark.live
@linux
@pytest.mark.parametrize(("chosen", "state"), [("41", "ok"), ("3", "missing"), ("x", "missing")])
def test_the_chosen_signal_is_checked(chosen, state):
    """It must be a real-time signal."""
    done = doctor("--format", "json", env=os.environ | {"MACHTRACE_SIGNAL": chosen})
    checks, _ = findings(done)

    assert state == checks["real-time signals"]["state"]
    assert chosen in checks["real-time signals"]["found"]


def rights(**files):
    """Return the rights read from files with these contents."""
    named = {path.replace("__", "/"): text for path, text in files.items()}
    return read_rights(lambda path: next((t for p, t in named.items() if path.endswith(p)), None))


STATUS = "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\nSeccomp:\t0\n"
ROOT = "Uid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\nSeccomp:\t2\n"


@pytest.mark.parametrize(
    ("scope", "status", "state", "word"),
    [
        ("0\n", STATUS, State.OK, "forbids nothing"),
        ("1\n", STATUS, State.LIMITED, "descendants"),
        ("1\n", ROOT, State.OK, "CAP_SYS_PTRACE"),
        ("2\n", STATUS, State.LIMITED, "privileged"),
        ("3\n", ROOT, State.MISSING, "no process"),
    ],
)
def test_yama_levels(scope, status, state, word):
    """The levels are those of Documentation/admin-guide/LSM/Yama.rst."""
    finding = scope_of(rights(ptrace_scope=scope, self__status=status))

    assert state is finding.state
    assert word in finding.found
    assert bool(finding.remedy) == (state is not State.OK)


def test_selinux_namespaces_containers_and_filters():
    denied = others_of(rights(deny_ptrace="1 1", self__status=ROOT))
    assert (denied.state, "setsebool" in denied.remedy) == (State.MISSING, True)
    inside = others_of(rights(uid_map="0 1000 1\n", self__status=ROOT))
    assert (inside.state, "namespace" in inside.found) == (State.OK, True)
    plain = others_of(rights(self__status=STATUS))
    assert (plain.state, "1000" in plain.found) == (State.LIMITED, True)
    filtered = sandbox_of(rights(self__status=ROOT, dockerenv=""))
    assert State.LIMITED is filtered.state
    assert "container" in filtered.found
    assert State.OK is sandbox_of(rights(self__status=STATUS)).state
    assert rights().seccomp == 0  # unreadable files report no filter


@pytest.mark.parametrize(
    ("pattern", "limit", "state", "word"),
    [
        ("core", 0, State.LIMITED, "ulimit -c"),
        ("core.%p", -1, State.OK, ""),
        ("|/usr/lib/systemd/systemd-coredump %P", 0, State.OK, "coredumpctl"),
        ("|", 0, State.OK, "hands them out"),
        ("", -1, State.OK, ""),
    ],
)
def test_core_patterns(pattern, limit, state, word):
    """The patterns are those of core(5)."""
    finding = cores_of(pattern, limit)
    assert state is finding.state
    assert word in finding.remedy


def test_rights_on_macos():
    """The texts are those of Apple's tools; none was run here."""
    off = tasks_of(501, "Developer mode is currently disabled.\n", "staff")
    assert "DevToolsSecurity -enable" in off.remedy
    outside = tasks_of(501, "Developer mode is currently enabled.\n", "staff")
    assert "_developer" in outside.remedy
    assert "sign" in tasks_of(501, "Developer mode is currently enabled.\n", "_developer").remedy
    assert State.OK is tasks_of(0, "", "").state
    protected = integrity_of("System Integrity Protection status: enabled.\n")
    assert (protected.state, "get-task-allow" in protected.remedy) == (State.LIMITED, True)
    assert State.OK is integrity_of("System Integrity Protection status: disabled.\n").state
    assert State.LIMITED is integrity_of("").state
