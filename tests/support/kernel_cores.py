"""Cores that the kernel of this machine writes."""

from __future__ import annotations

import resource
import subprocess
from pathlib import Path

import pytest


def kernel_core(
    program: Path, folder: Path, *words: str, dump_filter: str | None = None
) -> tuple[Path, int]:
    """Return the core that the kernel writes when ``program`` crashes, and the signal's number."""
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    if pattern.startswith(("|", "/")):
        pytest.skip(f"cores go elsewhere here: {pattern}")

    def prepare() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (1 << 28, 1 << 28))
        if dump_filter is not None:
            Path("/proc/self/coredump_filter").write_text(dump_filter)

    if resource.getrlimit(resource.RLIMIT_CORE)[1] != resource.RLIM_INFINITY:
        pytest.skip("this process may not write cores")
    done = subprocess.run(
        [str(program), *words],
        cwd=folder,
        preexec_fn=prepare,
        check=False,
        timeout=60,
    )
    assert done.returncode < 0
    found = list(folder.glob("core*"))
    if not found:
        pytest.skip("the kernel wrote no core")
    return found[0], -done.returncode
