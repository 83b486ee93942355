"""All call stacks of a core of 1,000 threads and 200 images, ours and lldb's in one run."""

import io
import shutil
import subprocess

import pytest

from machtrace.model.arch import Arch
from machtrace.pipeline.backtraces import build_capture
from machtrace.render import lldb
from machtrace.targets.open import open_target
from machtrace.unwinder.unwinder import unwind
from tests.support.writers.processes import synthetic_process

LLDB = next((name for name in ("lldb-19", "lldb") if shutil.which(name)), None)


@pytest.fixture(scope="module", params=[Arch.ARM64, Arch.X86_64], ids=lambda arch: arch.value)
def core(request, tmp_path_factory):
    """Stacks 30 deep, through functions chosen at random: fewer repeat than in a real process."""
    process = synthetic_process(request.param, threads=1000, images=200, depth=30)
    path = tmp_path_factory.mktemp("core") / "large.core"
    path.write_bytes(process.core())
    return path


@pytest.mark.benchmark(group="open")
def test_open_and_copy(benchmark, core):
    """Load commands, notes, images, registers and stacks."""

    def run():
        with open_target(core) as target:
            return target.snapshot()

    assert len(benchmark(run).threads) == 1000


@pytest.mark.benchmark(group="walk")
def test_walk(benchmark, core):
    """Each round starts with an empty rule cache."""
    with open_target(core) as target:
        copied = target.snapshot()

    assert len(benchmark(unwind, copied)) == 1000


@pytest.mark.benchmark(group="bt all")
def test_bt_all(benchmark, core):
    """From the file to the text."""

    def run():
        sink = io.StringIO()
        with open_target(core) as target:
            lldb.write(build_capture(target.snapshot()), sink)
        return sink.getvalue()

    assert benchmark(run).count("\n") > 1000


@pytest.mark.skipif(LLDB is None, reason="lldb is not installed")
@pytest.mark.benchmark(group="bt all", min_rounds=1, max_time=0.1)
def test_bt_all_by_lldb(benchmark, core):
    """The peer's ``bt all`` of the same file, its start included."""
    command = [LLDB, "--no-lldbinit", "--batch", "--core", core, "-o", "bt all"]
    done = benchmark(subprocess.run, command, capture_output=True, check=True)

    assert done.stdout
