"""How types are printed.

How function types are printed.
"""

from __future__ import annotations

from collections.abc import Callable

from machtrace.demangler.swift.generics import parameter_name
from machtrace.demangler.swift.identifiers import STANDARD_LIBRARY
from machtrace.demangler.swift.nodes import Kind, Node, NotUnderstoodError
from machtrace.demangler.swift.printing.style import Pieces, Style, joined

_SIMPLE = frozenset(
    {
        Kind.ASSOCIATED_TYPE,
        Kind.BOUND_GENERIC,
        Kind.BOX,
        Kind.BUILTIN,
        Kind.BUILTIN_TUPLE,
        Kind.CLASS,
        Kind.DEPENDENT_GENERIC_TYPE,
        Kind.DEPENDENT_MEMBER,
        Kind.DYNAMIC_SELF,
        Kind.ENUM,
        Kind.ERROR_TYPE,
        Kind.EXISTENTIAL_METATYPE,
        Kind.EXISTENTIAL_SELF,
        Kind.GENERIC_PARAMETER,
        Kind.INTEGER,
        Kind.METATYPE,
        Kind.OPTIONAL,
        Kind.OTHER_NOMINAL,
        Kind.PACK,
        Kind.PROTOCOL,
        Kind.STRUCTURE,
        Kind.SUGARED,
        Kind.TUPLE,
        Kind.TYPE_ALIAS,
    }
)
"""Types that need no parentheses before a question mark or a dot."""
_EXISTENTIAL = frozenset(
    {
        Kind.EXISTENTIAL_METATYPE,
        Kind.PROTOCOL_LIST,
        Kind.PROTOCOL_LIST_WITH_CLASS,
        Kind.PROTOCOL_LIST_WITH_ANY_OBJECT,
    }
)
_WITHOUT_SPACE = frozenset({Kind.FUNCTION_TYPE, Kind.UNCURRIED_TYPE, Kind.DEPENDENT_GENERIC_TYPE})
_MAX_PARAMETERS = 128
"""Generic parameters of one level that are printed."""
_MAX_LEVELS = 64
"""Most nested declarations with generic parameters of their own."""


def needs_space(node: Node) -> bool:
    """Whether a space stands between a name, or a generic signature, and this type."""
    while node.kind is Kind.TYPE:
        node = node.children[0]
    return node.kind not in _WITHOUT_SPACE


def in_parentheses(node: Node) -> Pieces:
    """The type, in parentheses where it needs them."""
    while node.kind is Kind.TYPE:
        node = node.children[0]
    if node.kind in _SIMPLE:
        return (node,)
    few = {Kind.PROTOCOL_LIST: 1, Kind.PROTOCOL_LIST_WITH_ANY_OBJECT: 0}.get(node.kind, -1)
    return (node,) if len(node.children) <= few else ("(", node, ")")


def bound_generic(node: Node, _style: Style) -> Pieces:
    """A generic type with arguments; those that have signs in the language are written so."""
    unbound, types = node.children[0], node.children[1].children
    nominal = unbound.children[0]
    sugared = len(node.children) == 2  # noqa: PLR2004 (no retroactive conformances)
    if sugared and nominal.kind is Kind.PROTOCOL:
        return [*types, " as ", unbound]
    if sugared and (kind := _sugar(nominal, len(types))):
        if kind == "[":
            return "[", types[0], "]"
        if kind == ":":
            return "[", types[0], " : ", types[1], "]"
        return [*in_parentheses(types[0]), kind]
    return [unbound, "<", *joined(types, ", "), ">"]


_SUGAR = {
    (Kind.ENUM, "Optional", 1): "?",
    (Kind.ENUM, "ImplicitlyUnwrappedOptional", 1): "!",
    (Kind.STRUCTURE, "Array", 1): "[",
    (Kind.STRUCTURE, "Dictionary", 2): ":",
}


def _sugar(nominal: Node, count: int) -> str | None:
    if nominal.kind not in {Kind.ENUM, Kind.STRUCTURE}:
        return None
    context, name = nominal.children[0], nominal.children[1]
    if context.text != STANDARD_LIBRARY or context.kind is not Kind.MODULE:
        return None
    return _SUGAR.get((nominal.kind, name.text, count)) if name.kind is Kind.IDENTIFIER else None


def optional(node: Node, _style: Style) -> Pieces:
    """A type with a sign behind it."""
    return [*in_parentheses(node.children[0]), node.text]


def modified(node: Node, _style: Style) -> Pieces:
    """A type with a word before it."""
    return node.text, node.children[0]


def tuple_(node: Node, _style: Style) -> Pieces:
    """A tuple."""
    return ["(", *joined(node.children, ", "), ")"]


def tuple_element(node: Node, _style: Style) -> Pieces:
    """A type in a tuple, or of an argument, with its label."""
    label = f"{node.text}: " if node.text else ""
    return label, node.children[0], "..." if node.index else ""


def pack(node: Node, _style: Style) -> Pieces:
    """Types that a parameter pack stands for."""
    return [f"{node.text}Pack{{", *joined(node.children, ", "), "}"]


def metatype(node: Node, _style: Style) -> Pieces:
    """The type of a type."""
    of = node.children[0]
    while of.kind is Kind.TYPE:
        of = of.children[0]
    end = ".Protocol" if of.kind in _EXISTENTIAL else ".Type"
    return [node.text, *in_parentheses(of), end]


def existential_metatype(node: Node, _style: Style) -> Pieces:
    """The type of a type that conforms to protocols."""
    return node.text, node.children[0], ".Type"


def protocol_list(node: Node, _style: Style) -> Pieces:
    """A type that conforms to protocols."""
    return joined(node.children, " & ") or ("Any",)


def with_class(node: Node, _style: Style) -> Pieces:
    """A subclass that conforms to protocols."""
    return [node.children[0], " & ", *joined(node.children[1:], " & ")]


def with_any_object(node: Node, _style: Style) -> Pieces:
    """Any class that conforms to protocols."""
    object_ = "Swift.AnyObject"
    return [*joined(node.children, " & "), f" & {object_}" if node.children else object_]


def constrained_existential(node: Node, _style: Style) -> Pieces:
    """A type that conforms to a protocol with certain associated types."""
    return "any ", node.children[0], "<", node.children[1], ">"


def with_dot(node: Node, _style: Style) -> Pieces:
    """An associated type of another type."""
    return node.children[0], ".", node.children[1]


def box(node: Node, _style: Style) -> Pieces:
    """A box of SIL: its generic signature, its fields, its generic arguments."""
    fields = node.children[0]
    if len(node.children) == 1:
        return (fields,)
    return node.children[1], " ", fields, " <", node.children[2], ">"


def box_layout(node: Node, _style: Style) -> Pieces:
    """The fields of a box."""
    return ["{ ", *joined(node.children, ", "), " }"] if node.children else ("{ }",)


def dependent_generic_type(node: Node, _style: Style) -> Pieces:
    """A type with a generic signature of its own."""
    signature, type_ = node.children
    return signature, " " if needs_space(type_) else "", type_


def generic_signature(node: Node, style: Style) -> Pieces:
    """Generic parameters by depth, and what is required of them."""
    counts = [child.index for child in node.children if child.kind is Kind.PARAMETER_COUNT]
    if len(counts) > _MAX_LEVELS:
        raise NotUnderstoodError
    rest = node.children[len(counts) :]
    markers = {
        marker.children[0].children[0].text: marker
        for marker in rest
        if marker.kind in {Kind.PACK_MARKER, Kind.VALUE_MARKER}
    }
    pieces: list[str | Node] = ["<"]
    for depth, count in enumerate(counts):
        if depth:
            pieces.append("><")
        pieces += _parameters(depth, count, markers)
    requirements = [child for child in rest if child.kind is Kind.REQUIREMENT]
    if requirements and style.requirements:
        return [*pieces, " where ", *joined(requirements, ", "), ">"]
    pieces.append(">")
    return pieces


def _parameters(depth: int, count: int, markers: dict[str, Node]) -> list[str | Node]:
    pieces: list[str | Node] = []
    for index in range(min(count, _MAX_PARAMETERS)):
        if index:
            pieces.append(", ")
        name = parameter_name(depth, index)
        marker = markers.get(name)
        if marker is None:
            pieces.append(name)
        elif marker.kind is Kind.PACK_MARKER:
            pieces.append(f"each {name}")
        else:
            pieces += [f"let {name}: ", marker.children[1]]
    if count > _MAX_PARAMETERS:
        pieces.append(", ...")
    return pieces


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
    parts = {child.kind: child for child in node.children}
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
    for child in node.children:
        by_kind.setdefault(child.kind, []).append(child)
    pieces: _List = []
    for attribute in by_kind.get(Kind.IMPL_ATTRIBUTE, ()):
        pieces += [attribute, " "]
    substituted = by_kind.get(Kind.IMPL_SUBSTITUTED, [])
    for substitution in substituted:
        pieces += ["@substituted ", substitution.children[0], " "]
    pieces += ["(", *joined(by_kind.get(Kind.IMPL_PARAMETER, ()), ", "), ") -> "]
    if Kind.IMPL_SENDING_RESULT in by_kind:
        pieces.append("sending ")
    pieces += ["(", *joined(by_kind.get(Kind.IMPL_RESULT, ()), ", "), ")"]
    for substitution in (*substituted, *by_kind.get(Kind.IMPL_BOUND, ())):
        pieces += [" for <", substitution.children[-1], ">"]
    return pieces
