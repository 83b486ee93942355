"""``/symbolicate/v5``, the interface of Mozilla's symbol server: offsets in modules to names."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple, TypeAlias

from machtrace.model.report import NameSource, ReportedImage
from machtrace.model.symbol import FrameStatus
from machtrace.server.limits import BAD_REQUEST, TOO_LARGE, RefusedError
from machtrace.server.stored_modules import parse_debug_id, stored_module
from machtrace.symbolizer.report_names import Calls, ReportCall, ReportNames
from machtrace.symbolstore.store import SymbolStore

_MISSING = {"name": "NoCandidatePathForDebugFile", "message": "the server has no symbols of it"}
"""As samply states it."""
Module: TypeAlias = tuple[str, str]
"""The name and the id of a debug file."""


class Job(NamedTuple):
    """Stacks, and the modules that they are in."""

    modules: list[Module]
    stacks: list[list[tuple[int, int]]]
    """The module of each frame, -1 for none, and the offset in it, -1 if unknown."""


def read_jobs(document: object, most: int) -> list[Job]:
    """Return the jobs of a request.

    Args:
        document: the request: a job, or an object with a list of them.
        most: the number of frames.

    Raises:
        RefusedError: it is malformed.
    """
    if not isinstance(document, dict):
        raise RefusedError(BAD_REQUEST, "the request is no JSON object")
    jobs = document.get("jobs", [document])
    if not isinstance(jobs, list):
        raise RefusedError(BAD_REQUEST, "jobs is no list")
    made = [_job(job) for job in jobs]
    if sum(len(stack) for job in made for stack in job.stacks) > most:
        raise RefusedError(TOO_LARGE, f"more than {most} frames")
    return made


def symbolicated(jobs: list[Job], names: ReportNames, store: SymbolStore) -> dict[str, Any]:
    """Return the answer to jobs.

    Args:
        jobs: the request.
        names: the symbols of the store.
        store: the files.
    """
    wanted: dict[Module, set[int]] = defaultdict(set)
    for job in jobs:
        for stack in job.stacks:
            for number, offset in stack:
                if number >= 0 and offset >= 0:
                    wanted[job.modules[number]].add(offset)
    found_modules: dict[Module, bool] = {}
    calls: dict[Module, dict[int, Calls]] = {}
    for module, offsets in wanted.items():
        image = _image(module, store)
        has_file = image is not None and names.status(image) is FrameStatus.SYMBOLICATED
        found_modules[module] = has_file
        calls[module] = _calls(names, image, offsets) if image is not None and has_file else {}
    return {"results": [_result(job, calls, found_modules) for job in jobs]}


def _calls(names: ReportNames, image: ReportedImage, offsets: set[int]) -> dict[int, Calls]:
    """Return the calls at offsets; functions without a name get one of their starts."""
    calls = names.find(image, offsets)
    functions = names.functions(image, (offset for offset in offsets if not calls[offset]))
    for offset, (start, size) in functions.items():
        call = ReportCall(f"fun_{start:x}", start, NameSource.EXACT, None, size=size)
        calls[offset] = (call,)
    return calls


def _job(job: object) -> Job:
    if not isinstance(job, dict):
        raise RefusedError(BAD_REQUEST, "a job is no JSON object")
    modules, stacks = job.get("memoryMap"), job.get("stacks")
    if not isinstance(modules, list) or not isinstance(stacks, list):
        raise RefusedError(BAD_REQUEST, "a job has memoryMap and stacks, which are lists")
    for module in modules:
        if not _is_pair(module, str) or not all(c in _HEX for c in module[1]):
            raise RefusedError(BAD_REQUEST, "a module is a name and an id in hexadecimal")
    for stack in stacks:
        if not isinstance(stack, list) or not all(_is_frame(each, len(modules)) for each in stack):
            raise RefusedError(BAD_REQUEST, "a frame is the index of a module and an offset, or -1")
    return Job(
        [(name, identity) for name, identity in modules],
        [[(module, offset) for module, offset in stack] for stack in stacks],
    )


_HEX = frozenset("0123456789abcdefABCDEF")


def _is_pair(value: object, kind: type) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(each) is kind for each in value)  # noqa: PLR2004


def _is_frame(value: object, modules: int) -> bool:
    if not isinstance(value, list) or not _is_pair(value, int):
        return False
    module, offset = value
    return bool(-1 <= module < modules and -1 <= offset < 1 << 64)


def _image(module: Module, store: SymbolStore) -> ReportedImage | None:
    """Return the stored image of a module; None if there is none of its id."""
    stored = stored_module(store, parse_debug_id(module[1]), module[1])
    if stored is None:
        return None
    return ReportedImage(uuid=stored.identifier, name=module[0], arch=stored.arch)


def _result(
    job: Job, calls: dict[Module, dict[int, Calls]], found_modules: dict[Module, bool]
) -> dict[str, Any]:
    stacks = [
        [_frame(number, job, frame, calls) for number, frame in enumerate(stack)]
        for stack in job.stacks
    ]
    used = {job.modules[module] for stack in job.stacks for module, _ in stack if module >= 0}
    states = {
        f"{module[0]}/{module[1]}": found_modules.get(module) if module in used else None
        for module in job.modules
    }
    answer: dict[str, Any] = {"stacks": stacks, "found_modules": states}
    missing = [name for name, is_found in states.items() if is_found is False]
    if missing:
        answer["module_errors"] = {name: [_MISSING] for name in missing}
    return answer


def _frame(
    number: int, job: Job, frame: tuple[int, int], calls: dict[Module, dict[int, Calls]]
) -> dict[str, Any]:
    module, offset = frame
    answer: dict[str, Any] = {
        "frame": number,
        "module": job.modules[module][0] if module >= 0 else "<unknown>",
        "module_offset": hex(offset),
    }
    own = calls.get(job.modules[module], {}).get(offset, ()) if module >= 0 else ()
    if not own:
        return answer
    outer = own[-1]
    answer["function"] = outer.name
    if outer.start is not None:
        answer["function_offset"] = hex(offset - outer.start)
    if outer.size:
        answer["function_size"] = hex(outer.size)
    answer |= _place(outer)
    if len(own) > 1:
        answer["inlines"] = [{"function": call.name, **_place(call)} for call in own[:-1]]
    return answer


def _place(call: ReportCall) -> dict[str, Any]:
    if call.location is None:
        return {}
    place = {"file": call.location.path}
    return place if not call.location.line else {**place, "line": call.location.line}
