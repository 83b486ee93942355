"""A 32-bit arm function as a list of effects, one after the other.

An instruction has as many as it needs. One that only runs where a condition holds stands behind a
jump over it, together with those after it that have the same condition.
"""

from __future__ import annotations

from machtrace.unwinder.arch.arm32.function_code import Code
from machtrace.unwinder.arch.arm32.registers import ALWAYS, SP, Decoded
from machtrace.unwinder.code.effects import (
    NOTHING,
    TRAP,
    AddConstant,
    AddRegister,
    InsertConstant,
    Effect,
    Jump,
    Load,
    MoveRegister,
    SetConstant,
    Writes,
)

_NEVER = 15


class ArmEffects:
    """What a function's instructions do. Distances of jumps are distances in the list."""

    __slots__ = ("_code", "_jumps", "_skipped_to", "effects", "places")

    def __init__(self, code: Code) -> None:
        self._code = code
        self.effects: list[Effect] = []
        self.places: dict[int, int] = {}
        """By bytes from the function's start, ascending: the first effect of the instruction
        there."""
        self._jumps: list[tuple[int, int]] = []
        self._skipped_to = 0
        following = 0
        for at, decoded in sorted(code.found.items()):
            if at != following:
                self.effects.append(TRAP)  # data
            following = at + decoded.size
            self.places[at] = len(self.effects)
            self._add(at, decoded)
        for place, target in self._jumps:
            self.effects[place] = self._resolved(place, target)

    def _add(self, at: int, decoded: Decoded) -> None:
        effects = decoded.effects or (NOTHING,)
        last = effects[-1]
        is_certain = decoded.condition in (ALWAYS, _NEVER)
        if isinstance(last, Jump):
            self._jump(at + last.distance, is_conditional=last.is_conditional or not is_certain)
            return
        if not is_certain:
            simple = _assignment(effects)
            if simple is None:
                if at >= self._skipped_to:
                    self._skipped_to = self._end_of_run(at, decoded)
                    self._jump(self._skipped_to, is_conditional=True)
            else:
                effects = (simple,)
        targets = self._code.tables.get(at)
        if targets:
            for target in targets[1:]:
                self._jump(target, is_conditional=True)
            self._jump(targets[0], is_conditional=False)
            return
        self.effects += effects

    def _jump(self, target: int, *, is_conditional: bool) -> None:
        self._jumps.append((len(self.effects), target))
        self.effects.append(Jump(0, is_conditional))

    def _end_of_run(self, at: int, first: Decoded) -> int:
        """Where the instructions end that run if this one does."""
        decoded: Decoded | None = first
        while decoded is not None and decoded.condition == first.condition:
            at += decoded.size
            if decoded.sets_flags:
                break
            decoded = self._code.found.get(at)
        return at

    def _resolved(self, place: int, target: int) -> Effect:
        jump = self.effects[place]
        is_conditional = isinstance(jump, Jump) and jump.is_conditional
        if target in self.places:
            return Jump(self.places[target] - place, is_conditional)
        if 0 <= target < len(self._code.bytes):  # into data, or the middle of an instruction
            return NOTHING if is_conditional else TRAP
        return Jump(-1 - place, is_conditional)


def _assignment(effects: tuple[Effect, ...]) -> Writes | None:
    """What comes of effects that maybe happen and only change registers; None of others.

    They can be taken to happen, for what is in the registers is not known afterwards either way.
    """
    written: list[int] = []
    for effect in effects:
        match effect:
            case Writes(registers):
                written += registers
            case (
                AddConstant(destination)
                | AddRegister(destination)
                | MoveRegister(destination)
                | SetConstant(destination)
                | InsertConstant(destination)
            ):
                written.append(destination)
            case Load(registers, _, _, _, 0):
                written += [register for register in registers if register is not None]
            case _:
                return None
    return None if SP in written else Writes(tuple(written))
