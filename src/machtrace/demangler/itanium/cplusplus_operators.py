"""Operators of C++: the Itanium C++ ABI, section 5.1.3."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from machtrace.demangler.itanium.nodes import Precedence


class Form(Enum):
    """How an operator stands with its operands."""

    PREFIX = auto()
    POSTFIX = auto()
    BINARY = auto()
    SUBSCRIPT = auto()
    MEMBER = auto()
    NEW = auto()
    DELETE = auto()
    CALL = auto()
    PARENTHESISED_CALL = auto()
    CONVERSION = auto()
    CONDITIONAL = auto()
    NAMED_CAST = auto()
    OF_TYPE = auto()
    OF_EXPRESSION = auto()
    NAME_ONLY = auto()


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator."""

    form: Form
    precedence: Precedence
    symbol: str
    """As expressions have it."""
    is_name: bool = True
    """Whether it can be overloaded."""

    @property
    def name(self) -> str:
        """What a function is called that overloads it."""
        return "operator" + (" " if self.symbol[:1].isalpha() else "") + self.symbol


def _forms(
    form: Form, precedence: Precedence, *pairs: str, is_name: bool = True
) -> dict[str, Operator]:
    parts = (pair.split(" ", 1) for pair in pairs)
    return {code: Operator(form, precedence, symbol, is_name) for code, symbol in parts}


OPERATORS: dict[str, Operator] = {
    **_forms(Form.BINARY, Precedence.ASSIGN, "aN &=", "aS =", "dV /=", "eO ^=", "lS <<=", "mI -="),
    **_forms(Form.BINARY, Precedence.ASSIGN, "mL *=", "oR |=", "pL +=", "rM %=", "rS >>="),
    **_forms(Form.BINARY, Precedence.AND_IF, "aa &&"),
    **_forms(Form.BINARY, Precedence.OR_IF, "oo ||"),
    **_forms(Form.BINARY, Precedence.AND, "an &"),
    **_forms(Form.BINARY, Precedence.OR, "or |"),
    **_forms(Form.BINARY, Precedence.XOR, "eo ^"),
    **_forms(Form.BINARY, Precedence.COMMA, "cm ,"),
    **_forms(Form.BINARY, Precedence.MULTIPLICATIVE, "dv /", "ml *", "rm %"),
    **_forms(Form.BINARY, Precedence.ADDITIVE, "mi -", "pl +"),
    **_forms(Form.BINARY, Precedence.SHIFT, "ls <<", "rs >>"),
    **_forms(Form.BINARY, Precedence.SPACESHIP, "ss <=>"),
    **_forms(Form.BINARY, Precedence.RELATIONAL, "ge >=", "gt >", "le <=", "lt <"),
    **_forms(Form.BINARY, Precedence.EQUALITY, "eq ==", "ne !="),
    **_forms(Form.PREFIX, Precedence.UNARY, "ad &", "co ~", "de *", "ng -", "nt !", "ps +"),
    **_forms(Form.POSTFIX, Precedence.POSTFIX, "mm --", "pp ++"),
    **_forms(Form.SUBSCRIPT, Precedence.POSTFIX, "ix []"),
    **_forms(Form.MEMBER, Precedence.POSTFIX, "pt ->"),
    **_forms(Form.MEMBER, Precedence.POSTFIX, "dt .", is_name=False),
    **_forms(Form.MEMBER, Precedence.POINTER_TO_MEMBER, "pm ->*"),
    **_forms(Form.MEMBER, Precedence.POINTER_TO_MEMBER, "ds .*", is_name=False),
    **_forms(Form.NEW, Precedence.UNARY, "na new[]", "nw new"),
    **_forms(Form.DELETE, Precedence.UNARY, "da delete[]", "dl delete"),
    **_forms(Form.CALL, Precedence.POSTFIX, "cl ()"),
    **_forms(Form.PARENTHESISED_CALL, Precedence.POSTFIX, "cp ()", is_name=False),
    **_forms(Form.CONVERSION, Precedence.CAST, "cv cast", is_name=False),
    **_forms(Form.CONDITIONAL, Precedence.CONDITIONAL, "qu ?"),
    **_forms(Form.NAME_ONLY, Precedence.PRIMARY, "aw co_await"),
    **_forms(
        Form.NAMED_CAST, Precedence.POSTFIX, "cc const_cast", "dc dynamic_cast", is_name=False
    ),
    **_forms(
        Form.NAMED_CAST, Precedence.POSTFIX, "rc reinterpret_cast", "sc static_cast", is_name=False
    ),
    **_forms(Form.OF_TYPE, Precedence.UNARY, "at alignof", "st sizeof", is_name=False),
    **_forms(Form.OF_EXPRESSION, Precedence.UNARY, "az alignof", "sz sizeof", is_name=False),
    **_forms(Form.OF_TYPE, Precedence.POSTFIX, "ti typeid", is_name=False),
    **_forms(Form.OF_EXPRESSION, Precedence.POSTFIX, "te typeid", is_name=False),
}
"""By their two letters."""
