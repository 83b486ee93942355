"""Identifiers, substitutions, and what declarations are called (Mangling.rst, "Identifiers").

Types of the standard library that have a letter of their own (Mangling.rst, "Substitutions").

``S`` and a letter, ``Sc`` and a letter for those of concurrency; the mangling of Swift 3 and
earlier had fewer. The letters are those of the Swift project's ``StandardTypesMangling.def``.

Identifiers with characters outside ASCII (Mangling.rst, "Identifiers").

They are Punycode (RFC 3492) with two differences, so that only characters of identifiers are
needed: the delimiter is ``_``, and the digits 26 to 35 are ``A`` to ``J``. ASCII characters that
may not stand in a symbol are written as code points from U+D800 on.
"""

from __future__ import annotations

import re

from machtrace.demangler.swift.machine import Machine, wrapped
from machtrace.demangler.swift.nodes import (
    DECLARATION_NAMES,
    Kind,
    Node,
    NotUnderstoodError,
)

STANDARD_LIBRARY = "Swift"
OBJECTIVE_C = "__C"
"""The module of what the Clang importer finds."""
CLANG_IMPORTER = "__C_Synthesized"
"""The module of what the Clang importer makes."""


def standard_type(kind: Kind, name: str) -> Node:
    """A declared type of the standard library, not wrapped."""
    module = Node(Kind.MODULE, text=STANDARD_LIBRARY)
    return Node(kind, [module, Node(Kind.IDENTIFIER, text=name)])


def _types(kind: Kind, names: str) -> dict[str, Node]:
    pairs = (pair.split(":") for pair in names.split())
    return {letter: Node(Kind.TYPE, [standard_type(kind, name)]) for letter, name in pairs}


STANDARD_TYPES: dict[str, Node] = {
    **_types(
        Kind.STRUCTURE,
        """A:AutoreleasingUnsafeMutablePointer a:Array b:Bool D:Dictionary d:Double f:Float h:Set
        I:DefaultIndices i:Int J:Character N:ClosedRange n:Range O:ObjectIdentifier
        P:UnsafePointer p:UnsafeMutablePointer R:UnsafeBufferPointer r:UnsafeMutableBufferPointer
        S:String s:Substring u:UInt V:UnsafeRawPointer v:UnsafeMutableRawPointer
        W:UnsafeRawBufferPointer w:UnsafeMutableRawBufferPointer""",
    ),
    **_types(Kind.ENUM, "q:Optional"),
    **_types(
        Kind.PROTOCOL,
        """B:BinaryFloatingPoint E:Encodable e:Decodable F:FloatingPoint G:RandomNumberGenerator
        H:Hashable j:Numeric K:BidirectionalCollection k:RandomAccessCollection L:Comparable
        l:Collection M:MutableCollection m:RangeReplaceableCollection Q:Equatable T:Sequence
        t:IteratorProtocol U:UnsignedInteger X:RangeExpression x:Strideable Y:RawRepresentable
        y:StringProtocol Z:SignedInteger z:BinaryInteger""",
    ),
}
"""By the letter after ``S``."""

CONCURRENCY_TYPES: dict[str, Node] = {
    **_types(
        Kind.STRUCTURE,
        """C:CheckedContinuation c:UnsafeContinuation E:CancellationError e:UnownedSerialExecutor
        G:TaskGroup g:ThrowingTaskGroup J:UnownedJob P:TaskPriority S:AsyncStream
        s:AsyncThrowingStream T:Task t:UnsafeCurrentTask""",
    ),
    **_types(Kind.CLASS, "M:MainActor"),
    **_types(
        Kind.PROTOCOL,
        """A:Actor F:Executor f:SerialExecutor h:TaskExecutor I:AsyncIteratorProtocol
        i:AsyncSequence""",
    ),
}
"""By the letter after ``Sc``."""

OLD_STANDARD_TYPES: dict[str, Node] = {
    letter: one.children[0]
    for letter, one in {
        **{letter: STANDARD_TYPES[letter] for letter in "abdfiVvPpqRrSu"},
        **_types(Kind.STRUCTURE, "c:UnicodeScalar"),
        **_types(Kind.ENUM, "Q:ImplicitlyUnwrappedOptional"),
    }.items()
}
"""By the letter after ``S`` in names of Swift 3 and earlier; not wrapped."""


_BASE = 36
_MIN_VALUE = 1
_MAX_VALUE = 26
_SKEW = 38
_DAMP = 700
_INITIAL_BIAS = 72
_INITIAL = 0x80
_LAST = 0x10FFFF
_DIGITS = {c: value for value, c in enumerate("abcdefghijklmnopqrstuvwxyzABCDEFGHIJ")}
_ESCAPED = range(0xD800, 0xD880)
_SURROGATES = range(0xD880, 0xE000)
_MAX_LENGTH = 1 << 11
"""Most characters to decode: inserting each takes the square of their number."""
_MAX_DELTA = (1 << 31) - 1


def decode(text: str) -> str:
    """The identifier that ``text`` stands for.

    Raises:
        NotUnderstoodError: it stands for none, or is longer than any that was ever written.
    """
    if len(text) > _MAX_LENGTH:
        raise NotUnderstoodError
    plain, _, digits = text.rpartition("_")
    characters = [ord(c) for c in plain]
    code, place, bias = _INITIAL, 0, _INITIAL_BIAS
    at = 0
    while at < len(digits):
        delta, at = _number(digits, at, bias)
        count = len(characters) + 1
        bias = _adapted(delta, count, first=place == 0)
        place += delta
        code += place // count
        place %= count
        if code > _LAST or code in _SURROGATES:
            raise NotUnderstoodError
        characters.insert(place, code)
        place += 1
    return "".join(chr(c - _ESCAPED.start if c in _ESCAPED else c) for c in characters)


def _number(digits: str, at: int, bias: int) -> tuple[int, int]:
    """A number of variable length, and where it ends (RFC 3492, 6.2)."""
    number, weight, position = 0, 1, _BASE
    for here in range(at, len(digits)):
        digit = _DIGITS.get(digits[here])
        if digit is None or number > _MAX_DELTA:
            break
        number += digit * weight
        threshold = min(max(position - bias, _MIN_VALUE), _MAX_VALUE)
        if digit < threshold:
            return number, here + 1
        weight *= _BASE - threshold
        position += _BASE
    raise NotUnderstoodError


def _adapted(delta: int, count: int, *, first: bool) -> int:
    """The bias after a number (RFC 3492, 6.1)."""
    delta //= _DAMP if first else 2
    delta += delta // count
    position = 0
    while delta > (_BASE - _MIN_VALUE) * _MAX_VALUE // 2:
        delta //= _BASE - _MIN_VALUE
        position += _BASE
    return position + (_BASE - _MIN_VALUE + 1) * delta // (delta + _SKEW)


_WORD = re.compile(r"[^0-9_](?:(?<=[A-Z])[^_]|[^_A-Z])*")
"""Words begin with a capital after a small letter, and after underscores and digits."""
_MIN_WORD_LENGTH = 2
_MAX_WORDS = 26
_CHARACTERS_OF_A_NODE = 32
"""Characters of words that count as one node: words may be much longer than their letters."""
_OPERATOR_CHARACTERS = dict(zip("acdeglmnopqrstxz", "&@/=><*!|+?%-~^.", strict=True))
_FIXITIES = {"i": " infix", "p": " prefix", "P": " postfix"}
_RELATED_LETTERS = frozenset("abcdefghijABCDEFGHIJ")
_MAX_REPEATED = 2048
_LETTERS = 26


def identifier(machine: Machine) -> Node:
    """A name: a length and as many characters, with words of earlier names in letters."""
    text = machine.text
    start = machine.at
    if not "0" <= text[start] <= "9":
        raise NotUnderstoodError
    if text[start] != "0":
        name = _plain(machine)
    elif text[start + 1] == "0":
        machine.at += 2
        name = _punycoded(machine)
    else:
        machine.at += 1
        name = _with_words(machine)
    return machine.substitutable(Node(Kind.IDENTIFIER, text=name))


def _slice(machine: Machine) -> str:
    length = machine.natural()
    end = machine.at + (length or 0)
    if not length or end >= len(machine.text):
        raise NotUnderstoodError
    return machine.text[machine.at : end]


def _plain(machine: Machine) -> str:
    name = _slice(machine)
    machine.at += len(name)
    if len(machine.words) < _MAX_WORDS:
        words = (word for word in _WORD.findall(name) if len(word) >= _MIN_WORD_LENGTH)
        machine.words.extend(words)
        del machine.words[_MAX_WORDS:]
    return readable(name)


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
    return Node(Kind.OPERATOR, text=operator_characters(name) + machine.choice(_FIXITIES))


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
    node = machine.choice(types)
    _repeat(machine, node, number)
    return node


def _repeat(machine: Machine, node: Node, number: int | None) -> None:
    """Push ``node`` ``number`` - 1 times: the operator pushes its result."""
    if number is not None:
        if number > _MAX_REPEATED:
            raise NotUnderstoodError
        machine.push_again(node, max(0, number - 1))
