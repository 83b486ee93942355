"""The audit's scan: sites lie inside the code of the image, and all outputs can be written.

An input is a Mach-O, or a static library.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from subprocess import run as run_program
from sys import executable
from tempfile import TemporaryDirectory

from fuzz.target import ContractError, Target
from machtrace.audit.findings import judge
from machtrace.audit.output.document import audit_document
from machtrace.audit.output.html import html_page
from machtrace.audit.output.rows import write_csv
from machtrace.audit.output.sarif import sarif_document
from machtrace.audit.rules import RuleSet, load_rules
from machtrace.audit.scan.app import scan_app
from machtrace.errors import MachtraceError

_SOURCE = Path(__file__).parents[2] / "tests" / "audit" / "programs" / "calls.m"
_RULES: list[RuleSet] = []


def run(data: bytes) -> None:
    """Scan a file, judge it, and write each output."""
    if not _RULES:
        _RULES.append(load_rules())
    with TemporaryDirectory() as folder:
        path = Path(folder, "input")
        path.write_bytes(data)
        try:
            app = scan_app(path, _RULES[0])
        except MachtraceError:
            return
    for image in app.images:
        for site in image.scan.sites:
            if not 0 <= site.offset - site.function_offset <= len(data):
                raise ContractError(f"a site at {site.offset:#x} is outside of its function")
    report = judge(app, _RULES[0])
    audit_document(report)
    sarif_document(report)
    html_page(report)
    write_csv(report, io.StringIO())


def build(*command: str | Path) -> None:
    """Run a module of this Python."""
    run_program([executable, *command], check=True, capture_output=True)  # noqa: S603 - zig


def _seeds() -> Sequence[bytes]:
    """Return the audit's test program: an object file, and a static library of it."""
    with TemporaryDirectory() as folder:
        seeds: list[bytes] = []
        for arch in ("aarch64", "x86_64"):
            unit, archive = Path(folder, f"{arch}.o"), Path(folder, f"lib{arch}.a")
            command = ("-m", "ziglang", "cc", "-target", f"{arch}-macos", "-w", "-O1", "-c")
            build(*command, _SOURCE, "-o", unit)
            build("-m", "ziglang", "ar", "rcs", archive, unit)
            seeds += [unit.read_bytes(), archive.read_bytes()]
        return seeds


TARGET = Target("audit", run, _seeds)
