"""Whole functions and special objects: ``<encoding>``, sections 5.1.2 and 5.1.4."""

from __future__ import annotations

from machtrace.demangler.itanium.expressions import Expressions
from machtrace.demangler.itanium.names import NameEnd
from machtrace.demangler.itanium.nodes import Node, joined

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
        with self.unrelated_templates():
            special = self.name[self.at] in "GT"
            node = self._special() if special else self._function_or_object()
        self.higher()
        return node

    def _function_or_object(self) -> Node:  # noqa: C901 (the rule has as many parts)
        end = NameEnd()
        waiting = len(self.forward)
        name = self.named(end)
        self._resolve(waiting)
        if self.name[self.at] in _ENDS:
            return name
        conditions: list[Node] = []
        if self.take("Ua9enable_ifI"):
            conditions = self.nodes_until("E", lambda: self._argument()[0])
        result: list[Node] = []
        if end.template_arguments and not end.constructor_or_conversion:
            result = [self.type()]
        parameters: list[Node] = []
        if not self.take("v"):
            while self.name[self.at] not in _ENDS and self.name[self.at] != "Q":
                parameters.append(self.type())
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

    def _resolve(self, waiting: int) -> None:
        """Say what template parameters are that were met before their arguments."""
        for key in range(waiting, len(self.forward)):
            index = self.forward_indices.pop(key, None)
            if index is None:  # a local class's function, which was whole, has said it already
                continue
            levels = self.template_levels
            if not levels or index >= len(levels[0]):
                raise self.fail()
            self.forward[key] = levels[0][index].text

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
            if not self.take("_"):
                self.sequence_number()
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
