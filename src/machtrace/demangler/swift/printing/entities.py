"""How functions, variables and declared types are printed: with what they are in.

The context stands before the name (``Module.Type.function``) where it can, which is where it has
neither a type to print nor more than one word; else behind it (``closure #1 in Module.function``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from machtrace.demangler.swift.nodes import (
    DECLARATION_NAMES,
    NOMINALS,
    Kind,
    Node,
)
from machtrace.demangler.swift.printing.style import Pieces, Style, joined
from machtrace.demangler.swift.printing.types import labelled_function, needs_space

_List = list[str | Node | Callable[[], None]]


class _Form(NamedTuple):
    """How an entity of a kind is printed."""

    entity: Node
    typed: bool = False
    colon: bool = False
    """Its type stands behind a colon, and not as the arguments and result of a function."""
    named: bool = False
    """Its second child is its name."""
    name: str = ""
    """The text in place of a name, if it has none."""
    extra: str = ""
    """Text beside the name."""

    @property
    def is_local(self) -> bool:
        """Declared in a function."""
        return self.named and self.entity.children[1].kind is Kind.LOCAL_NAME

    @property
    def is_long(self) -> bool:
        """Whether it has several words, so that the context must follow it."""
        return " " in self.extra or self.is_local


def _variable(node: Node, _style: Style) -> _Form:
    return _Form(node, typed=True, colon=True, named=True)


def _function(node: Node, _style: Style) -> _Form:
    return _Form(node, typed=True, named=True)


def _bound_function(node: Node, _style: Style) -> _Form:
    return _Form(node.children[0], typed=True, named=True)


def _subscript(node: Node, _style: Style) -> _Form:
    return _Form(node, typed=True, name="subscript")


def _accessor(node: Node, _style: Style) -> _Form:
    storage = node.children[0]
    if storage.kind is Kind.SUBSCRIPT:
        return _Form(storage, typed=True, colon=True, name="subscript", extra=node.text)
    return _Form(storage, typed=True, colon=True, named=True, extra=node.text)


def _declared(node: Node, _style: Style) -> _Form:
    return _Form(node, named=True)


def _macro(node: Node, _style: Style) -> _Form:
    plain = len(node.children) == 3  # noqa: PLR2004 (context, name, type; no labels)
    return _Form(node, typed=True, colon=plain, named=True)


def _attached_macro(node: Node, _style: Style) -> _Form:
    macro = node.children[2].text
    extra = f"{node.text} macro @{macro} expansion #{node.index + 1}"
    return _Form(node, named=True, extra=extra)


def _freestanding_macro(node: Node, _style: Style) -> _Form:
    return _Form(node, named=True, extra=f"freestanding macro expansion #{node.index + 1}")


def _unique_name(node: Node, _style: Style) -> _Form:
    return _Form(node, named=True, extra=f"unique name #{node.index + 1}")


def _closure(node: Node, style: Style) -> _Form:
    return _Form(node, typed=not style.simplified, extra=f"closure #{node.index + 1}")


def _implicit_closure(node: Node, style: Style) -> _Form:
    extra = f"implicit closure #{node.index + 1}"
    return _Form(node, typed=not style.simplified, extra=extra)


def _default_argument(node: Node, _style: Style) -> _Form:
    return _Form(node, extra=f"default argument {node.index}")


def _worded(node: Node, _style: Style) -> _Form:
    return _Form(node, extra=node.text)


def _allocator(node: Node, _style: Style) -> _Form:
    is_class = node.children[0].kind is Kind.CLASS
    return _Form(node, typed=True, extra="__allocating_init" if is_class else "init")


def _constructor(node: Node, _style: Style) -> _Form:
    private = any(child.kind is Kind.PRIVATE_NAME for child in node.children)
    return _Form(node, typed=True, named=private, extra="init")


_FORMS: dict[Kind, Callable[[Node, Style], _Form]] = {
    Kind.VARIABLE: _variable,
    Kind.FUNCTION: _function,
    Kind.BOUND_GENERIC_FUNCTION: _bound_function,
    Kind.SUBSCRIPT: _subscript,
    Kind.ACCESSOR: _accessor,
    Kind.MACRO: _macro,
    Kind.ATTACHED_MACRO: _attached_macro,
    Kind.FREESTANDING_MACRO: _freestanding_macro,
    Kind.MACRO_UNIQUE_NAME: _unique_name,
    Kind.GENERIC_PARAMETER_DECLARATION: _declared,
    Kind.EXPLICIT_CLOSURE: _closure,
    Kind.IMPLICIT_CLOSURE: _implicit_closure,
    Kind.DEFAULT_ARGUMENT: _default_argument,
    Kind.INITIALIZER: _worded,
    Kind.DEINITIALIZER: _worded,
    Kind.ALLOCATOR: _allocator,
    Kind.CONSTRUCTOR: _constructor,
    **dict.fromkeys(NOMINALS - {Kind.BUILTIN_TUPLE}, _declared),
}
PRINTED_AS_ENTITIES = frozenset(_FORMS)
_OF = frozenset({Kind.DEFAULT_ARGUMENT, Kind.INITIALIZER})
"""Kinds that are *of* their context; all others are *in* it."""
_FUNCTION_STYLE = frozenset(
    {Kind.FUNCTION_TYPE, Kind.UNCURRIED_TYPE, Kind.C_FUNCTION_TYPE, Kind.THIN_TYPE}
)
_NAMES = DECLARATION_NAMES - {Kind.PRIVATE_NAME}
_SILENT = frozenset({Kind.MODULE, Kind.ANONYMOUS_CONTEXT})
"""Contexts of which the simplified form has nothing."""


def entity(node: Node, style: Style) -> Pieces:
    """An entity with its context, its name and its type."""
    form = _FORMS[node.kind](node, style)
    behind: Node | None = form.entity.children[0]
    pieces: _List = []
    if not form.is_long:
        pieces, behind = _before(form.entity.children[0], style)
    pieces += _name(form, style)
    if form.typed:
        bound = node.children[1] if node.kind is Kind.BOUND_GENERIC_FUNCTION else None
        pieces += _type(form, bound, style)
    if behind is not None:
        pieces.append(" of " if form.entity.kind in _OF else " in ")
        pieces.append(behind)
    return pieces


def _before(context: Node, style: Style) -> tuple[_List, Node | None]:
    """Return the text before a name, and the context that must follow it, if any."""
    names: list[Pieces] = []
    behind: Node | None = None
    pieces: _List = []
    while True:
        make = _FORMS.get(context.kind)
        if make is None:
            if not (style.simplified and context.kind in _SILENT):
                pieces += [context, "."]
            break
        form = make(context, style)
        if form.typed or form.is_long:
            behind = form.entity
            break
        names.append(_name(form, style))
        context = form.entity.children[0]
    for name in reversed(names):
        if name:
            pieces += [*name, "."]
    return pieces, behind


def _name(form: _Form, style: Style) -> Pieces:
    """Return the name with the text beside it."""
    pieces: _List = []
    extra = form.extra
    if form.named or form.name:
        if extra and form.is_long:
            pieces += [extra, " of "]
            extra = ""
        own = [form.name] if form.name else _own_name(form.entity, style)
        pieces += own
        if own and extra:
            pieces.append(".")
    if extra:
        pieces.append(extra)
    return pieces


def _own_name(node: Node, style: Style) -> _List:
    """The name of a named entity; a discriminator may stand behind its type."""
    name = node.children[1]
    private = next((child for child in node.children if child.kind is Kind.PRIVATE_NAME), None)
    found: _List = [name] if name.kind in _NAMES else []
    if private and (private.children or not style.simplified):
        found.append(private)
    return found


def _type(form: _Form, bound: Node | None, style: Style) -> _List:
    """The type: behind a colon, or as arguments and result."""
    wrapper = next(child for child in form.entity.children if child.kind is Kind.TYPE)
    type_ = wrapper.children[0]
    if form.colon or not _is_function(type_):
        return [] if style.simplified else [" : ", *_labelled(form.entity, type_, bound, style)]
    space = [" "] if form.is_long or needs_space(type_) else []
    return [*space, *_labelled(form.entity, type_, bound, style)]


def _is_function(type_: Node) -> bool:
    while type_.kind is Kind.DEPENDENT_GENERIC_TYPE:
        type_ = type_.children[1].children[0]
    return type_.kind in _FUNCTION_STYLE


def _labelled(node: Node, type_: Node, bound: Node | None, style: Style) -> Pieces:
    """The type with the labels of its arguments, and with generic arguments for parameters."""
    labels = next((child for child in node.children if child.kind is Kind.LABELS), None)
    if labels is None and bound is None:
        return (type_,)
    pieces: _List = []
    if bound is not None:
        pieces += ["<", *joined(bound.children, ", "), ">"]
        if type_.kind is Kind.DEPENDENT_GENERIC_TYPE:
            type_ = type_.children[1].children[0]
            if needs_space(type_):
                pieces.append(" ")
    if _is_function(type_) or type_.kind is Kind.DEPENDENT_GENERIC_TYPE:
        return [*pieces, *labelled_function(labels, type_, style)]
    return [*pieces, type_]
