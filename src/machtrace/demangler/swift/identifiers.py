"""Identifiers, substitutions, and what declarations are called (Mangling.rst, "Identifiers")."""

from __future__ import annotations

import re

from machtrace.demangler.swift.machine import Machine, wrapped
from machtrace.demangler.swift.nodes import (
    DECLARATION_NAMES,
    Kind,
    Node,
    NotUnderstoodError,
)
from machtrace.demangler.swift.swift_punycode import decode
from machtrace.demangler.swift.swift_standard_types import (
    CLANG_IMPORTER,
    CONCURRENCY_TYPES,
    OBJECTIVE_C,
    STANDARD_TYPES,
    standard_type,
)

_WORD = re.compile(r"[^0-9_](?:(?<=[A-Z])[^_]|[^_A-Z])*")
"""Words begin with a capital after a small letter, and after underscores and digits."""
_SHORTEST_WORD = 2
_MOST_WORDS = 26
_CHARACTERS_OF_A_NODE = 32
"""Words may be much longer than their letters: so many characters of them count as a node."""
_OPERATOR_CHARACTERS = dict(zip("acdeglmnopqrstxz", "&@/=><*!|+?%-~^.", strict=True))
_FIXITIES = {"i": " infix", "p": " prefix", "P": " postfix"}
_RELATED_LETTERS = frozenset("abcdefghijABCDEFGHIJ")
_MOST_REPEATED = 2048
_LETTERS = 26


def identifier(machine: Machine) -> Node:
    """A name: a length and as many characters, with words of earlier names in letters."""
    text = machine.text
    start = machine.at
    if not "0" <= text[start] <= "9":
        raise NotUnderstoodError
    if text[start] != "0":
        found = _plain(machine)
    elif text[start + 1] == "0":
        machine.at += 2
        found = _punycoded(machine)
    else:
        machine.at += 1
        found = _with_words(machine)
    return machine.substitutable(Node(Kind.IDENTIFIER, text=found))


def _slice(machine: Machine) -> str:
    length = machine.natural()
    end = machine.at + (length or 0)
    if not length or end >= len(machine.text):
        raise NotUnderstoodError
    return machine.text[machine.at : end]


def _plain(machine: Machine) -> str:
    found = _slice(machine)
    machine.at += len(found)
    if len(machine.words) < _MOST_WORDS:
        words = (word for word in _WORD.findall(found) if len(word) >= _SHORTEST_WORD)
        machine.words.extend(words)
        del machine.words[_MOST_WORDS:]
    return readable(found)


def _punycoded(machine: Machine) -> str:
    length = machine.natural()
    machine.skip("_")
    end = machine.at + (length or 0)
    if not length or end >= len(machine.text):
        raise NotUnderstoodError
    found = machine.text[machine.at : end]
    machine.at = end
    return decode(found)


def _with_words(machine: Machine) -> str:
    """Words in letters, the last of them a capital; then, unless ``0`` follows, more characters."""
    parts: list[str] = []
    last = False
    while not last:
        while not last and machine.text[machine.at].isalpha():
            letter = machine.character()
            last = letter.isupper()
            parts.append(readable(machine.words[ord(letter.lower()) - ord("a")]))
            machine.spend(len(parts[-1]) // _CHARACTERS_OF_A_NODE)
        if machine.skip("0"):
            break
        parts.append(_plain(machine))
    if not parts:
        raise NotUnderstoodError
    return "".join(parts)


def readable(text: str) -> str:
    """``text``, whose characters stand for bytes, as UTF-8 means it."""
    if text.isascii():
        return text
    try:
        return text.encode("latin-1").decode("utf-8")
    except UnicodeError:
        raise NotUnderstoodError from None


def operator_identifier(machine: Machine) -> Node:
    """``o``: an operator, whose characters stand as letters."""
    name = machine.need(Kind.IDENTIFIER).text
    fixity = _FIXITIES.get(machine.character())
    if fixity is None:
        raise NotUnderstoodError
    return Node(Kind.OPERATOR, text=operator_characters(name) + fixity)


def operator_characters(letters: str) -> str:
    """The operator that is spelt as ``letters``."""
    return "".join(map(_operator_character, letters))


def _operator_character(letter: str) -> str:
    if not letter.isascii():
        return letter
    found = _OPERATOR_CHARACTERS.get(letter)
    if found is None:
        raise NotUnderstoodError
    return found


def local_identifier(machine: Machine) -> Node:
    """``L``: a name in a file or in a function, or of a type that Clang's importer made."""
    if machine.skip("L"):
        discriminator = machine.need(Kind.IDENTIFIER)
        name = machine.need_any(DECLARATION_NAMES)
        return Node(Kind.PRIVATE_NAME, [name], discriminator.text)
    if machine.skip("l"):
        return Node(Kind.PRIVATE_NAME, (), machine.need(Kind.IDENTIFIER).text)
    if machine.text[machine.at] in _RELATED_LETTERS:
        letter = machine.character()
        return Node(Kind.RELATED_NAME, [machine.stack.pop()], letter)
    number = machine.index()
    return Node(Kind.LOCAL_NAME, [machine.need_any(DECLARATION_NAMES)], index=number)


def substitution(machine: Machine) -> Node:
    """``A``: nodes that were pushed before, by letter or by number, some of them repeatedly."""
    substitutions = machine.substitutions
    while True:
        number = machine.natural()
        c = machine.character()
        if c == "_":
            return substitutions[_LETTERS if number is None else number + _LETTERS + 1]
        if not (c.isascii() and c.isalpha()):
            raise NotUnderstoodError
        node = substitutions[ord(c.lower()) - ord("a")]
        _repeat(machine, node, number)
        if c.isupper():
            return node
        machine.push_again(node, 1)


def standard_substitution(machine: Machine) -> Node:
    """``S``: a well-known module or type (Mangling.rst, "Substitutions")."""
    if machine.skip("o"):
        return Node(Kind.MODULE, text=OBJECTIVE_C)
    if machine.skip("C"):
        return Node(Kind.MODULE, text=CLANG_IMPORTER)
    if machine.skip("g"):
        optional = Node(Kind.TYPE, [standard_type(Kind.ENUM, "Optional")])
        arguments = Node(Kind.TYPE_LIST, [machine.need(Kind.TYPE)])
        machine.spend(1)
        return machine.substitutable(wrapped(Kind.BOUND_GENERIC, [optional, arguments]))
    number = machine.natural()
    types = CONCURRENCY_TYPES if machine.skip("c") else STANDARD_TYPES
    node = types.get(machine.character())
    if node is None:
        raise NotUnderstoodError
    _repeat(machine, node, number)
    return node


def _repeat(machine: Machine, node: Node, number: int | None) -> None:
    """Push ``node`` one time less than ``number`` says: the operator pushes what it returns."""
    if number is not None:
        if number > _MOST_REPEATED:
            raise NotUnderstoodError
        machine.push_again(node, max(0, number - 1))
