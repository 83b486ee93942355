"""The tree that a mangled Swift name stands for.

The kinds follow the grammar of the Swift project's ``docs/ABI/Mangling.rst``; where several of its
productions differ only in the words that people read, they share a kind here and differ in
:attr:`Node.text`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum, auto


class Kind(StrEnum):
    """The kind of a node."""

    GLOBAL = auto()
    """The root: attributes of a function first, then what the name is about, then the suffix."""
    SUFFIX = auto()
    """The text after the mangled name, from a dot on; LLVM and IRGen append it."""
    TYPE = auto()
    """Wraps every type; one child."""
    TYPE_MANGLING = auto()
    """A type as a name of its own (``D``); its labels, or an empty list, and the type."""

    # Words
    PHRASE = auto()
    """Words about the children: ``text`` has ``{0}`` where the first goes."""
    BY_STYLE = auto()
    """Two children: what is printed in full, and what is printed in the simplified form."""
    LIST = auto()
    """Children with ``text`` between them."""

    # Marks that operators leave for those that follow
    EMPTY_LIST = auto()
    FIRST_ELEMENT = auto()
    VARIADIC = auto()

    # Names: Mangling.rst, "Declaration Contexts" and "Identifiers"
    IDENTIFIER = auto()
    OPERATOR = auto()
    LOCAL_NAME = auto()
    """A name in a function: the identifier; ``index`` distinguishes it from others of its name."""
    PRIVATE_NAME = auto()
    """A name in a file: the identifier, if any; ``text`` is the file."""
    RELATED_NAME = auto()
    """A type that the Clang importer made for another; ``text`` is its letter."""
    LABELS = auto()
    """Argument labels; no children where there are none."""

    # Contexts
    MODULE = auto()
    CLASS = auto()
    STRUCTURE = auto()
    ENUM = auto()
    PROTOCOL = auto()
    TYPE_ALIAS = auto()
    OTHER_NOMINAL = auto()
    EXTENSION = auto()
    """Module of the extension, extended type, and its generic signature, if any."""
    ANONYMOUS_CONTEXT = auto()
    OPAQUE_RETURN_TYPE_OF = auto()
    BUILTIN_TUPLE = auto()

    # Entities: the first child is the context, the second the name where there is one
    FUNCTION = auto()
    BOUND_GENERIC_FUNCTION = auto()
    VARIABLE = auto()
    SUBSCRIPT = auto()
    ACCESSOR = auto()
    """``text`` is the kind; the child is the variable or the subscript."""
    STATIC = auto()
    ALLOCATOR = auto()
    CONSTRUCTOR = auto()
    DEINITIALIZER = auto()
    """Destructors and destroyers; ``text`` is what they are called."""
    INITIALIZER = auto()
    """A variable's initial value; ``text`` is the kind."""
    DEFAULT_ARGUMENT = auto()
    EXPLICIT_CLOSURE = auto()
    IMPLICIT_CLOSURE = auto()
    GENERIC_PARAMETER_DECLARATION = auto()
    MACRO = auto()
    ATTACHED_MACRO = auto()
    """Context, name of what it is attached to, name of the macro; ``text`` is its role."""
    FREESTANDING_MACRO = auto()
    MACRO_UNIQUE_NAME = auto()
    MACRO_LOCATION = auto()
    AUTODIFF_FUNCTION = auto()

    # Types: Mangling.rst, "Types"
    BUILTIN = auto()
    BOUND_GENERIC = auto()
    """The generic type, its arguments, and retroactive conformances, if any."""
    TYPE_LIST = auto()
    TUPLE = auto()
    TUPLE_ELEMENT = auto()
    """A type; ``text`` is the label, ``index`` 1 where it is variadic."""
    PACK = auto()
    """``text`` is SIL's attribute of the pack."""
    PACK_EXPANSION = auto()
    FUNCTION_TYPE = auto()
    """Annotations, then :attr:`ARGUMENTS`, then :attr:`RESULT`, in all function types."""
    UNCURRIED_TYPE = auto()
    THIN_TYPE = auto()
    C_FUNCTION_TYPE = auto()
    BLOCK_TYPE = auto()
    """``text`` is ``@escaping `` or empty."""
    AUTOCLOSURE_TYPE = auto()
    ARGUMENTS = auto()
    RESULT = auto()
    CLANG_TYPE = auto()
    SENDING_RESULT = auto()
    ISOLATION = auto()
    """A function type's isolation: an actor, any, or the caller's; ``text`` has the words."""
    DIFFERENTIABLE = auto()
    THROWS = auto()
    SENDABLE = auto()
    ASYNC = auto()
    MODIFIED = auto()
    """A type with a word before it: ``inout ``, ``__owned ``, ``weak ``."""
    SUGARED = auto()
    """A type spelt with brackets or a question mark, as a phrase."""
    OPTIONAL = auto()
    """A type that gets parentheses where it needs them, and ``text`` behind it."""
    METATYPE = auto()
    EXISTENTIAL_METATYPE = auto()
    PROTOCOL_LIST = auto()
    PROTOCOL_LIST_WITH_CLASS = auto()
    PROTOCOL_LIST_WITH_ANY_OBJECT = auto()
    CONSTRAINED_EXISTENTIAL = auto()
    DYNAMIC_SELF = auto()
    ERROR_TYPE = auto()
    ASSOCIATED_TYPE = auto()
    BOX = auto()
    BOX_LAYOUT = auto()
    INTEGER = auto()
    OPAQUE_TYPE = auto()
    OPAQUE_RETURN_TYPE = auto()

    # SIL function types
    IMPL_FUNCTION = auto()
    IMPL_ATTRIBUTE = auto()
    IMPL_SUBSTITUTED = auto()
    IMPL_BOUND = auto()
    IMPL_SENDING_RESULT = auto()
    IMPL_PARAMETER = auto()
    IMPL_RESULT = auto()

    # Generics: Mangling.rst, "Generics"
    GENERIC_PARAMETER = auto()
    """``text`` is its name."""
    EXISTENTIAL_SELF = auto()
    DEPENDENT_MEMBER = auto()
    DEPENDENT_GENERIC_TYPE = auto()
    GENERIC_SIGNATURE = auto()
    """Counts of parameters by depth, marks of packs and values, then requirements."""
    PARAMETER_COUNT = auto()
    PACK_MARKER = auto()
    VALUE_MARKER = auto()
    REQUIREMENT = auto()
    WHERE = auto()
    """Its child is printed with its requirements in the simplified form, too."""
    RETROACTIVE_CONFORMANCE = auto()
    CONFORMANCE_REFERENCE = auto()
    CONCRETE_CONFORMANCE = auto()
    PACK_CONFORMANCE = auto()
    DEPENDENT_CONFORMANCE = auto()
    OPAQUE_CONFORMANCE = auto()

    # Attributes before a function's name
    ATTRIBUTE = auto()
    THUNK_ATTRIBUTE = auto()
    """Left out in the simplified form."""
    PARTIAL_APPLY = auto()
    SPECIALISATION = auto()
    """``text`` is the kind; ``index`` is 1 if only the representation was changed."""
    MANGLED = auto()
    """A name in the name: ``text`` may be a mangled one."""


class Node:
    """A node of the tree. Nodes are shared where a name refers back; never change one."""

    __slots__ = ("children", "index", "kind", "text")

    def __init__(
        self, kind: Kind, children: Sequence[Node] = (), text: str = "", index: int = 0
    ) -> None:
        self.kind = kind
        self.children = children
        self.text = text
        self.index = index

    def __repr__(self) -> str:
        about = f"{self.kind.name} {self.text!r} {self.index}"
        return f"<Node {about} with {len(self.children)} children>"


class NotUnderstoodError(Exception):
    """Not a Swift name, or one with an unknown operator. Never leaves this package."""


FAILURES = (NotUnderstoodError, IndexError, RecursionError)
"""Exceptions of parsing and printing if a name is not understood: a part is missing (IndexError,
from the name, the stack or a node), or names of Swift 3 are deeper than the caller's stack has room
for."""


NOMINALS = frozenset(
    {
        Kind.CLASS,
        Kind.STRUCTURE,
        Kind.ENUM,
        Kind.PROTOCOL,
        Kind.TYPE_ALIAS,
        Kind.OTHER_NOMINAL,
        Kind.BUILTIN_TUPLE,
    }
)
"""Types that are declared, and may be extended."""

CONTEXTS = NOMINALS | {
    Kind.MODULE,
    Kind.EXTENSION,
    Kind.ANONYMOUS_CONTEXT,
    Kind.OPAQUE_RETURN_TYPE_OF,
    Kind.FUNCTION,
    Kind.VARIABLE,
    Kind.SUBSCRIPT,
    Kind.ACCESSOR,
    Kind.STATIC,
    Kind.ALLOCATOR,
    Kind.CONSTRUCTOR,
    Kind.DEINITIALIZER,
    Kind.INITIALIZER,
    Kind.DEFAULT_ARGUMENT,
    Kind.EXPLICIT_CLOSURE,
    Kind.IMPLICIT_CLOSURE,
    Kind.AUTODIFF_FUNCTION,
}
"""Kinds that may contain other declarations."""

ENTITIES = CONTEXTS | {Kind.TYPE}
"""Kinds that thunks and descriptors may refer to."""

DECLARATION_NAMES = frozenset(
    {
        Kind.IDENTIFIER,
        Kind.OPERATOR,
        Kind.LOCAL_NAME,
        Kind.PRIVATE_NAME,
        Kind.RELATED_NAME,
    }
)

REQUIREMENTS = frozenset({Kind.PACK_MARKER, Kind.VALUE_MARKER, Kind.REQUIREMENT})

FUNCTION_ATTRIBUTES = frozenset(
    {
        Kind.ATTRIBUTE,
        Kind.THUNK_ATTRIBUTE,
        Kind.PARTIAL_APPLY,
        Kind.SPECIALISATION,
    }
)
"""Kinds that are last in a mangled name and first in the printed one."""
