"""A capture of this process imports nothing between its first stop and its answer.

An import of an extension waits for the loader while it holds the interpreter's lock, and a thread
that runs on may have the one and wait for the other.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from machtrace.targets.inprocess import preload

pytest.importorskip("machtrace._native._inprocess", reason="the extension is not built")

PROGRAMS = Path(__file__).parent / "programs"
LIMIT_S = 100

# The program ends as soon as something is imported: an exception could be caught.
FORBID = """
import faulthandler, os, sys, threading, traceback
faulthandler.dump_traceback_later({limit}, exit=True)
import machtrace as mt
from machtrace._native import _inprocess
from machtrace.targets.inprocess import copier
copier.ANSWER_LIMIT_NS = 10_000_000_000  # a busy machine schedules it late
is_forbidden = False
def forbid(event, arguments):
    if is_forbidden and event == "import" and arguments[0] not in sys.modules:
        traceback.print_stack()
        print("imported:", arguments[0], file=sys.stderr, flush=True)
        os._exit(9)
sys.addaudithook(forbid)
def begins_at(name):
    begin = getattr(_inprocess, name)
    def begin_without_imports(*arguments, **named):
        global is_forbidden
        is_forbidden = True
        return begin(*arguments, **named)
    setattr(_inprocess, name, begin_without_imports)
for name in {begins}:
    begins_at(name)
"""
WITH_THREAD = """
import ctypes
library, reading = ctypes.CDLL({library!r}), os.pipe()[0]
threading.Thread(target=library.wait_for_byte, args=(reading,), daemon=True).start()
"""
BEGINS = ["copy_threads", "copy_here", "Series", "Watchdog"]
CAPTURES = {
    "all": "assert mt.backtraces('self')",
    "without lines": "assert mt.backtraces('self', lines=False)",
    "without names": "assert mt.backtraces('self', symbolicate=False)",
    "merged": "assert mt.backtraces('self', python=True)",
    "python only": "assert mt.backtraces('self', python='only')",
    "search": "assert mt.backtraces('self', search=['/usr/include'], scan=True, python=True)",
    "one": "assert mt.backtrace(threading.main_thread()).frames",
    "own": "assert mt.call_stack_symbols() and mt.call_stack_return_addresses()",
    "sample": "assert mt.sample('self', hz=50, duration=0.1, python=True).samples",
    "sample without names": "assert mt.sample('self', hz=50, duration=0.1, symbolicate=False)",
    "snapshot": """
unwind, explain = mt.unwind, mt.explain
assert [explain(stack) for stack in unwind(mt.snapshot('self', threads='main'))]
""",
    "text": "assert str(mt.backtraces('self')[0])",
    "series": """
unwind = mt.unwind
with mt.open_target('self') as target, target.series(50) as series:
    captures = []
    while not captures:
        captures += series.take()
    assert [unwind(capture.snapshot) for capture in captures]
""",
    "watch": """
seen = threading.Event()
def see(incident):
    assert str(incident)
    if incident.ended is not None:
        seen.set()
with mt.watch('self', hang=None, cpu='1%/1s', launch_grace=0, on_incident=see) as watcher:
    with mt.deadline(0.01, 'too short'):
        while not watcher.incidents:
            sum(range(1000))
    seen.wait()
assert watcher.incidents[0].capture.stacks
""",
    "deadlock": """
first, second = threading.RLock(), threading.RLock()
seen, both = threading.Event(), threading.Barrier(2)
def take(one, other):
    with one:
        both.wait()
        other.acquire()
with mt.watch('self', hang=None, on_incident=lambda _: seen.set()) as watcher:
    for pair in ((first, second), (second, first)):
        threading.Thread(target=take, args=pair, daemon=True).start()
    seen.wait()
assert watcher.incidents[0].kind.value == 'deadlock'
""",
}


def run(code: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """Run a new interpreter without a cache of the user."""
    variables = {"HOME": cache, "XDG_CACHE_HOME": cache / "cache", "MACHTRACE_CACHE": cache / "own"}
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env=os.environ | {name: str(path) for name, path in variables.items()},
    )


@pytest.fixture(scope="session")
def with_thread(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Code that starts a thread in a library with debug information, if there is a compiler."""
    library = tmp_path_factory.mktemp("library") / "wait_for_byte.so"
    command = ["cc", "-g", "-fPIC", "-shared", str(PROGRAMS / "wait_for_byte.c")]
    if (
        shutil.which("cc") is None
        or subprocess.run(
            [*command, "-o", str(library)], capture_output=True, check=False
        ).returncode
    ):
        return ""
    return WITH_THREAD.format(library=str(library))


@pytest.mark.parametrize("capture", CAPTURES)
def test_nothing_is_imported_after_the_first_stop(
    capture: str, with_thread: str, tmp_path: Path
) -> None:
    """First the index of debug information is built, then it is in the cache."""
    code = FORBID.format(limit=LIMIT_S - 10, begins=BEGINS) + with_thread + CAPTURES[capture]
    for _ in range(2):
        done = run(f"{code}\nprint('well', flush=True); os._exit(0)", tmp_path)
        assert done.stdout == "well\n", done.stderr


ENTRIES = {
    "machtrace.pipeline.inprocess.backtrace",
    "machtrace.pipeline.inprocess.fast_path",
    "machtrace.pipeline.backtraces",
    "machtrace.pipeline.explanation",
    "machtrace.sampling.api",
    "machtrace.watching.own.watcher",
}
OTHERS = (
    "html",  # pages only
    "machtrace._native._ptrace",
    "machtrace.formats.elf.core.writer",
    "machtrace.formats.macho",
    "machtrace.images.dsym",
    "machtrace.lines.debug_map",
    "machtrace.pipeline.explanation",
    "machtrace.symbolizer.columns",
    "machtrace.symbols.macho",
    "machtrace.targets.core",
    "machtrace.targets.darwin",
    "machtrace.targets.emulator",
    "machtrace.targets.frida",
    "machtrace.targets.gdbremote",
    "machtrace.targets.inprocess.darwin",
    "machtrace.targets.ios",
    "machtrace.targets.linux.crash",
    "machtrace.targets.linux.freeze",
    "machtrace.targets.linux.process",
    "machtrace.targets.linux.watched",
    "machtrace.unwinder.arch.arm32",
    "machtrace.unwinder.sources.exidx",
    "machtrace.unwinder.sources.of_macho",
    "machtrace.watching.own",
)
"""Imports for other systems, machines and processes, and those that are no part of a capture."""
OTHER_IMPORTERS = (
    "machtrace.formats.macho",
    "machtrace.images.dsym",
    "machtrace.lines.worker",  # runs in a process of its own
    "machtrace.watching.own.record",
)


@pytest.mark.skipif(sys.platform != "linux", reason="takes Linux: other modules are used elsewhere")
def test_what_functions_import_is_imported_before(tmp_path: Path) -> None:
    """Also what only some images and some errors need, which no capture here may have."""
    code = f"""
import importlib, sys
import machtrace as mt
for name in {sorted(ENTRIES)}:
    importlib.import_module(name)
with mt.watch("self", hang=None), mt.open_target("self") as target:
    target.series(1).close()
for name, module in sys.modules.items():
    print(name, getattr(module, "__file__", None) or "")
"""
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stderr
    loaded = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert loaded.keys() >= ENTRIES
    late = {
        f"{importer}:{line} imports {name}"
        for importer, file in loaded.items()
        if importer.startswith("machtrace.") and file.endswith(".py")
        if not importer.startswith(OTHER_IMPORTERS)
        for line, name in imported_by_functions(ast.parse(Path(file).read_text()).body)
        if name not in loaded and not name.startswith(OTHERS)
    }
    assert not late, "add it to machtrace.targets.inprocess.preload"


def test_the_modules_that_are_imported_before_exist() -> None:
    """One that is not found would be left out, as an extension is that is not installed."""
    names = {
        *preload.MODULES,
        *(name for names in preload.MODULES_BY_FORMAT.values() for name in names),
    }
    own = [
        name
        for name in names
        if name.startswith("machtrace.") and not name.startswith("machtrace._native.")
    ]

    assert [name for name in own if find_spec(name) is None] == []


def imported_by_functions(
    nodes: list[ast.stmt] | Iterator[ast.AST], *, is_within: bool = False
) -> Iterator[tuple[int, str]]:
    """Yield the lines and names of modules whose import a module delays."""
    for node in nodes:
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                yield from imported_by_functions(node.orelse, is_within=is_within)
            case ast.Import():
                yield from ((node.lineno, each.name) for each in node.names if is_within)
            case ast.ImportFrom(module="machtrace._native"):
                names = (f"{node.module}.{each.name}" for each in node.names)
                yield from ((node.lineno, name) for name in names if is_within)
            case ast.ImportFrom():
                if is_within:
                    yield node.lineno, node.module or ""
            case _:
                is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                children = ast.iter_child_nodes(node)
                yield from imported_by_functions(children, is_within=is_within or is_function)
