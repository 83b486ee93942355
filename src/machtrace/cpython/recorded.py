"""The Python functions of threads whose frames were copied as rows, and whose code as memory."""

from __future__ import annotations

from struct import Struct
from struct import error as StructError

from machtrace.cpython.layout import PythonLayout, layout_of
from machtrace.cpython.objects import PythonObjects, function_at
from machtrace.cpython.runs import FrameRow, PythonRuns, RunFinder, memory_error
from machtrace.errors import FormatError, MachtraceError
from machtrace.model.memory import MemoryReader
from machtrace.model.symbol import PythonFrame

_LINK = Struct("<2Q")
_ROW = Struct("<8Q")
"""``machtrace_python_link`` and ``machtrace_python_row`` of ``native/common/python_layout.h``."""


def recorded_runs(
    links: bytes, rows: bytes, memory: MemoryReader, layout: PythonLayout
) -> PythonRuns:
    """Return a thread's runs; None if what was copied is no chain of runs.

    Args:
        links: its C frames and the frames that they lead to.
        rows: its frames.
        memory: the code objects with their names and lines, as they were at that time.
        layout: the interpreter's.
    """
    objects = PythonObjects(memory, layout)

    def function(row: FrameRow) -> PythonFrame:
        return function_at(objects.code(row.code), row.code, row.instruction, layout)

    try:
        pairs = list(_LINK.iter_unpack(links))
        frames = {row[0]: FrameRow(*row[1:]) for row in _ROW.iter_unpack(rows)}

        def frame_at(address: int) -> FrameRow:
            row = frames.get(address)
            if row is None:
                raise memory_error("a frame was not copied", address)
            return row

        runs = RunFinder(layout, frame_at, function).runs(pairs) if pairs else []
    except (MachtraceError, StructError):
        return None
    return tuple(tuple(run.functions) for run in runs)


def layout_in(head: bytes, version: int) -> PythonLayout | None:
    """Return the layout that a record states; None if it is not known here.

    Args:
        head: the start of ``_PyRuntime``.
        version: ``Py_Version``.
    """
    try:
        return layout_of(head, version, "the record")
    except FormatError:
        return None
