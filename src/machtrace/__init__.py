"""The call stack of any thread, on Apple platforms and beyond.

    target ──▶ threads + registers + stack bytes ──▶ unwind ──▶ addresses ─┐
          └──▶ images (uuid, load address, segments) ──────────────────────┴▶ symbolicate ──▶ frames
    frames ──▶ report

Each arrow is a value of :mod:`machtrace.model`. Only :mod:`machtrace.targets` talks to a
process; all else is a function of what it returned.

    >>> import machtrace as mt
    >>> for stack in mt.backtraces("emulated:demo"):
    ...     print(stack.thread.name, [frame.symbol.name for frame in stack.frames])

What is named here is loaded when it is first used.
"""

from importlib import import_module

TYPE_CHECKING = False  # as type checkers read it; typing's own costs an import

if TYPE_CHECKING:
    __version__: str
    """The version of the installed package."""
    from machtrace.demangler import demangle
    from machtrace.errors import MachtraceError
    from machtrace.model.symbol import unique_stacks
    from machtrace.pipeline.backtraces import backtraces, snapshot
    from machtrace.pipeline.explanation import explain
    from machtrace.pipeline.inprocess.backtrace import backtrace
    from machtrace.pipeline.inprocess.fast_path import (
        call_stack_return_addresses,
        call_stack_symbols,
    )
    from machtrace.pipeline.snapshot_writer import save_snapshot
    from machtrace.reports.files import read_report, read_reports, write_report
    from machtrace.sampling.api import sample
    from machtrace.symbolizer.symbolicator import Symbolicator
    from machtrace.targets.inprocess.beacons import deadline
    from machtrace.targets.open import open_target
    from machtrace.unwinder.unwinder import Unwinder, unwind
    from machtrace.warehouse.warehouse import Warehouse
    from machtrace.watching.api import watch

_HOMES = {
    "MachtraceError": "machtrace.errors",
    "Symbolicator": "machtrace.symbolizer.symbolicator",
    "Unwinder": "machtrace.unwinder.unwinder",
    "Warehouse": "machtrace.warehouse.warehouse",
    "backtrace": "machtrace.pipeline.inprocess.backtrace",
    "backtraces": "machtrace.pipeline.backtraces",
    "call_stack_return_addresses": "machtrace.pipeline.inprocess.fast_path",
    "call_stack_symbols": "machtrace.pipeline.inprocess.fast_path",
    "deadline": "machtrace.targets.inprocess.beacons",
    "demangle": "machtrace.demangler",
    "explain": "machtrace.pipeline.explanation",
    "open_target": "machtrace.targets.open",
    "read_report": "machtrace.reports.files",
    "read_reports": "machtrace.reports.files",
    "sample": "machtrace.sampling.api",
    "save_snapshot": "machtrace.pipeline.snapshot_writer",
    "snapshot": "machtrace.pipeline.backtraces",
    "unique_stacks": "machtrace.model.symbol",
    "unwind": "machtrace.unwinder.unwinder",
    "watch": "machtrace.watching.api",
    "write_report": "machtrace.reports.files",
}

__all__ = [
    "MachtraceError",
    "Symbolicator",
    "Unwinder",
    "Warehouse",
    "backtrace",
    "backtraces",
    "call_stack_return_addresses",
    "call_stack_symbols",
    "deadline",
    "demangle",
    "explain",
    "open_target",
    "read_report",
    "read_reports",
    "sample",
    "save_snapshot",
    "snapshot",
    "unique_stacks",
    "unwind",
    "watch",
    "write_report",
]


def __getattr__(name: str) -> object:
    """Load a public name from its home and keep it here."""
    if name == "__version__":
        from importlib.metadata import version

        return version("machtrace")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from machtrace.extension_imports import libraries_first

    with libraries_first():
        value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted({*globals(), *__all__})
