"""C++ names mangled after the Itanium C++ ABI, as LLVM's demangler writes them.

The name is read from left to right, with a limit to its nesting and to the text that it may
become; every substitution is text already, and is built again only if it depends on a template
parameter and is referred to from another template. So a hostile name takes no more time than a
long one.

Nearly all names use few parts of the grammar. The extension parses those in C and declines all
others; the modules here are the specification.

Whole functions and special objects: ``<encoding>``, sections 5.1.2 and 5.1.4.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache

from machtrace.demangler.itanium.cursor import MAX_TEXT, Numbering
from machtrace.demangler.itanium.expressions import Expressions
from machtrace.demangler.itanium.names import NameEnd
from machtrace.demangler.itanium.nodes import Node, UnreadableNameError, joined

_OF_TYPES = {"TV": "vtable", "TT": "VTT", "TI": "typeinfo", "TS": "typeinfo name"}
_OF_NAMES = {
    "TW": "thread-local wrapper routine",
    "TH": "thread-local initialization routine",
    "GV": "guard variable",
}
_OF_ENCODINGS = {"GTt": "transaction clone", "GTn": "non-transaction clone", "GA": "hidden alias"}
_ENDS = "E._$\0"


class Encodings(Expressions):
    """The rules of ``<encoding>``."""

    def encoding(self) -> Node:
        """``<encoding>``: a function, an object, or something made for one."""
        self.deeper()
        around = self.outer_levels, self.own_levels
        self.outer_levels = self.own_levels = ()
        with self.unrelated_templates():
            special = self.name[self.at] in "GT"
            node = self._special() if special else self._function_or_object()
        self.levels_read = (*self.outer_levels, *self.own_levels)
        self.outer_levels, self.own_levels = around
        self.higher()
        return self.closed(node)

    def _function_or_object(self) -> Node:  # noqa: C901 (the rule has as many parts)
        end = NameEnd()
        before, self.refers_forward = self.refers_forward, False
        name = self.named(end)
        if self.refers_forward:  # a conversion's type precedes its template arguments
            name = self.rebuilt(name)
        self.refers_forward = before
        if self.name[self.at] in _ENDS:
            return name
        conditions: list[Node] = []
        if self.take("Ua9enable_ifI"):
            conditions = self.nodes_until("E", lambda: self._argument()[0])
        result: list[Node] = []
        if end.template_arguments and not end.constructor_or_conversion:
            self.result_at = self.at
            result = [self.type()]
        parameters: list[Node] = []
        if not self.take("v"):
            while self.name[self.at] not in _ENDS and self.name[self.at] != "Q":
                parameters.append(self.parameter_type())
        called = end.closure if self.is_strict else None
        if called is not None and called != [parameter.text for parameter in parameters]:
            raise self.fail()
        requirement = self.constraint() if self.take("Q") else None
        if self.simplified:
            return name
        tail = end.qualifiers
        if conditions:
            tail += f" [enable_if:{joined(conditions)}]"
        if requirement is not None:
            tail += f" requires {requirement.text}"
        has_result = len(result)

        def made(name: Node, *nodes: Node) -> Node:
            shown = joined(list(nodes[has_result:]))
            if end.explicit_object:
                shown = "this " + shown
            if not has_result:
                return Node(f"{name.text}({shown}){tail}")
            back = nodes[0]
            space = "" if back.right else " "
            return Node(f"{back.left}{space}{name.text}({shown}){back.right}{tail}")

        return self.lift(made, name, *result, *parameters)

    def _special(self) -> Node:  # noqa: C901, PLR0911 (one arm a kind)
        two = self.name[self.at : self.at + 2]
        if two in _OF_TYPES:
            self.at += 2
            kind = _OF_TYPES[two]
            return self.lift(lambda of: Node(f"{kind} for {of.text}"), self.type())
        if two in _OF_NAMES:
            self.at += 2
            kind = _OF_NAMES[two]
            return self.lift(lambda of: Node(f"{kind} for {of.text}"), self.any_name())
        if self.take("TA"):
            argument = self._argument()[0]
            return self.lift(lambda of: Node(f"template parameter object for {of.text}"), argument)
        if self.take("TC"):
            return self._construction_vtable()
        if self.take("Tc"):
            self._call_offset()
            self._call_offset()
            return self._of_encoding("covariant return thunk to")
        if two in {"Th", "Tv"}:
            self.at += 1
            kind = "virtual" if two[1] == "v" else "non-virtual"
            self._call_offset()
            return self._of_encoding(f"{kind} thunk to")
        if self.take("GR"):
            of = self.any_name()
            if self.name[self.at] not in _ENDS or self.name[self.at] == "_":
                self.sequence_number()  # Clang omits it after a local name
            return self.lift(lambda one: Node(f"reference temporary for {one.text}"), of)
        if self.take("GI"):
            return Node(f"initializer for module {self._module('')}")
        for code, kind in _OF_ENCODINGS.items():
            if self.take(code):
                return self._of_encoding(f"{kind} for")
        raise self.fail()

    def _construction_vtable(self) -> Node:
        whole = self.type()
        self.number(signed=True)
        self.expect("_")
        return self.lift(
            lambda part, of: Node(f"construction vtable for {part.text}-in-{of.text}"),
            self.type(),
            whole,
        )

    def _call_offset(self) -> None:
        """``h <number> _`` or ``v <number> _ <number> _``."""
        virtual = self.take("v")
        if not virtual:
            self.expect("h")
        for _ in range(2 if virtual else 1):
            self.number(signed=True)
            self.expect("_")

    def _of_encoding(self, kind: str) -> Node:
        return self.lift(lambda of: Node(f"{kind} {of.text}"), self.encoding())


_PREFIX = re.compile("_{1,4}Z")
_BLOCK = re.compile(r"_block_invoke(_[0-9]+|[0-9]*)(?=\.|\Z)")
_MAX_LENGTH = 1 << 16
"""Characters of the longest name that is parsed."""


def demangle_cplusplus(name: str, *, simplified: bool) -> str | None:
    """A C++ name as people write it; None where it is no whole mangled name.

    What a compiler appended to a copy of the function follows in parentheses: ``f() (.cold.1)``.
    A block's code is called ``invocation function for block in f()``. Raises nothing.

    Args:
        name: with the underscores that its platform puts first.
        simplified: without parameters and return type, template arguments as ``<...>``.
    """
    native = _native()
    text = None if native is None or len(name) > _MAX_LENGTH else native(name, simplified)
    return read_cplusplus(name, simplified=simplified) if text is None else text


def read_cplusplus(name: str, *, simplified: bool) -> str | None:
    """The same as :func:`demangle_cplusplus`, without what is read in C."""
    prefix = _PREFIX.match(name)
    if prefix is None or "\0" in name or len(name) > _MAX_LENGTH:
        return None
    if not name.isascii():  # lengths count bytes
        name = name.encode("utf-8", "surrogateescape").decode("latin-1")
    text = _read(name, prefix.end(), simplified=simplified)
    if text is None or text.isascii():
        return text
    return text.encode("latin-1").decode("utf-8", "replace")


def _read(name: str, at: int, *, simplified: bool) -> str | None:
    left = MAX_TEXT
    for numbering, is_strict in _attempts(name, is_in_macho=at % 2 == 1):
        parser = Encodings(name, at, simplified=simplified, numbering=numbering)
        parser.is_strict, parser.text_left = is_strict, left
        with suppress(UnreadableNameError, RecursionError):
            return _whole(parser, name)
        left = parser.text_left
    return None


def _attempts(name: str, *, is_in_macho: bool) -> Iterator[tuple[Numbering, bool]]:
    """Yield the numberings that the name may have, the likeliest first; and whether strictly."""
    has_placeholder, has_initialiser = "Da" in name or "Dc" in name, "MUl" in name
    common, gcc, apple = (False, True), (False, False), (True, False)
    kinds, rest = [common], []
    if is_in_macho and (has_placeholder or has_initialiser):
        kinds = [apple, common]
    else:
        kinds += [gcc] if has_initialiser else []
        # Apple's names have no underscore of Mach-O in debugging information.
        rest = [apple] if has_placeholder else []
    others = [
        (nested_scopes, bases)
        for bases in ((False, True) if "CI" in name else (False,))
        for nested_scopes in ((False, True) if "srN" in name else (False,))
    ]
    is_doubtful = len(kinds) * len(others) > 1
    for is_strict in (True, False) if is_doubtful else (False,):
        for nested_scopes, bases in others:
            for placeholders, initialised in kinds if is_strict else kinds + rest:
                yield Numbering(nested_scopes, placeholders, initialised, bases), is_strict


@cache
def _native() -> Callable[[str, bool], str | None] | None:
    try:
        from machtrace._native._names import cplusplus_name
    except ImportError:
        return None
    return cplusplus_name


def demangle_type(mangled: str, *, simplified: bool = False) -> str | None:
    """A C++ type as people write it, from what ``type_info`` objects name it by.

    None where it is no whole mangled type; raises nothing.
    """
    if "\0" in mangled or len(mangled) > _MAX_LENGTH:
        return None
    parser = Encodings(mangled, 0, simplified=simplified)
    try:
        text = parser.type().text
    except (UnreadableNameError, RecursionError):
        return None
    return text if parser.at == len(mangled) else None


def _whole(parser: Encodings, name: str) -> str | None:
    text = parser.encoding().text
    if parser.at == len(name):
        return text
    rest = name[parser.at :]
    block = _BLOCK.match(rest)
    if block is not None:
        text = f"invocation function for block in {text}"
        rest = rest[block.end() :]
    if not rest:
        return text
    if rest[0] not in ".$":
        return None
    return text if parser.simplified else f"{text} ({rest})"
