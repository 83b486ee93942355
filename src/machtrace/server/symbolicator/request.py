"""Requests of Symbolicator's clients: stacks and modules, checked.

Source: ``docs/api/symbolication.md`` of github.com/getsentry/symbolicator, and its types
``RawFrame``, ``RawStacktrace`` and ``RawObjectInfo``. Unknown fields are left out. ``sources`` and
``scraping`` are read by nothing: the server sends no requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from machtrace.frozen import dataclass
from machtrace.server.limits import BAD_REQUEST, TOO_LARGE, RefusedError
from machtrace.server.stored_modules import DebugId, parse_debug_id

_WORD = 1 << 64
_MAX_LENGTH = 20
"""Characters of a number."""
_TYPES = frozenset({"elf", "macho", "pe", "wasm", "pe_dotnet"})
_ORDERS = {"callee_first": False, "caller_first": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A frame of a request."""

    address: int
    module: int | None
    """The module that the address counts from; None: it is absolute."""
    adjust: bool | None
    """Whether the address is after a call; None: by its place."""
    fields: Mapping[str, Any]
    """All fields as they are sent back if the frame gets no name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A stack, innermost frame first."""

    frames: tuple[Frame, ...]
    registers: Mapping[str, int] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Facts about the thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A module of a request."""

    start: int
    """0: its addresses are relative."""
    size: int
    """In bytes; 0 if unknown."""
    debug_id: DebugId | None
    code_id: str
    code_file: str | None
    fields: Mapping[str, Any]
    """All fields as they are sent back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Stacks, and the modules that they are in."""

    stacks: tuple[Stack, ...]
    modules: tuple[Module, ...]
    signal: int | None = None
    has_candidates: bool = False
    """Whether the answer states which files were considered."""
    is_caller_first: bool = False
    """Whether the frames of the answer are outermost first."""


def read_request(document: object, most: int) -> Request:
    """Return a request of ``/symbolicate``.

    Args:
        document: the body.
        most: the number of frames, and of modules.

    Raises:
        RefusedError: it is malformed, or too large.
    """
    body = _object(document, "the request")
    options = _object(body.get("options") or {}, "options")
    # Its documentation has the name "threads", which its code does not read.
    stacks = _list(body.get("stacktraces", body.get("threads", [])), "stacktraces")
    modules = _list(body.get("modules", []), "modules")
    order = options.get("frame_order", "callee_first")
    if order not in _ORDERS:
        raise RefusedError(BAD_REQUEST, "frame_order is callee_first or caller_first")
    frames = sum(len(stack["frames"]) for stack in stacks if _has_frames(stack))
    if max(frames, len(modules), len(stacks)) > most:
        raise RefusedError(TOO_LARGE, f"more than {most} frames or modules")
    signal = body.get("signal")
    return Request(
        stacks=tuple(_stack(stack, is_reversed=_ORDERS[order]) for stack in stacks),
        modules=tuple(read_module(module) for module in modules),
        signal=None if signal is None else number(signal, "signal"),
        has_candidates=options.get("dif_candidates") is True,
        is_caller_first=_ORDERS[order],
    )


def read_module(value: object) -> Module:
    """Return a module.

    Raises:
        RefusedError: it is malformed.
    """
    module = _object(value, "a module")
    kind = module.get("type")
    fields: dict[str, Any] = {"type": kind if kind in _TYPES else "unknown"}
    names = ("code_id", "code_file", "debug_id", "debug_file", "debug_checksum")
    fields |= {name: text for name in names if (text := _text(module, name)) is not None}
    debug_id = parse_debug_id(fields.pop("debug_id", ""))
    if debug_id is not None:
        fields["debug_id"] = str(debug_id)
    code_id = fields.pop("code_id", "").lower()
    if code_id and all(each in "0123456789abcdef" for each in code_id):
        fields["code_id"] = code_id
    start, size = number(module.get("image_addr", 0), "image_addr"), module.get("image_size")
    fields["image_addr"] = hex(start)
    if size is not None:
        fields["image_size"] = number(size, "image_size")
    return Module(
        start=start,
        size=fields.get("image_size", 0),
        debug_id=debug_id,
        code_id=fields.get("code_id", ""),
        code_file=fields.get("code_file"),
        fields=fields,
    )


def number(value: object, name: str) -> int:
    """Return an unsigned number of 64 bits, sent as one or as text, ``0x`` before hexadecimal.

    Raises:
        RefusedError: it is none.
    """
    if type(value) is int and -_WORD // 2 <= value < _WORD:
        return value % _WORD
    if isinstance(value, str) and value.isascii() and 0 < len(value) <= _MAX_LENGTH:
        is_hex = value[:2] in ("0x", "0X")
        digits = value[2:] if is_hex else value
        try:
            made = int(digits, 16 if is_hex else 10) if digits.isalnum() else -1
        except ValueError:
            made = -1
        if 0 <= made < _WORD:
            return made
    raise RefusedError(BAD_REQUEST, f"{name} is no number of 64 bits")


def _stack(value: object, *, is_reversed: bool) -> Stack:
    stack = _object(value, "a stack")
    frames = tuple(_frame(each) for each in _list(stack.get("frames"), "frames"))
    registers = _object(stack.get("registers") or {}, "registers")
    kinds = {"thread_id": _unsigned, "thread_name": _is_text, "is_requesting": _is_boolean}
    return Stack(
        frames=frames[::-1] if is_reversed else frames,
        registers={name: number(each, "a register") for name, each in registers.items()},
        fields=_known(stack, kinds),
    )


def _frame(value: object) -> Frame:
    frame = _object(value, "a frame")
    fields = _known(frame, _FIELDS)
    for name in ("instruction_addr", "sym_addr", "function_id"):
        if name in fields or name == "instruction_addr":
            fields[name] = hex(number(frame.get(name), name))
    mode, module = fields.pop("addr_mode", "abs"), None
    if mode != "abs":
        kind, _, index = mode.partition(":")
        if kind != "rel":
            raise RefusedError(BAD_REQUEST, "addr_mode is abs or rel:NUMBER")
        module = number(index, "addr_mode")
        fields["addr_mode"] = f"rel:{module}"
    if fields.get("trust") == "none":
        del fields["trust"]
    address = int(fields["instruction_addr"], 16)
    adjust = fields.get("adjust_instruction_addr")
    return Frame(address=address, module=module, adjust=adjust, fields=fields)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_boolean(value: object) -> bool:
    return isinstance(value, bool)


def _unsigned(value: object) -> bool:
    return type(value) is int and 0 <= value < _WORD


def _is_number(value: object) -> bool:
    return isinstance(value, str) or type(value) is int


def _is_lines(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


_FIELDS: Mapping[str, Callable[[object], bool]] = {
    **dict.fromkeys(("platform", "package", "lang", "symbol", "function", "filename"), _is_text),
    **dict.fromkeys(("abs_path", "context_line", "source_link", "addr_mode", "trust"), _is_text),
    **dict.fromkeys(("adjust_instruction_addr", "in_app"), _is_boolean),
    **dict.fromkeys(("function_id", "sym_addr"), _is_number),
    **dict.fromkeys(("pre_context", "post_context"), _is_lines),
    "lineno": _unsigned,
}


def _known(
    value: Mapping[str, Any], kinds: Mapping[str, Callable[[object], bool]]
) -> dict[str, Any]:
    """Return the known fields that are not null."""
    known: dict[str, Any] = {}
    for name, is_valid in kinds.items():
        if value.get(name) is None:
            continue
        if not is_valid(value[name]):
            raise RefusedError(BAD_REQUEST, f"{name} is of another type")
        known[name] = value[name]
    return known


def _has_frames(stack: object) -> bool:
    return isinstance(stack, dict) and isinstance(stack.get("frames"), list)


def _text(value: Mapping[str, Any], name: str) -> str | None:
    text = value.get(name)
    if text is not None and not isinstance(text, str):
        raise RefusedError(BAD_REQUEST, f"{name} is no text")
    return text


def _object(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RefusedError(BAD_REQUEST, f"{name} is no JSON object")
    return value


def _list(value: object, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise RefusedError(BAD_REQUEST, f"{name} is no list")
    return value
