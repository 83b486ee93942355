"""The stack of an incident as text: the program's own functions, without the interpreter's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from machtrace.model.stack import NO_ADDRESS
from machtrace.model.symbol import CallStack, Frame, FrameStatus
from machtrace.model.text import Style, counted, printable, short_location

if TYPE_CHECKING:  # the values import the text of incidents
    from machtrace.model.incident.facts import Culprit

_FRAMES = 10
"""Functions of a stack that a terminal shows."""
_INNERMOST = 3
"""Functions that are shown at the inner end if the culprit is further out than :data:`_FRAMES`."""
_MAX_NAME_LENGTH = 72


def condensed(stack: CallStack) -> tuple[CallStack, int]:
    """Return a stack of Python functions without most of the interpreter, and the omitted frames.

    Frames inside of the innermost Python function are complete; between Python functions those of
    extension modules stay. A stack without Python functions, or with a gap, is unchanged.
    """
    frames = stack.frames
    running = [at for at, frame in enumerate(frames) if frame.python and not frame.is_python]
    if not running or stack.gap is not None:
        return stack, 0
    shown = [*frames[: running[0]]]
    for frame in frames[running[0] : running[-1] + 1]:
        if frame.python:
            shown.append(python_alone(frame))
        elif frame.image is None or not frame.image.name.startswith(_INTERPRETERS):
            shown.append(frame)
    return replace(stack, frames=tuple(shown)), len(frames) - len(shown)


_INTERPRETERS = ("libpython", "python", "Python")


def python_alone(frame: Frame) -> Frame:
    """Return an interpreter's frame as the Python functions that it runs."""
    return Frame(address=NO_ADDRESS, status=FrameStatus.PYTHON, python=frame.python)


def stack_lines(stack: CallStack, style: Style) -> Iterator[str]:
    """Yield a stack as an incident shows it."""
    shown, omitted = condensed(stack)
    yield from shown.text_lines(style=style)
    if omitted:
        frames = counted(omitted, "frame") + " of the interpreter omitted"
        yield f"   …  {style.dim}{frames}{style.reset}"


class StackFunction(NamedTuple):
    """A function of a stack, as a terminal shows it."""

    name: str
    where: str
    """The file and the line, else the image."""
    is_python: bool = False
    path: str = ""
    image: str = ""


def functions_of(stack: CallStack) -> list[StackFunction]:
    """Return the functions of a stack, innermost first; of a Python program its own.

    Native functions stay inside of the innermost Python function.
    """
    functions: list[StackFunction] = []
    has_python = False
    for frame in stack.frames:
        image = "???" if frame.image is None else frame.image.label
        native = [(call.name, call.location) for call in frame.inlined]
        if not frame.is_python:
            native.append((frame.symbol.name if frame.symbol else "?", frame.location))
        if not (has_python or frame.python):
            functions += [
                StackFunction(
                    printable(name) or "?",
                    printable(image) if at is None else short_location(at.path, at.line),
                    image=image,
                )
                for name, at in native
            ]
        for function in frame.python:
            has_python = True
            at = function.location
            where = short_location(at.path, at.line)
            functions.append(StackFunction(printable(function.name), where, True, at.path))  # noqa: FBT003
    return functions


def short_stack_lines(
    stack: CallStack, culprit: Culprit | None, style: Style, *, has_report: bool
) -> Iterator[str]:
    """Yield about ten functions of a stack, with the culprit among them."""
    functions = functions_of(stack)
    if culprit is not None and culprit.native is not None:
        # Frames between a Python function and the native one that it calls are the interpreter's.
        python = next((at for at, function in enumerate(functions) if function.is_python), 0)
        native = [at for at in range(python) if functions[at].name == culprit.native]
        if native:
            functions[native[-1] + 1 : python] = []
    while len(functions) > 1 and _starts_thread(functions[-1]):
        functions.pop()
    name = None if culprit is None else printable(culprit.function)
    named = next((at for at, function in enumerate(functions) if function.name == name), 0)
    first, skipped = _FRAMES, 0
    if named >= _FRAMES:
        first, skipped = _INNERMOST, named - _INNERMOST - 1
    shown = list(enumerate(functions))
    rows = [*shown[:first], *shown[first + skipped :][: _FRAMES - first]]
    width = max((len(short_name(function.name)) for _, function in rows), default=0)
    for at, function in rows:
        if skipped and at == first + skipped:
            yield f"   …  {style.dim}{counted(skipped, 'frame')}{style.reset}"
        name = f"{short_name(function.name):<{width}}"
        yield f"  {at:>2}  {name}  {style.dim}{function.where}{style.reset}"
    more = len(functions) - skipped - len(rows)
    if more:
        where = ", in the report" if has_report else ""
        yield f"   …  {style.dim}{counted(more, 'more frame', 'more frames')}{where}{style.reset}"


def short_name(name: str) -> str:
    """Return a function's name without most of its parameters if it is long."""
    if len(name) <= _MAX_NAME_LENGTH:
        return name
    depth, short = 0, ""
    for at, letter in enumerate(name):
        if letter in ">)" and depth and name[at - 1] != "-":
            depth -= 1
        if not depth:
            short += letter
        if letter in "<(" and not name.startswith("(anonymous", at):
            short += "" if depth else "…"
            depth += 1
        elif letter == "(":
            depth += 1
            short += "anonymous" if depth == 1 else ""
    return short if len(short) <= _MAX_NAME_LENGTH else f"{short[: _MAX_NAME_LENGTH - 1]}…"


def own_function(functions: Sequence[StackFunction]) -> StackFunction | None:
    """Return the innermost function that is the program's own, not of a library of its language."""
    pythons = [function for function in functions if function.is_python]
    if pythons:
        own = (function for function in pythons if not is_library(function.path))
        return next(own, pythons[0])
    return next(
        (function for function in functions if not function.image.startswith(_SYSTEM)), None
    )


_SYSTEM = ("libc.so", "libc-", "libpthread", "ld-linux", "ld-musl", "libsystem_", "[vdso]", "???")


def _starts_thread(function: StackFunction) -> bool:
    return function.name == "_start" or function.image.startswith(_SYSTEM[:-1])


def is_library(path: str) -> bool:
    """Return whether a Python file belongs to an installed library or the standard one."""
    return "/lib/python" in path or "/lib64/python" in path or path.startswith("<")
