"""An explanation as data; see ``docs/json-format.md``."""

from __future__ import annotations

from typing import Any

from machtrace.model.explanation import (
    BrokenInformation,
    FollowedRule,
    FrameExplanation,
    MethodAnswer,
)
from machtrace.model.stack import Stop
from machtrace.render.printable import encodable


def explanation(explained: FrameExplanation) -> dict[str, Any]:
    """How the caller of a frame was found, and what the other methods say."""
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
