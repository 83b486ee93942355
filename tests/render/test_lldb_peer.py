"""``--format lldb`` is what lldb itself prints of the same core."""

import re
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from machtrace.formats.macho.core.writer import core_bytes
from machtrace.model.arch import Arch
from machtrace.targets.core.macho import open_corefile
from tests.support.writers.processes import synthetic_process

pytestmark = pytest.mark.peer

LLDB = next((name for name in ("lldb-19", "lldb") if shutil.which(name)), None)
NAMES = re.compile(r", (name|queue) = '[^']*'")


@pytest.mark.skipif(LLDB is None, reason="lldb is not installed")
@pytest.mark.parametrize("arch", [Arch.ARM64, Arch.X86_64])
def test_bt_all_is_the_same_text(tmp_path, arch):
    """Threads, frames, images, names and offsets; lldb does not read thread names from cores."""
    core = tmp_path / "synthetic.core"
    core.write_bytes(synthetic_process(arch, threads=3, images=4, depth=6).core())
    theirs = subprocess.run(
        [LLDB, "--no-lldbinit", "--batch", "--core", core, "-o", "bt all"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout.partition("bt all\n")[2]
    ours = subprocess.run(
        [sys.executable, "-m", "machtrace", "backtrace", core, "--format", "lldb"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert theirs == NAMES.sub("", ours)


@pytest.mark.skipif(LLDB is None, reason="lldb is not installed")
def test_stop_reasons_of_an_arm64_core_are_the_same_text(tmp_path):
    """The 64 exception classes, one for each thread, as "thread list" prints them."""
    process = synthetic_process(Arch.ARM64, threads=64, images=2, depth=3)
    snapshot = process.snapshot
    threads = [
        replace(thread, other_registers=(("far", 0x1000 + kind), ("esr", kind << 26 | 0x46)))
        for kind, thread in enumerate(snapshot.threads)
    ]
    core = tmp_path / "exceptions.core"
    # Another owner's metadata is ignored, so that all is from the exception states.
    data = core_bytes(replace(snapshot, threads=tuple(threads)))
    core.write_bytes(data.replace(b'"crashed"', b'"ignored"'))
    theirs = subprocess.run(
        [LLDB, "--no-lldbinit", "--batch", "--core", core, "-o", "thread list"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    with open_corefile(core) as target:
        ours = {
            thread.index: None if thread.cause is None else thread.cause.lldb_text
            for thread in target.threads()
        }
    reasons = re.findall(r"thread #(\d+): tid = .*?(?:stop reason = (.*))?$", theirs, re.MULTILINE)
    assert ours == {int(number): reason or None for number, reason in reasons}


@pytest.mark.skipif(LLDB is None, reason="lldb is not installed")
def test_unique_stacks_are_the_same_text(tmp_path):
    """But for their order: lldb sorts them by addresses."""
    process = synthetic_process(Arch.ARM64, threads=3, images=2, depth=6)
    first, _, last = process.snapshot.threads
    second = replace(first, info=replace(first.info, id=last.info.id + 1, index=2))
    core = tmp_path / "synthetic.core"
    core.write_bytes(
        core_bytes(replace(process.snapshot, threads=(first, second, last)), process.regions)
    )
    theirs = subprocess.run(
        [LLDB, "--no-lldbinit", "--batch", "--core", core, "-o", "thread backtrace unique"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout.partition("unique\n")[2]
    ours = subprocess.run(
        [sys.executable, "-m", "machtrace", "backtrace", core, "--format", "lldb", "--unique"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    def blocks(text):
        return sorted(re.split(r"^(?=\d)", text, flags=re.MULTILINE))

    assert ours.startswith("2 thread(s) #1 #2 \n")
    assert blocks(theirs) == blocks(ours)
