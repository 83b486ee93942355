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
    """Run the command, where wanted without some modules."""
    if not (before or without or changed):
        return run_command("doctor", *words)
    hidden = "".join(f"sys.modules[{name!r}] = None; " for name in without)
    program = f"import sys; {hidden}from machtrace.cli.main import main; main()"
    command = [*before, sys.executable, "-c", program, "doctor", *map(str, words)]
    return subprocess.run(
        command, check=False, **{"capture_output": True, "text": True, "timeout": 60} | changed
    )


def findings(done):
    """Name → what was found, and the whole document."""
    document = json.loads(done.stdout)
    return {one["name"]: one for one in document["checks"]}, document


@pytest.mark.live
@linux
def test_where_children_can_be_captured_the_status_is_0():
    """They are really captured, and so is a thread of the command itself."""
    done = doctor("--format", "json")
    found, document = findings(done)

    assert (0, "") == (done.returncode, done.stderr)
    assert document["works"] is True
    assert ("ok", True) == (found["own children"]["state"], found["own children"]["needed"])
    assert "1 thread copied" in found["own children"]["found"]
    assert {"ok"} == {found[name]["state"] for name in ("this process", "process_vm_readv")}


@pytest.mark.live
@linux
def test_people_read_a_line_a_check_and_a_verdict():
    """What nothing needs doing about has no arrow; no colour goes to a pipe."""
    done = doctor()
    lines = done.stdout.splitlines()

    assert "own children can be captured" == lines[-1]
    assert any(line.startswith("  ok") and "own children" in line for line in lines)
    assert "\x1b" not in done.stdout


@pytest.mark.live
@linux
def test_what_is_not_installed_is_said_with_the_command_that_installs_it():
    """An extra, and what all of machtrace takes."""
    done = doctor("--format", "json", without=("unicorn",))
    found, _ = findings(done)
    assert 0 == done.returncode
    assert "missing" == found["extra emulator (unicorn)"]["state"]
    assert "pip install 'machtrace[emulator]'" == found["extra emulator (unicorn)"]["remedy"]

    done = doctor("--format", "json", without=("symbolic",))
    found, document = findings(done)
    assert (1, False) == (done.returncode, document["works"])
    assert "pip install symbolic" == found["symbolic"]["remedy"]


@pytest.mark.live
@linux
def test_extensions_that_are_not_built_are_said():
    """Live processes cannot be captured without them, and the status is 1."""
    native = "machtrace._native."
    done = doctor("--format", "json", without=(f"{native}_inprocess", f"{native}_ptrace"))
    found, _ = findings(done)

    assert 1 == done.returncode
    assert "missing" == found["own children"]["state"]
    assert "wheel" in found["own children"]["remedy"]
    assert "missing" == found["extension _ptrace"]["state"]
    assert "other processes cannot be captured" in found["extension _ptrace"]["found"]
    assert "missing" == found["extension _inprocess"]["state"]
    assert "missing" == found["this process"]["state"]
    assert "wheel" in found["this process"]["remedy"]


@pytest.mark.live
@pytest.mark.parametrize("spec", ["4194304000", "/no/such/core", "emulated:other", "nobody"])
def test_what_cannot_be_opened_is_said_with_a_remedy(spec):
    """The status is 1, and all else is still told."""
    done = doctor(spec, "--format", "json")
    found, document = findings(done)

    assert (1, "", False) == (done.returncode, done.stderr, document["works"])
    assert "missing" == found[spec]["state"]
    assert found[spec]["remedy"]
    assert "numpy" in found


@pytest.mark.live
def test_a_target_that_opens_is_tried_to_the_end():
    """Its threads are copied, and their stacks walked."""
    pytest.importorskip("unicorn", reason="the emulator is not installed")
    done = doctor("emulated:demo", "--format", "json")
    found, document = findings(done)

    assert (0, True, "emulated:demo") == (
        done.returncode,
        document["works"],
        document["target"],
    )
    assert "threads copied" in found["emulated:demo"]["found"]


@pytest.mark.live
@as_root
def test_without_the_capability_other_users_are_out_of_reach():
    """The missing right is named, and how to get it; own children can still be captured."""
    with subprocess.Popen(["setpriv", "--reuid=65534", "--clear-groups", "sleep", "60"]) as other:
        try:
            comm = Path(f"/proc/{other.pid}/comm")
            while other.poll() is None and comm.read_text() != "sleep\n":
                time.sleep(0.01)  # until then it may still be root's
            done = doctor(other.pid, "--format", "json", before=WITHOUT_TRACING)
        finally:
            other.kill()
    found, _ = findings(done)
    assert 1 == done.returncode
    assert "root lacks CAP_SYS_PTRACE" in found[str(other.pid)]["found"]
    assert "--cap-add=SYS_PTRACE" in found[str(other.pid)]["remedy"]

    done = doctor("--format", "json", before=WITHOUT_TRACING)
    found, _ = findings(done)
    assert 0 == done.returncode
    assert "limited" == found["processes of others"]["state"]
    assert "ok" == found["own children"]["state"]


@pytest.mark.live
@as_root
def test_a_process_that_is_not_dumpable_is_named_so():
    """PR_SET_DUMPABLE keeps even its user from it."""
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
    found, _ = findings(done)
    assert 1 == done.returncode
    assert found[str(hidden.pid)]["remedy"]
    assert "missing" == found[str(hidden.pid)]["state"]


def forbid(*calls):
    """Let this process and its children have EPERM from these system calls of x86-64."""
    load, equal, give = 0x20, 0x15, 0x06
    rows = [(load, 0, 0, 0)]
    rows += [(equal, len(calls) - place, 0, call) for place, call in enumerate(calls)]
    rows += [(give, 0, 0, 0x7FFF0000), (give, 0, 0, 0x00050000 | 1)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *row) for row in rows))
    program = ctypes.create_string_buffer(struct.pack("<H6xQ", len(rows), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.c_void_p(ctypes.addressof(program)), 0, 0) == 0


@pytest.mark.live
@linux
@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of x86-64's system calls")
def test_a_sandbox_that_forbids_tracing_is_named():
    """As containers' profiles do; nothing can be captured from outside then."""
    ptrace, process_vm_readv = 101, 310
    done = doctor("--format", "json", preexec_fn=lambda: forbid(ptrace, process_vm_readv))
    found, document = findings(done)

    assert (1, False) == (done.returncode, document["works"])
    assert "seccomp" in found["own children"]["found"]
    assert "missing" == found["process_vm_readv"]["state"]
    assert "limited" == found["sandbox"]["state"]


@pytest.mark.live
@linux
def test_a_cache_that_cannot_be_written_is_said(tmp_path):
    """Lines then take their time every time."""
    (tmp_path / "file").write_text("no folder")
    done = doctor(
        "--format", "json", env=os.environ | {"MACHTRACE_CACHE": str(tmp_path / "file" / "x")}
    )
    found, _ = findings(done)

    assert "limited" == found["debug indices"]["state"]
    assert "MACHTRACE_CACHE" in found["debug indices"]["remedy"]


@pytest.mark.live
@linux
@pytest.mark.parametrize(("chosen", "state"), [("41", "ok"), ("3", "missing"), ("x", "missing")])
def test_the_signal_that_was_chosen_is_looked_at(chosen, state):
    """One that is no real-time signal would be refused later."""
    done = doctor("--format", "json", env=os.environ | {"MACHTRACE_SIGNAL": chosen})
    found, _ = findings(done)

    assert state == found["real-time signals"]["state"]
    assert chosen in found["real-time signals"]["found"]


def rights(**files):
    """What is read from such files."""
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
def test_what_yama_says(scope, status, state, word):
    """Each level of Documentation/admin-guide/LSM/Yama.rst."""
    found = scope_of(rights(ptrace_scope=scope, self__status=status))

    assert state is found.state
    assert word in found.found
    assert bool(found.remedy) == (state is not State.OK)


def test_what_other_facts_say():
    """SELinux, namespaces, containers and filters."""
    denied = others_of(rights(deny_ptrace="1 1", self__status=ROOT))
    assert (State.MISSING, True) == (denied.state, "setsebool" in denied.remedy)
    inside = others_of(rights(uid_map="0 1000 1\n", self__status=ROOT))
    assert (State.OK, True) == (inside.state, "namespace" in inside.found)
    plain = others_of(rights(self__status=STATUS))
    assert (State.LIMITED, True) == (plain.state, "1000" in plain.found)
    filtered = sandbox_of(rights(self__status=ROOT, dockerenv=""))
    assert State.LIMITED is filtered.state
    assert "container" in filtered.found
    assert State.OK is sandbox_of(rights(self__status=STATUS)).state
    assert 0 == rights().seccomp  # where nothing can be read, nothing is said to forbid


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
def test_where_cores_go(pattern, limit, state, word):
    """core(5)."""
    found = cores_of(pattern, limit)
    assert state is found.state
    assert word in found.remedy


def test_what_a_mac_says():
    """From the texts of Apple's tools; none was run here."""
    off = tasks_of(501, "Developer mode is currently disabled.\n", "staff")
    assert "DevToolsSecurity -enable" in off.remedy
    outside = tasks_of(501, "Developer mode is currently enabled.\n", "staff")
    assert "_developer" in outside.remedy
    assert "sign" in tasks_of(501, "Developer mode is currently enabled.\n", "_developer").remedy
    assert State.OK is tasks_of(0, "", "").state
    protected = integrity_of("System Integrity Protection status: enabled.\n")
    assert (State.LIMITED, True) == (protected.state, "get-task-allow" in protected.remedy)
    assert State.OK is integrity_of("System Integrity Protection status: disabled.\n").state
    assert State.LIMITED is integrity_of("").state
