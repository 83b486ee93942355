"""How stacks are captured and unwound, and how their frames are named."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from machtrace.errors import ArgumentError, TargetSpecError
from machtrace.frozen import dataclass

PythonView: TypeAlias = bool | Literal["only"]
ONLY: Final = "only"
"""The view of Python functions without native frames."""

WITHOUT_PYTHON = "omit --python (in Python: python=True)"
"""The hint of errors of Python functions."""

DEFAULT_FRAME_LIMIT = 512
"""Frames per stack. The default alone keeps both ends of a deeper stack."""

DEFAULT_STACK_LIMIT = 16 << 20
"""Bytes copied of each thread's stack: at most those between its stack pointer and its base.

Main threads have 8 MiB; a stack that has overflowed used all of its own.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkOptions:
    """How much of each stack is copied, and how much of it is returned."""

    limit: int = DEFAULT_FRAME_LIMIT
    """Maximum frames per stack: the innermost; the default keeps both ends of a deeper stack."""
    stack_limit: int = DEFAULT_STACK_LIMIT
    """Maximum bytes copied of each stack."""
    scan: bool = False
    """Whether a stack is scanned for return addresses wherever it would be incomplete. Without, it
    is scanned in frames that nothing describes, near their stack pointer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameOptions:
    """The facts to look up for each frame, and the files to search.

    Raises:
        TargetSpecError: Python functions are requested without names.
        ArgumentError: the view of Python functions is unknown.
    """

    search: tuple[str, ...] = ()
    """Files and folders with the program's images and debug files."""
    symbolicate: bool = True
    """Whether function names are looked up."""
    lines: bool = True
    """Whether source lines and inlined calls are looked up, too."""
    python: PythonView = False
    """Whether the Python functions that CPython's loop runs are read; ``only``: and nothing else is
    shown."""

    def __post_init__(self) -> None:
        if self.python not in (False, True, ONLY):
            raise ArgumentError(
                f"{self.python!r} is no view of Python functions",
                remedy="pass True, False or 'only'",
            )
        if self.python and not self.python_only and not self.symbolicate:
            raise TargetSpecError(
                "Python functions require names: CPython's loop is recognised by its symbol name",
                remedy="omit --no-names, or pass --python=only (in Python: python='only')",
            )

    @property
    def python_only(self) -> bool:
        """Whether native frames are left out."""
        return self.python == ONLY
