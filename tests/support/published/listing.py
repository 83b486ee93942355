"""One run as text: registers, executed instructions, the truth beside the walk, and its rules."""

from __future__ import annotations

from collections.abc import Iterator

from machtrace.model.memory import LayeredMemory
from machtrace.model.stack import FrameAddress, Stop
from machtrace.model.symbol import Frame, FrameStatus
from machtrace.render.text import explanation_lines
from machtrace.unwinder.explain import Explainer
from machtrace.unwinder.walker import machine_frames
from tests.support.lab.policies import MASK
from tests.support.published.comparison import Verdict
from tests.support.published.harness import Finished, Harness


def listed(harness: Harness, finished: Finished, *, instructions: int = 200) -> Iterator[str]:
    """Yield the lines of a run; addresses are stated ones, as in the file."""
    image = harness.image
    slide = image.slide
    yield f"run {finished.number} of {image.name} ({image.arch.value}), seed {harness.seed}"
    yield f"entry {finished.entry - slide:#x}  {image.label(finished.entry)}"
    yield f"ended after {finished.steps} instructions: {finished.ended}"
    yield "executed:"
    for step, address in list(enumerate(finished.trace))[-instructions:]:
        yield f"  {step:4}  {address - slide:#x}  {_instruction(harness, address)}"
    for step, verdict in finished.verdicts:
        yield ""
        yield from compared(harness, step, verdict)


def compared(harness: Harness, step: int, verdict: Verdict) -> Iterator[str]:
    """Yield the lines of one comparison."""
    image = harness.image
    state = "exact" if verdict.is_exact else f"WRONG at frame {verdict.frame}"
    yield f"compared before instruction {step}: {state}; the walk ended: {verdict.stop}"
    yield f"  {verdict.registers!r}"
    for number in range(max(len(verdict.truth), len(verdict.walk))):
        true = verdict.truth[number] if number < len(verdict.truth) else None
        walked = verdict.walk[number] if number < len(verdict.walk) else None
        mark = " " if true == walked else "*"
        method = verdict.methods[number] if walked is not None else ""
        truth = "-" if true is None else f"{true - image.slide:#x} {image.label(true)}"
        walk = "-" if walked is None else f"{walked - image.slide:#x}"
        yield f" {mark} {number:2}  truth {truth}  walk {walk} [{method}]"
    names = image.arch.registers.names
    for frame, register in verdict.wrong_registers:
        yield f"  frame {frame}: {names[register]} has another value than at the call"
    if verdict.disagreement:
        yield f"  {verdict.disagreement}"
    yield from explained(harness, verdict)


def explained(harness: Harness, verdict: Verdict) -> Iterator[str]:
    """Yield the rules that the walk follows with nothing cached, up to the first wrong frame."""
    rules = harness.image.rules()
    memory = LayeredMemory((verdict.stack, harness.machine))

    def frame_of(address: FrameAddress) -> Frame:
        image = rules.image_at(address.lookup)
        return Frame(address=address, status=FrameStatus.NOT_ASKED, image=image)

    explainer = Explainer(rules, MASK, frame_of)
    last = len(verdict.truth) if verdict.frame is None else verdict.frame
    frames = list(machine_frames(verdict.registers, memory, harness.image.rules(), MASK))
    for number, frame in enumerate(frames[: last + 1]):
        if isinstance(frame, Stop):
            break
        address = frame.address.address
        yield f"  frame {number} at {address - harness.image.slide:#x}:"
        for line in explanation_lines(explainer.explain(frame.address, frame.registers, memory)):
            yield f"    {line.strip()}"


def _instruction(harness: Harness, address: int) -> str:
    code = harness.image.bytes_at(address, 16)
    for _, _, text in harness.machine.cpu.instructions(code, address):
        return text
    return "?"
