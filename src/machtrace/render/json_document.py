"""The machine-readable form: ``--format json``, schema 1.

Addresses are integers; there is one entry for each physical frame. The schema is in
``docs/json-format.md``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, TextIO

from machtrace.model.capture import (
    BrokenInformation,
    Capture,
    FollowedRule,
    FrameExplanation,
    MethodAnswer,
    StackExplanation,
)
from machtrace.model.cause import Cause
from machtrace.model.image import BinaryImage
from machtrace.model.snapshot import ProcessInfo, ThreadInfo
from machtrace.model.stack import Stop, stretches
from machtrace.model.symbol import CallStack, Frame, FrameChain
from machtrace.model.text import encodable


def explanation(explained: FrameExplanation) -> dict[str, Any]:
    """Return how the caller of a frame was found, and the results of other methods."""
    return {
        "reason": explained.reason,
        "chosen": _answer(explained, explained.chosen),
        "others": [_answer(explained, answer) for answer in explained.others],
    }


def _answer(explained: FrameExplanation, answer: MethodAnswer) -> dict[str, Any]:
    outcome = answer.outcome
    about: dict[str, Any] = {
        "method": answer.method.value,
        "claims": answer.claims,
        "origin": encodable(answer.origin) or None,
        "error": encodable(outcome.error) if isinstance(outcome, BrokenInformation) else None,
    }
    if not isinstance(outcome, FollowedRule):
        return about | dict.fromkeys(
            ("rule", "cfa", "return_address_at", "agrees", "caller", "stop")
        )
    caller = outcome.caller
    return about | {
        "rule": outcome.rule,
        "cfa": outcome.cfa,
        "return_address_at": outcome.return_address_at,
        "agrees": explained.agrees(answer),
        "caller": None
        if isinstance(caller, Stop)
        else {
            "address": caller.address.address,
            "kind": caller.address.kind.value,
            "image": None if caller.image is None else encodable(caller.image.name),
            "symbol": None if caller.symbol is None else caller.symbol.name,
            "symbol_offset": caller.symbol_offset,
        },
        "stop": {"reason": caller.reason.value, "at": caller.at}
        if isinstance(caller, Stop)
        else None,
    }


SCHEMA = 1
"""Raised when a reader of the old form would misread the new one."""


def process_entry(process: ProcessInfo) -> dict[str, Any]:
    """Return a process."""
    return {
        "pid": process.pid,
        "name": encodable(process.name),
        "path": encodable(process.path),
        "arch": process.arch.value,
    }


def document(report: Capture, *, registers: bool | None = None) -> dict[str, Any]:
    """Return the report as values that :mod:`json` can write.

    ``registers``: whether threads have them; None gives those of a crashed thread.
    """
    values: dict[str, Any] = {
        "schema": SCHEMA,
        "process": process_entry(report.process),
        "images": [image_entry(image) for image in report.images],
        "threads": [
            _thread(stack, explanation, registers=registers)
            for stack, explanation in zip_longest(report.stacks, report.explanations)
        ],
        "problems": [
            {"thread": problem.thread, "error": str(problem.error)} for problem in report.problems
        ],
    }
    if report.without_python:
        values["without_python"] = [_identity(thread) for thread in report.without_python]
    return values


def write(report: Capture, sink: TextIO, *, registers: bool | None = None) -> None:
    """Write the document, indented, with a line end."""
    json.dump(document(report, registers=registers), sink, indent=2)
    sink.write("\n")


def image_entry(image: BinaryImage) -> dict[str, Any]:
    """Return an image as in ``images[]``."""
    return {
        "uuid": image.identifier,
        "path": encodable(image.path),
        "arch": image.arch.value,
        "load_address": image.load_address,
        "size": image.size,
    }


def _identity(info: ThreadInfo) -> dict[str, Any]:
    return {
        "id": info.id,
        "index": info.index,
        "name": None if info.name is None else encodable(info.name),
        "queue": info.queue,
    }


def _thread(
    stack: CallStack, explained: StackExplanation | None, *, registers: bool | None
) -> dict[str, Any]:
    with_registers = stack.thread.crashed if registers is None else registers
    info, rest = stack.thread, stack.physical_remainder
    return {
        **_identity(info),
        "crashed": info.crashed,
        "others": [_identity(other) for other in stack.others],
        "cause": None if info.cause is None else _cause(info.cause),
        "gil": None if info.gil is None else info.gil.value,
        **_waits_for(info),
        "stopped_for_ns": stack.stopped_for_ns,
        "overflowed_stack": stack.overflowed_stack,
        "stop": _stop(stack.stop),
        "gap": _gap(stack),
        "registers": dict(stack.registers) if with_registers else None,
        "frames": _frames(stack, None if explained is None else explained.frames),
        "physical_stop": None if rest is None else _stop(rest.stop),
        "physical_gap": None if rest is None else _gap(rest),
        "physical_remainder": []
        if rest is None
        else _frames(rest, None if explained is None else explained.physical_remainder),
    }


def _waits_for(info: ThreadInfo) -> dict[str, Any]:
    """Return the key ``waits_for``, where it is known."""
    wait = info.waits_for
    if wait is None:
        return {}
    owner = None if wait.owner is None else wait.owner._asdict()
    entry = {"what": encodable(wait.what), "address": wait.address, "owner": owner}
    return {"waits_for": entry}


def _cause(cause: Cause) -> dict[str, Any]:
    return {
        "text": encodable(str(cause)),
        "signal": cause.signal,
        "signal_number": cause.signal_number,
        "code": cause.code,
        "code_name": cause.code_name,
        "exception": cause.exception,
        "exception_codes": list(cause.exception_codes),
        "meaning": cause.meaning or None,
        "address": cause.address,
        "region": encodable(cause.region) or None,
        "sender": cause.sender,
        "sender_user": cause.sender_user,
        "trap": cause.trap or None,
        "trap_address": cause.trap_address,
    }


def _stop(stop: Stop) -> dict[str, Any]:
    return {"reason": stop.reason.value, "at": stop.at}


def _gap(chain: FrameChain) -> dict[str, Any] | None:
    return None if chain.gap is None else {"after": chain.gap.after, "count": chain.gap.count}


def _frames(
    chain: FrameChain, explained: Sequence[FrameExplanation | None] | None
) -> list[dict[str, Any]]:
    pieces = stretches(chain.frames, chain.gap)
    numbered = [
        (index, frame) for first, frames in pieces for index, frame in enumerate(frames, first)
    ]
    if explained is None:
        return [frame_entry(index, frame) for index, frame in numbered]
    return [
        frame_entry(index, frame) | {"explanation": None if one is None else explanation(one)}
        for (index, frame), one in zip(numbered, explained, strict=True)
    ]


def frame_entry(index: int, frame: Frame) -> dict[str, Any]:
    """Return a frame as in ``frames[]``; ``index`` is its position in the whole stack."""
    image, symbol, location = frame.image, frame.symbol, frame.location
    return {
        "index": index,
        "address": frame.address.address,
        "kind": frame.address.kind.value,
        "trust": frame.address.trust.value,
        "disputed_by": [
            {"trust": dispute.trust.value, "address": dispute.address}
            for dispute in frame.address.disputed_by
        ],
        "status": frame.status.value,
        "image": None if image is None else encodable(image.name),
        "uuid": None if image is None else image.identifier,
        "offset": frame.image_offset,
        "symbol": None if symbol is None else symbol.name,
        "symbol_offset": frame.symbol_offset,
        "certainty": frame.certainty.value,
        "file": None if location is None else location.path,
        "line": None if location is None else location.line,
        "column": None if location is None else location.column,
        "inlined": [
            {
                "symbol": inlined.name,
                "file": None if inlined.location is None else inlined.location.path,
                "line": None if inlined.location is None else inlined.location.line,
            }
            for inlined in frame.inlined
        ],
        "python": [
            {
                "function": encodable(function.name),
                "file": encodable(function.location.path),
                "line": function.location.line,
            }
            for function in frame.python
        ],
    }
