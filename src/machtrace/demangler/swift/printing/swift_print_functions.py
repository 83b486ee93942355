"""How function types are printed."""

from __future__ import annotations

from collections.abc import Callable

from machtrace.demangler.swift.nodes import Kind, Node, NotUnderstoodError
from machtrace.demangler.swift.printing.style import Pieces, Style, joined
from machtrace.demangler.swift.printing.types import needs_space

_List = list[str | Node | Callable[[], None]]

_CONVENTIONS = {
    Kind.AUTOCLOSURE_TYPE: "@autoclosure ",
    Kind.THIN_TYPE: "@convention(thin) ",
    Kind.C_FUNCTION_TYPE: "c",
    Kind.BLOCK_TYPE: "block",
}
_OF_CLANG = frozenset({Kind.C_FUNCTION_TYPE, Kind.BLOCK_TYPE})
_BEFORE = (Kind.ISOLATION, Kind.DIFFERENTIABLE)
_FROM_CALLER = "nonisolated(nonsending) "


def function_type(node: Node, style: Style) -> Pieces:
    """A function type without labels."""
    return labelled_function(None, node, style)


def labelled_function(labels: Node | None, node: Node, style: Style) -> Pieces:
    """A function type with labels for its arguments; its annotations stand where they belong."""
    pieces: _List = []
    while node.kind is Kind.DEPENDENT_GENERIC_TYPE:
        signature, type_ = node.children
        pieces += [signature, " " if needs_space(type_) else ""]
        node = type_.children[0]
    parts = {one.kind: one for one in node.children}
    arguments, result = parts.get(Kind.ARGUMENTS), parts.get(Kind.RESULT)
    if arguments is None or result is None:
        raise NotUnderstoodError
    if node.kind in _CONVENTIONS:
        pieces.append(_convention(node))
    isolation = parts.get(Kind.ISOLATION)
    of_caller = isolation is not None and isolation.text == _FROM_CALLER
    before = (Kind.DIFFERENTIABLE, Kind.ISOLATION) if of_caller else _BEFORE
    pieces += [parts[kind] for kind in (*before, Kind.SENDABLE) if kind in parts]
    pieces += _arguments(labels, arguments.children[0].children[0], style)
    if style.simplified:
        return pieces
    pieces += [parts[kind] for kind in (Kind.ASYNC, Kind.THROWS) if kind in parts]
    pieces.append(" -> ")
    if Kind.SENDING_RESULT in parts:
        pieces.append(parts[Kind.SENDING_RESULT])
    pieces.append(result)
    return pieces


def _convention(node: Node) -> str:
    words = _CONVENTIONS[node.kind]
    if node.kind not in _OF_CLANG:
        return words
    first = node.children[0]
    if first.kind is Kind.CLANG_TYPE:
        return f'{node.text}@convention({words}, mangledCType: "{first.text}") '
    return f"{node.text}@convention({words}) "


def arguments_of(node: Node, style: Style) -> Pieces:
    """The arguments of a function type."""
    return _arguments(None, node.children[0].children[0], style)


def _arguments(labels: Node | None, arguments: Node, style: Style) -> Pieces:
    """Types and labels, or in the simplified form labels only."""
    if arguments.kind is not Kind.TUPLE:
        return ("(_:)",) if style.simplified else ("(", arguments, ")")
    elements = arguments.children
    names = labels.children if labels is not None else ()
    if names and len(names) < len(elements):
        raise NotUnderstoodError
    pieces: _List = ["("]
    for number, element in enumerate(elements):
        if names:
            name = names[number]
            pieces.append(name if name.kind is Kind.IDENTIFIER else "_")
        elif style.simplified:
            pieces.append(element.text or "_")
        if names or style.simplified:
            pieces.append(":" if style.simplified else ": ")
        if not style.simplified:
            pieces += [element, ", "]
    if pieces[-1] == ", ":
        pieces.pop()
    pieces.append(")")
    return pieces


def impl_function(node: Node, _style: Style) -> Pieces:
    """A function type of SIL: attributes, parameters, results, and what it was made of."""
    by_kind: dict[Kind, list[Node]] = {}
    for one in node.children:
        by_kind.setdefault(one.kind, []).append(one)
    pieces: _List = []
    for attribute in by_kind.get(Kind.IMPL_ATTRIBUTE, ()):
        pieces += [attribute, " "]
    substituted = by_kind.get(Kind.IMPL_SUBSTITUTED, [])
    for one in substituted:
        pieces += ["@substituted ", one.children[0], " "]
    pieces += ["(", *joined(by_kind.get(Kind.IMPL_PARAMETER, ()), ", "), ") -> "]
    if Kind.IMPL_SENDING_RESULT in by_kind:
        pieces.append("sending ")
    pieces += ["(", *joined(by_kind.get(Kind.IMPL_RESULT, ()), ", "), ")"]
    for one in (*substituted, *by_kind.get(Kind.IMPL_BOUND, ())):
        pieces += [" for <", one.children[-1], ">"]
    return pieces
