"""Answers to Symbolicator's clients: frames with names, modules with the state of their files.

The rules are those of ``crates/symbolicator-native/src/symbolication`` of
github.com/getsentry/symbolicator, and of ``InstructionInfo`` of github.com/getsentry/symbolic: an
address is that of a return, but for the innermost frame. That one is a return address as well if
the signal is one of a crash and the register of the instruction has another address.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple

from machtrace.demangler import demangle
from machtrace.images.resolver import ImageFiles
from machtrace.model.image import ImageFormat
from machtrace.model.report import ReportedImage
from machtrace.model.symbol import FrameStatus
from machtrace.server.stored_modules import stored_module
from machtrace.server.symbolicator.request import Frame, Request, Stack
from machtrace.symbolizer.report_names import Calls, ReportCall, ReportNames
from machtrace.symbolstore.store import SymbolStore

_WORD = 1 << 64
_ALIGNMENTS = {"arm64": 4, "arm64e": 4, "arm64_32": 4, "armv7": 2, "armv7s": 2, "armv7k": 2}
"""By architecture: the size of the smallest instruction; 1 of all others."""
_PROGRAM_COUNTERS = {"x86_64": "rip", "x86_64h": "rip", "i386": "eip"}
_CRASH_SIGNALS = frozenset({4, 10, 11})
"""SIGILL, SIGBUS and SIGSEGV of Darwin, as Symbolicator has them."""
_ARCHES = {"i386": "x86"}
_LANGUAGES = {
    **dict.fromkeys((".cc", ".cpp", ".cxx", ".c++", ".hpp", ".hh", ".hxx"), "cpp"),
    ".c": "c",
    ".m": "objc",
    ".mm": "objcpp",
    ".swift": "swift",
    ".rs": "rust",
    ".go": "go",
}
_MISSING, _MALFORMED, _FOUND, _UNUSED = "missing", "malformed", "found", "unused"
_SOURCE = "machtrace"


class _Named(NamedTuple):
    """A module with the files of the store."""

    status: str
    arch: str
    features: Mapping[str, bool]
    image: ReportedImage | None


class _Place(NamedTuple):
    """Where a frame is."""

    module: int
    offset: int | None
    """None if the module has no address that it could count from."""


_NOTHING = _Named(_UNUSED, "unknown", {}, None)


def symbolicated(request: Request, names: ReportNames, store: SymbolStore) -> dict[str, Any]:
    """Return the answer to a request, without its ``status``.

    Args:
        request: the stacks.
        names: the symbols of the store.
        store: the files.
    """
    return _Answer(request, names, store).document()


class _Answer:
    def __init__(self, request: Request, names: ReportNames, store: SymbolStore) -> None:
        self._request = request
        self._modules = request.modules
        self._names = names
        self._order = sorted(range(len(self._modules)), key=lambda at: self._modules[at].start)
        self._starts = [self._modules[at].start for at in self._order]
        self._sizes = self._module_sizes()
        places = [[self._place(frame) for frame in stack.frames] for stack in request.stacks]
        used = {place.module for row in places for place in row if place is not None}
        self._files = {number: self._open(number, store) for number in sorted(used)}
        self._lookups = [
            [self._lookup(stack, at, place) for at, place in enumerate(row)]
            for stack, row in zip(request.stacks, places, strict=True)
        ]
        self._places = places
        self._calls = self._named()

    def document(self) -> dict[str, Any]:
        """Return the answer."""
        answer: dict[str, Any] = {} if self._request.signal is None else {"signal": self._signal}
        answer["stacktraces"] = [
            self._stack(*rows)
            for rows in zip(self._request.stacks, self._places, self._lookups, strict=True)
        ]
        answer["modules"] = [self._module(number) for number in range(len(self._modules))]
        return answer

    @property
    def _signal(self) -> int:
        return self._request.signal or 0

    # --- modules ---

    def _module_sizes(self) -> list[int]:
        """Return the sizes of modules; one of an unknown size ends where the next one begins."""
        sizes = [module.size for module in self._modules]
        for at, following in zip(self._order, self._starts[1:], strict=False):
            sizes[at] = sizes[at] or following - self._modules[at].start
        return sizes

    def _place(self, frame: Frame) -> _Place | None:
        if frame.module is not None:
            is_known = frame.module < len(self._modules)
            return _Place(frame.module, frame.address) if is_known else None
        rank = bisect_right(self._starts, frame.address) - 1
        if rank < 0:
            return None
        number = self._order[rank]
        start, size = self._modules[number].start, self._sizes[number]
        if size and start + size < frame.address:
            return None
        return _Place(number, frame.address - start if start else None)

    def _open(self, number: int, store: SymbolStore) -> _Named:
        module = self._modules[number]
        stored = stored_module(store, module.debug_id, module.code_id)
        if stored is None:
            return _Named(_MISSING, "unknown", {}, None)
        image = ReportedImage(
            uuid=stored.identifier, name=_file_name(module.code_file or ""), arch=stored.arch
        )
        files = self._names.files(image)
        if not isinstance(files, ImageFiles):
            is_malformed = files is FrameStatus.MALFORMED_FILE
            return _Named(_MALFORMED if is_malformed else _MISSING, "unknown", {}, None)
        return _Named(_FOUND, stored.arch or "unknown", _features(files), image)

    def _module(self, number: int) -> dict[str, Any]:
        module, named = self._modules[number], self._files.get(number, _NOTHING)
        features = {name: named.features.get(name, False) for name in _FEATURES}
        answer = {
            "debug_status": named.status,
            "features": features,
            "arch": _ARCHES.get(named.arch, named.arch),
            **module.fields,
        }
        if self._sizes[number]:
            answer["image_size"] = self._sizes[number]
        if self._request.has_candidates and named.status != _UNUSED:
            answer["candidates"] = [_candidate(named, features)]
        return answer

    # --- frames ---

    def _lookup(self, stack: Stack, at: int, place: _Place | None) -> int | None:
        """Return the offset in the module that names the frame; None if there is none."""
        if place is None or place.offset is None:
            return None
        start, arch = self._modules[place.module].start, self._files[place.module].arch
        if not start or place.offset + start >= _WORD:
            return place.offset
        frame, address = stack.frames[at], place.offset + start
        alignment = _ALIGNMENTS.get(arch, 1)
        aligned = address - address % alignment
        adjust = frame.adjust
        if adjust is None and any(each.adjust is not None for each in stack.frames):
            adjust = True
        if adjust is None:
            adjust = at > 0 or self._is_return(stack, address, arch)
        offset = (max(0, aligned - alignment) if adjust else aligned) - start
        return offset if offset >= 0 else None

    def _is_return(self, stack: Stack, address: int, arch: str) -> bool:
        counter = stack.registers.get(_PROGRAM_COUNTERS.get(arch, "pc"))
        return counter not in (None, address) and self._request.signal in _CRASH_SIGNALS

    def _named(self) -> dict[int, dict[int, Calls]]:
        """Return the calls at all offsets, by module."""
        wanted: dict[int, set[int]] = defaultdict(set)
        for places, offsets in zip(self._places, self._lookups, strict=True):
            for place, offset in zip(places, offsets, strict=True):
                if place is not None and offset is not None:
                    wanted[place.module].add(offset)
        return {
            number: self._names.find(image, offsets)
            for number, offsets in wanted.items()
            if (image := self._files[number].image) is not None
        }

    def _stack(
        self, stack: Stack, places: Sequence[_Place | None], offsets: Sequence[int | None]
    ) -> dict[str, Any]:
        frames: list[dict[str, Any]] = []
        for at, (frame, place, offset) in enumerate(
            zip(stack.frames, places, offsets, strict=True)
        ):
            made = self._frames(frame, place, offset)
            is_last = at + 1 == len(stack.frames)
            if isinstance(made, str) and not _is_left_out(frame, made, frames, is_last=is_last):
                made = [self._unnamed(frame, place, made)]
            if not isinstance(made, str):
                frames += ({"original_index": at, **each} for each in made)
        answer: dict[str, Any] = dict(stack.fields)
        if stack.registers:
            answer["registers"] = {name: hex(value) for name, value in stack.registers.items()}
        answer["frames"] = frames[::-1] if self._request.is_caller_first else frames
        return answer

    def _frames(
        self, frame: Frame, place: _Place | None, offset: int | None
    ) -> list[dict[str, Any]] | str:
        """Return the calls of a frame, or why it has none."""
        if place is None:
            return "unknown_image"
        status = self._files[place.module].status
        if status != _FOUND:
            return status
        calls = self._calls.get(place.module, {}).get(offset, ()) if offset is not None else ()
        if not calls or offset is None:
            return "missing_symbol"
        module = self._modules[place.module]
        common = {
            "status": "symbolicated",
            "instruction_addr": hex(module.start + offset),
            **({} if module.start else {"addr_mode": f"rel:{place.module}"}),
            **({} if module.code_file is None else {"package": module.code_file}),
        }
        sent = ("platform", "adjust_instruction_addr", "function_id", "trust")
        common |= {name: frame.fields[name] for name in sent if name in frame.fields}
        is_macho = self._is_macho(place.module)
        made = [{**common, **_call(call, frame, is_macho=is_macho)} for call in calls]
        if (start := calls[-1].start) is not None:
            made[-1]["sym_addr"] = hex(module.start + start)
        return made

    def _is_macho(self, number: int) -> bool:
        image = self._files[number].image
        return (
            image is not None
            and image.uuid is not None
            and ImageFormat.identified_by(image.uuid) is ImageFormat.MACHO
        )

    def _unnamed(self, frame: Frame, place: _Place | None, status: str) -> dict[str, Any]:
        answer = {"status": status, **frame.fields}
        if place is not None:
            answer.pop("package", None)
            if (file := self._modules[place.module].code_file) is not None:
                answer["package"] = file
        function, symbol = answer.get("function"), answer.get("symbol")
        mangled = function or symbol
        if mangled and not (function and symbol) and (made := demangle(mangled)) != mangled:
            answer |= {"function": made, "symbol": mangled}
        return answer


def _is_left_out(
    frame: Frame, status: str, before: Sequence[Mapping[str, Any]], *, is_last: bool
) -> bool:
    """Return whether an unnamed frame is one of a stack scan, or follows the start of a program."""
    if frame.fields.get("trust") == "scan" and status in ("missing_symbol", "unknown_image"):
        return True
    is_after_start = bool(before) and before[-1].get("function") == "_start"
    return status == "unknown_image" and is_last and is_after_start


def _call(call: ReportCall, frame: Frame, *, is_macho: bool) -> dict[str, Any]:
    """Return the fields of a function."""
    full, symbol = (call.others[0], call.others[1]) if len(call.others) > 1 else (call.name, "")
    symbol = symbol or call.name
    if is_macho and symbol.startswith("_") and symbol != full:
        symbol = symbol[1:] if not symbol.startswith("_Z") else symbol
    path = call.location.path if call.location is not None else ""
    answer: dict[str, Any] = {"symbol": symbol, "function": full or call.name}
    language = _language(symbol, path)
    if language:
        answer["lang"] = language
    for name, text in (("abs_path", path), ("filename", _file_name(path))):
        if text or name in frame.fields:
            answer[name] = text or frame.fields[name]
    answer["lineno"] = 0 if call.location is None else call.location.line or 0
    return answer


def _language(symbol: str, path: str) -> str:
    if symbol.startswith(("$s", "$S", "_$s", "_$S", "_T0")):
        return "swift"
    return _LANGUAGES.get(PurePosixPath(path).suffix.lower(), "")


def _file_name(path: str) -> str:
    is_windows = "\\" in path and "/" not in path
    return (PureWindowsPath(path) if is_windows else PurePosixPath(path)).name


_FEATURES = ("has_debug_info", "has_unwind_info", "has_symbols", "has_sources")


def _features(files: ImageFiles) -> dict[str, bool]:
    binary = files.binary
    contents = files.twins(None)
    if not isinstance(binary, FrameStatus):
        contents.append(binary)
    return {
        "has_debug_info": not isinstance(files.lines, FrameStatus),
        "has_unwind_info": not isinstance(binary, FrameStatus),
        "has_symbols": any(content.image.symbol_count > 0 for content in contents),
    }


def _candidate(named: _Named, features: Mapping[str, bool]) -> dict[str, Any]:
    """Return what Symbolicator states of a file that it considered."""
    if named.status == _MISSING:
        nothing = "No object files listed on this source"
        return {"source": _SOURCE, "location": nothing, "download": {"status": "notfound"}}
    uuid = "" if named.image is None or named.image.uuid is None else named.image.uuid.hex
    is_found = named.status == _FOUND
    download = {"status": "ok", "features": dict(features)} if is_found else {"status": _MALFORMED}
    state = {"status": "ok" if is_found else _MALFORMED}
    return {"source": _SOURCE, "location": uuid, "download": download, "debug": state}
