"""Evaluates DWARF expressions of call-frame information (DWARF 5, section 2.5)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from machtrace.errors import DwarfError
from machtrace.formats.cursor import ByteCursor
from machtrace.formats.dwarf import operations as op
from machtrace.model.address import Avma
from machtrace.model.memory import MemoryReader
from machtrace.model.registers import RegisterSet

STEP_LIMIT = 1024
"""Operations before an expression is taken for an endless loop; real ones have tens."""
STEPS_AN_OPERATION = 2
"""Steps of the caller's budget, each about a microsecond."""
STACK_LIMIT = 256
"""Values on the stack; GCC's own unwinder allows 64."""


def evaluate(
    expression: bytes,
    registers: RegisterSet,
    memory: MemoryReader,
    *,
    initial: Sequence[int] = (),
    pointer_size: int = 8,
    spend: Callable[[int], bool] = lambda _: True,
) -> int:
    """Return the top of the stack after ``expression``, from 0 to 2**(8 * pointer_size) - 1.

    Args:
        expression: The bytes, little-endian as on every supported machine.
        registers: Of the frame that the expression belongs to. A ``breg`` of the number that the
            architecture gives its program counter (``rip`` in x86-64's PLT) has ``registers.pc``.
        memory: Of the target; addresses are Avmas.
        initial: The initial stack, top last.
        pointer_size: Bytes in an address: the width of every value.
        spend: Counts the steps of an operation, and returns whether any are left.

    Raises:
        DwarfError: it is malformed, needs an unknown register, divides by zero, exceeds
            :data:`STEP_LIMIT` or the caller's steps, or uses an operation that call-frame
            information must not use.
        MemoryReadError: memory that it reads is unreadable.
    """
    machine = _Machine(expression, registers, memory, initial, pointer_size)
    return machine.run(spend)


def _comparison(compare: Callable[[int, int], bool]) -> Callable[[int, int], int]:
    return lambda left, right: int(compare(left, right))


def _truncated_division(left: int, right: int) -> int:
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


_UNSIGNED: dict[int, Callable[[int, int], int]] = {
    op.AND: operator.and_,
    op.MINUS: operator.sub,
    op.MOD: operator.mod,
    op.MUL: operator.mul,
    op.OR: operator.or_,
    op.PLUS: operator.add,
    op.XOR: operator.xor,
}
"""Modulo the width of an address. Section 2.5.1.4 does not call ``DW_OP_mod`` signed, and GCC's
unwinder treats it as unsigned."""

_SIGNED: dict[int, Callable[[int, int], int]] = {
    op.DIV: _truncated_division,
    op.EQ: _comparison(operator.eq),
    op.GE: _comparison(operator.ge),
    op.GT: _comparison(operator.gt),
    op.LE: _comparison(operator.le),
    op.LT: _comparison(operator.lt),
    op.NE: _comparison(operator.ne),
}
_SHIFTS = frozenset({op.SHL, op.SHR, op.SHRA})


class _Machine:
    """One run of one expression."""

    __slots__ = ("_bits", "_cursor", "_mask", "_memory", "_registers", "_size", "_stack", "_word")

    def __init__(
        self,
        expression: bytes,
        registers: RegisterSet,
        memory: MemoryReader,
        initial: Sequence[int],
        pointer_size: int,
    ) -> None:
        self._cursor = ByteCursor(expression, source="DWARF expression", error=DwarfError)
        self._size = len(expression)
        self._registers = registers
        self._memory = memory
        self._word = pointer_size
        self._bits = 8 * pointer_size
        self._mask = (1 << self._bits) - 1
        self._stack = [value & self._mask for value in initial]

    def run(self, spend: Callable[[int], bool]) -> int:
        for _ in range(STEP_LIMIT):
            if self._cursor.at_end:
                return self._pop()
            if not spend(STEPS_AN_OPERATION):
                raise self._cursor.fail("the walk's step budget for expressions is exhausted")
            self._execute(op.read_operation(self._cursor, self._word))
        raise self._cursor.fail(f"expression runs longer than {STEP_LIMIT} operations")

    def _execute(self, operation: op.Operation) -> None:  # noqa: C901 - one branch a family
        code, operand, second = operation
        if op.BREG0 <= code < op.BREG0 + op.COUNT:
            self._push(self._register(code - op.BREG0) + operand)
        elif op.LIT0 <= code < op.LIT0 + op.COUNT:
            self._push(code - op.LIT0)
        elif op.CONST1U <= code <= op.CONSTS or code == op.ADDR:
            self._push(operand)
        elif code == op.BREGX:
            self._push(self._register(operand) + second)
        elif code == op.PLUS_UCONST:
            self._push(self._pop() + operand)
        elif code in (op.DEREF, op.DEREF_SIZE):
            self._push(self._load(self._word if code == op.DEREF else operand))
        elif code in (op.BRA, op.SKIP):
            if code == op.SKIP or self._pop():
                self._jump(operand)
        elif code in _UNSIGNED or code in _SIGNED or code in _SHIFTS:
            right, left = self._pop(), self._pop()
            self._push(self._binary(code, left, right))
        elif code in (op.ABS, op.NEG, op.NOT):
            value = self._signed(self._pop())
            self._push(abs(value) if code == op.ABS else -value if code == op.NEG else ~value)
        elif code != op.NOP:
            self._rearrange(code, operand)

    def _binary(self, code: int, left: int, right: int) -> int:
        if code in (op.DIV, op.MOD) and not right:
            raise self._cursor.fail("division by zero")
        if code in _UNSIGNED:
            return _UNSIGNED[code](left, right)
        if code in _SIGNED:
            return _SIGNED[code](self._signed(left), self._signed(right))
        # A shift by the width or more leaves only the sign.
        right = min(right, self._bits)
        if code == op.SHL:
            return left << right
        return (left if code == op.SHR else self._signed(left)) >> right

    def _rearrange(self, code: int, operand: int) -> None:
        stack = self._stack
        if code in (op.DUP, op.OVER, op.PICK):
            depth = {op.DUP: 0, op.OVER: 1}.get(code, operand)
            self._need(depth + 1)
            self._push(stack[-1 - depth])
        elif code == op.DROP:
            self._pop()
        elif code == op.SWAP:
            self._need(2)
            stack[-1], stack[-2] = stack[-2], stack[-1]
        elif code == op.ROT:
            self._need(3)
            stack[-1], stack[-2], stack[-3] = stack[-2], stack[-3], stack[-1]

    def _push(self, value: int) -> None:
        if len(self._stack) >= STACK_LIMIT:
            raise self._cursor.fail(f"expression stack exceeds {STACK_LIMIT} values")
        self._stack.append(value & self._mask)

    def _pop(self) -> int:
        self._need(1)
        return self._stack.pop()

    def _need(self, count: int) -> None:
        if len(self._stack) < count:
            raise self._cursor.fail("expression stack underflow")

    def _signed(self, value: int) -> int:
        return value - (1 << self._bits) if value >> (self._bits - 1) else value

    def _load(self, size: int) -> int:
        if not 0 < size <= self._word:
            raise self._cursor.fail(f"expression reads {size} bytes")
        return int.from_bytes(self._memory.read(Avma(self._pop()), size), "little")

    def _jump(self, distance: int) -> None:
        target = self._cursor.offset + distance
        if not 0 <= target <= self._size:
            raise self._cursor.fail("expression jumps out of itself")
        self._cursor.offset = target

    def _register(self, number: int) -> int:
        registers = self._registers
        if _is_program_counter(registers, number):
            return registers.pc
        value = registers.get(number)
        if value is None:
            raise self._cursor.fail(f"register {number} is unknown")
        return value


def _is_program_counter(registers: RegisterSet, number: int) -> bool:
    names = registers.arch.registers.names
    return number < len(names) and names[number] in ("pc", "rip", "eip")
