"""Prints the tree of a Swift name, in the words of ``swift-demangle``.

Nothing here calls itself: a rule turns a node into pieces, which are texts, other nodes, and calls
that change how the rest is printed; a loop takes the pieces one by one. So a name may be as deep
as it likes; how much is printed of one has a limit, because a short name can stand for a very
long one by referring back to its own parts.

What each kind of node is printed as.
"""

from __future__ import annotations

from collections.abc import Callable

from machtrace.demangler.swift.nodes import Kind, Node, NotUnderstoodError
from machtrace.demangler.swift.printing.entities import PRINTED_AS_ENTITIES, entity
from machtrace.demangler.swift.printing.style import (
    Pieces,
    Style,
    joined,
    phrase_pieces,
)
from machtrace.demangler.swift.printing.types import (
    arguments_of,
    bound_generic,
    box,
    box_layout,
    constrained_existential,
    dependent_generic_type,
    existential_metatype,
    function_type,
    generic_signature,
    impl_function,
    labelled_function,
    metatype,
    modified,
    optional,
    pack,
    protocol_list,
    tuple_,
    tuple_element,
    with_any_object,
    with_class,
    with_dot,
)

Rule = Callable[[Node, Style], Pieces]


def _children(node: Node, _style: Style) -> Pieces:
    return node.children


def _text(node: Node, _style: Style) -> Pieces:
    return (node.text,)


def _words(text: str) -> Rule:
    def rule(_node: Node, _style: Style) -> Pieces:
        return (text,)

    return rule


def _nothing(_node: Node, _style: Style) -> Pieces:
    return ()


def _in_full(node: Node, style: Style) -> Pieces:
    return () if style.simplified else (node.text,)


def _suffix(node: Node, style: Style) -> Pieces:
    if style.simplified:
        return ()
    return (f' with unmangled suffix "{_quoted(node.text)}"',)


_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", '"': '\\"', "\0": "\\0"}


def _quoted(text: str) -> str:
    pieces = []
    for c in text:
        if c in _ESCAPES:
            pieces.append(_ESCAPES[c])
        elif " " <= c <= "~":
            pieces.append(c)
        else:
            pieces.append(f"\\x{ord(c):02X}")
    return "".join(pieces)


def _by_style(node: Node, style: Style) -> Pieces:
    return (node.children[style.simplified],)


def _list(node: Node, _style: Style) -> Pieces:
    return joined(node.children, node.text)


def _type_mangling(node: Node, style: Style) -> Pieces:
    if len(node.children) == 1:
        return node.children
    labels, type_ = node.children
    return labelled_function(labels, type_.children[0], style)


def _local_name(node: Node, _style: Style) -> Pieces:
    return node.children[0], f" #{node.index + 1}"


def _private_name(node: Node, style: Style) -> Pieces:
    if style.simplified:
        return node.children
    if node.children:
        return "(", node.children[0], f" in {node.text})"
    return (f"(in {node.text})",)


def _related_name(node: Node, _style: Style) -> Pieces:
    return f"related decl '{node.text}' for ", node.children[0]


def _extension(node: Node, style: Style) -> Pieces:
    if style.simplified:
        return node.children[1:]
    return ["(extension in ", node.children[0], "):", *node.children[1:]]


def _anonymous_context(node: Node, style: Style) -> Pieces:
    if style.simplified:
        return ()
    context, name, types = node.children
    pieces = context, ".(unknown context at ", name, ")"
    return [*pieces, "<", types, ">"] if types.children else pieces


def _opaque_return_type_of(node: Node, _style: Style) -> Pieces:
    return "<<opaque return type of ", node.children[0], ">>"


def _static(node: Node, _style: Style) -> Pieces:
    return "static ", node.children[0]


def _requirements(node: Node, style: Style) -> Pieces:
    if style.requirements:
        return node.children
    return [style.show_requirements, *node.children, style.hide_requirements]


def _partial_apply(node: Node, style: Style) -> Pieces:
    words = "partial apply" if style.simplified else node.text
    return [words, " for ", *node.children] if node.children else (words,)


def _specialisation(node: Node, style: Style) -> Pieces:
    if not style.simplified:
        return [node.text, " <", *joined(node.children, ", "), "> of "]
    if style.specialised:
        return ()
    style.specialised = True
    return ("representation changed of " if node.index else "specialized ",)


def _mangled(node: Node, style: Style) -> Pieces:
    return (style.nested(node.text) or node.text,)


RULES: dict[Kind, Rule] = {
    **dict.fromkeys(Kind, phrase_pieces),
    **dict.fromkeys(PRINTED_AS_ENTITIES, entity),
    Kind.GLOBAL: _children,
    Kind.SUFFIX: _suffix,
    Kind.TYPE: _children,
    Kind.TYPE_MANGLING: _type_mangling,
    Kind.BY_STYLE: _by_style,
    Kind.LIST: _list,
    Kind.TYPE_LIST: _children,
    Kind.EMPTY_LIST: _words(" empty-list "),
    Kind.FIRST_ELEMENT: _words(" first-element-marker "),
    Kind.VARIADIC: _words(" variadic-marker "),
    Kind.IDENTIFIER: _text,
    Kind.OPERATOR: _text,
    Kind.LOCAL_NAME: _local_name,
    Kind.PRIVATE_NAME: _private_name,
    Kind.RELATED_NAME: _related_name,
    Kind.LABELS: _nothing,
    Kind.MODULE: _in_full,
    Kind.EXTENSION: _extension,
    Kind.ANONYMOUS_CONTEXT: _anonymous_context,
    Kind.OPAQUE_RETURN_TYPE_OF: _opaque_return_type_of,
    Kind.BUILTIN_TUPLE: _text,
    Kind.STATIC: _static,
    Kind.BUILTIN: _text,
    Kind.BOUND_GENERIC: bound_generic,
    Kind.TUPLE: tuple_,
    Kind.TUPLE_ELEMENT: tuple_element,
    Kind.PACK: pack,
    Kind.FUNCTION_TYPE: function_type,
    Kind.UNCURRIED_TYPE: function_type,
    Kind.THIN_TYPE: function_type,
    Kind.C_FUNCTION_TYPE: function_type,
    Kind.BLOCK_TYPE: function_type,
    Kind.AUTOCLOSURE_TYPE: function_type,
    Kind.ARGUMENTS: arguments_of,
    Kind.RESULT: _children,
    Kind.CLANG_TYPE: _text,
    Kind.MODIFIED: modified,
    Kind.OPTIONAL: optional,
    Kind.METATYPE: metatype,
    Kind.EXISTENTIAL_METATYPE: existential_metatype,
    Kind.PROTOCOL_LIST: protocol_list,
    Kind.PROTOCOL_LIST_WITH_CLASS: with_class,
    Kind.PROTOCOL_LIST_WITH_ANY_OBJECT: with_any_object,
    Kind.CONSTRAINED_EXISTENTIAL: constrained_existential,
    Kind.DYNAMIC_SELF: _words("Self"),
    Kind.ERROR_TYPE: _words("<ERROR TYPE>"),
    Kind.ASSOCIATED_TYPE: with_dot,
    Kind.BOX: box,
    Kind.BOX_LAYOUT: box_layout,
    Kind.INTEGER: _text,
    Kind.OPAQUE_RETURN_TYPE: _words("some"),
    Kind.IMPL_FUNCTION: impl_function,
    Kind.GENERIC_PARAMETER: _text,
    Kind.EXISTENTIAL_SELF: _words("Self"),
    Kind.DEPENDENT_MEMBER: with_dot,
    Kind.DEPENDENT_GENERIC_TYPE: dependent_generic_type,
    Kind.GENERIC_SIGNATURE: generic_signature,
    Kind.WHERE: _requirements,
    Kind.ATTRIBUTE: _text,
    Kind.THUNK_ATTRIBUTE: _in_full,
    Kind.PARTIAL_APPLY: _partial_apply,
    Kind.SPECIALISATION: _specialisation,
    Kind.MANGLED: _mangled,
}
"""By kind; all others are phrases."""

TEXTS = frozenset(kind for kind, rule in RULES.items() if rule is _text)
"""Kinds of which the text is printed, and nothing else."""


_MAX_PIECES = 30_000
"""Printed of one name; the longest names in use have some thousands."""
_MAX_CHARACTERS = 1 << 20
"""Printed of one name."""


def printed(root: Node, parse: Callable[[str], Node], *, simplified: bool) -> str:
    """Return the printed name of ``root``.

    Args:
        root: the tree.
        parse: reads mangled names that stand in the name; raises NotUnderstoodError.
        simplified: without modules, types of arguments, and other things of less interest.

    Raises:
        NotUnderstoodError: too much would have to be printed.
        IndexError: a node lacks a part.
    """
    style = Style(parse, simplified=simplified)
    rules = RULES
    texts: list[str] = []
    work: list[str | Node | Callable[[], None]] = [root]
    room, size = _MAX_PIECES, 0
    while work:
        item = work.pop()
        if isinstance(item, str):
            texts.append(item)
            size += len(item)
            continue
        if not isinstance(item, Node):
            item()
            continue
        kind = item.kind
        while kind is Kind.TYPE:
            item = item.children[0]
            kind = item.kind
        if kind in TEXTS:
            texts.append(item.text)
            size += len(item.text)
            room -= 1
        else:
            pieces = rules[kind](item, style)
            work.extend(pieces[::-1])
            room -= len(pieces) + 1
        if room < 0 or size > _MAX_CHARACTERS:
            raise NotUnderstoodError
    return "".join(texts)
