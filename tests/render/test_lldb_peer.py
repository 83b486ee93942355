"""``--format lldb`` is what lldb itself prints of the same core."""

import re
import shutil
import subprocess
import sys

import pytest

from machtrace.model.arch import Arch
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
