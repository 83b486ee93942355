"""Follow values through one function, to the calls that they are arguments of.

Instructions are followed in the order of their addresses. Where branches meet, a value counts if
it is the same on all ways there that come from before; after code that does not continue, what the
callee-saved registers and the frame held before it counts, since compilers place a function's
unlikely parts at its end.

Sources: objc4, ``runtime/objc.h``, ``message.h`` and ``objc-abi.h``: the functions that compilers
call, and what they return.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

from machtrace.audit.scan.machines import (
    Branch,
    End,
    Machine,
    MayJump,
    ReadAddress,
    Step,
    TakeAddress,
)
from machtrace.audit.scan.values import (
    Address,
    ClassObject,
    CodeUse,
    Import,
    Instance,
    MessageUse,
    Receiver,
    Selector,
    SymbolUse,
    Text,
    TextUse,
    Use,
    Value,
)
from machtrace.frozen import dataclass
from machtrace.unwinder.code.effects import (
    AddConstant,
    AddRegister,
    InsertConstant,
    Load,
    LoadIndexed,
    MoveRegister,
    SetConstant,
    Store,
    Writes,
)

MAX_INSTRUCTIONS = 1 << 16
"""Instructions of a function that are followed; the rest is not searched."""
_MAX_AHEAD = 64
"""Branch targets ahead whose values are stored at once."""

_SAME = frozenset(
    {
        "_objc_autorelease",
        "_objc_autoreleaseReturnValue",
        "_objc_claimAutoreleasedReturnValue",
        "_objc_opt_self",
        "_objc_retain",
        "_objc_retainAutorelease",
        "_objc_retainAutoreleaseReturnValue",
        "_objc_retainAutoreleasedReturnValue",
        "_objc_retainBlock",
        "_objc_unsafeClaimAutoreleasedReturnValue",
        "_swift_bridgeObjectRetain",
        "_swift_getObjCClassFromMetadata",
        "_swift_getInitializedObjCClass",
        "_swift_retain",
        "_swift_unknownObjectRetain",
    }
)
"""Functions that return their first argument."""
_NEW = frozenset({"_objc_alloc", "_objc_allocWithZone", "_objc_alloc_init", "_objc_opt_new"})
"""Functions that return an object of their first argument, a class."""
_OF_CLASS_NAME = frozenset({"_NSClassFromString", "_objc_getClass", "_objc_lookUpClass",
                            "_objc_getRequiredClass"})  # fmt: skip
_OF_SELECTOR_NAME = frozenset({"_NSSelectorFromString", "_sel_registerName", "_sel_getUid"})
LOOK_UPS = {"_dlsym": 1, **dict.fromkeys((*_OF_CLASS_NAME, *_OF_SELECTOR_NAME), 0)}
"""Functions that look up a name, and which argument that is."""
_SENDS = frozenset({"_objc_msgSend", "_objc_msgSendSuper", "_objc_msgSendSuper2",
                    "_objc_msgSend_stret", "_objc_msgSend_fpret"})  # fmt: skip
LOOK_UP_KEYS = frozenset({"valueForKey:", "valueForKeyPath:", "mutableArrayValueForKey:"})
_PERFORMS = frozenset({"performSelector:", "performSelector:withObject:",
                       "performSelector:withObject:withObject:", "respondsToSelector:",
                       "performSelectorOnMainThread:withObject:waitUntilDone:",
                       "methodForSelector:", "instanceMethodForSelector:"})  # fmt: skip
_RETURN_SELF = frozenset({"self", "retain", "autorelease", "copy", "mutableCopy"})
_MAKE = ("alloc", "new", "shared", "default", "current", "standard", "main", "general")
"""How the names of class methods begin that return an object of their class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The meaning of an image's stated addresses, for following its code."""

    stubs: dict[int, str]
    """The function that a stub calls."""
    message_stubs: dict[int, str]
    """The selector of a stub of ``objc_msgSend``."""
    slots: dict[int, str]
    """The symbol that a pointer is bound to."""
    selectors: dict[int, str]
    classes: dict[int, str]
    """The class that a pointer refers to."""
    text_at: Callable[[int], str | None]
    """Returns the string at an address."""
    paths: frozenset[str]
    """The strings whose mere use counts."""
    own_slots: Mapping[int, int] = field(default_factory=dict)
    """The address in this image that a pointer always has."""
    has_absolute: bool = False
    """Whether instructions may have addresses as numbers: a program that is loaded where it was
    linked for."""


class _State:
    """The values of registers, and of variables in the frame."""

    __slots__ = ("registers", "variables")

    def __init__(
        self, registers: dict[int, Value], variables: dict[tuple[int, int], Value]
    ) -> None:
        self.registers = registers
        self.variables = variables

    def copy(self) -> _State:
        return _State(dict(self.registers), dict(self.variables))

    def keep_common(self, other: _State) -> None:
        self.registers = dict(self.registers.items() & other.registers.items())
        self.variables = dict(self.variables.items() & other.variables.items())


def follow(
    machine: Machine,
    names: Names,
    code: bytes,
    start: int,
    receiver: Receiver | None,
    *,
    every: bool = False,
) -> list[Use]:
    """Return the calls of a function, and the symbols whose addresses it takes.

    Args:
        machine: the architecture.
        names: what the image's addresses are.
        code: the function.
        start: its address (Svma).
        receiver: ``self``, if it is a method.
        every: whether calls and jumps count that lead to no name.
    """
    return _Flow(machine, names, code, start, receiver, every=every).run()


class _Flow:
    def __init__(
        self,
        machine: Machine,
        names: Names,
        code: bytes,
        start: int,
        receiver: Receiver | None,
        *,
        every: bool,
    ) -> None:
        self._every = every
        self._machine = machine
        self._names = names
        self._code = code
        self._start = start
        self._uses: list[Use] = []
        self._now = _State({}, {})
        if receiver is not None:
            self._now.registers[machine.arguments[0]] = receiver
        self._ahead: dict[int, _State] = {}
        self._at = self._after = start

    def run(self) -> list[Use]:
        code, start, at = self._code, self._start, 0
        is_reached = True
        for _ in range(MAX_INSTRUCTIONS):
            if at >= len(code):
                break
            self._at = start + at
            met = self._ahead.pop(self._at, None)
            if met is not None:
                if is_reached:
                    self._now.keep_common(met)
                else:
                    self._now = met
                is_reached = True
            elif not is_reached:
                self._leave_saved()
                is_reached = True
            size, steps = self._machine.step(code, at, self._at)
            self._after = self._at + size
            for step in steps:
                is_reached = self._apply(step) and is_reached
            at += size
        return self._uses

    def _leave_saved(self) -> None:
        kept = self._machine.saved
        registers = self._now.registers
        self._now.registers = {key: value for key, value in registers.items() if key in kept}

    def _apply(self, step: Step) -> bool:  # noqa: C901, PLR0912 - one case a kind
        """Return whether the next instruction follows."""
        registers = self._now.registers
        match step:
            case TakeAddress(register, address):
                self._set(register, self._taken(address))
            case ReadAddress(register, address):
                self._set(register, self._loaded(address))
            case Branch():
                return self._branch(step)
            case MayJump(target):
                self._keep_for(target)
                if not self._holds(target):
                    self._lead_to(target, is_tail=True)
            case End():
                return False
            case MoveRegister(destination, source):
                self._set(destination, registers.get(source))
            case AddConstant(destination, source, amount):
                value = registers.get(source)
                if isinstance(value, Address):
                    self._set(destination, self._taken(value.at + amount))
                else:
                    self._set(destination, value if amount == 0 else None)
            case Load(loaded, size, base, offset, _):
                self._load(loaded, size, base, offset)
                self._moved(base, step.write_back)
            case Store(stored, size, base, offset, _):
                self._store(stored, size, base, offset)
                self._moved(base, step.write_back)
            case Writes(written):
                for register in written:
                    self._set(register, None)
            case SetConstant(destination, value) if self._names.has_absolute:
                self._set(destination, self._taken(value))
            case SetConstant() | AddRegister() | InsertConstant():
                self._set(step.destination, None)
            case LoadIndexed():
                self._set(step.register, None)
            case _:
                pass
        return True

    def _set(self, register: int, value: Value | None) -> None:
        if register == self._machine.stack_pointer:
            self._forget(register)
        if value is None:
            self._now.registers.pop(register, None)
        else:
            self._now.registers[register] = value

    def _forget(self, base: int) -> None:
        variables = self._now.variables
        self._now.variables = {key: value for key, value in variables.items() if key[0] != base}

    def _moved(self, base: int, amount: int) -> None:
        if amount:
            self._set(base, None)

    def _taken(self, address: int) -> Value:
        text = self._names.text_at(address)
        if text is None:
            return Address(address)
        if text in self._names.paths:
            self._uses.append(TextUse(text, "", self._at, self._after))
        return Text(text)

    def _loaded(self, address: int) -> Value | None:
        names = self._names
        if (selector := names.selectors.get(address)) is not None:
            return Selector(selector)
        if (name := names.classes.get(address)) is not None:
            return ClassObject(name)
        symbol = names.slots.get(address)
        if symbol is None:
            own = names.own_slots.get(address)
            return None if own is None else self._taken(own)
        self._uses.append(SymbolUse(symbol, self._at, self._after, is_call=False))
        return Import(symbol)

    def _load(self, loaded: tuple[int | None, ...], size: int, base: int, offset: int) -> None:
        value = self._now.registers.get(base)
        for number, register in enumerate(loaded):
            if register is None:
                continue
            place = offset + number * size
            content: Value | None = None
            if size == 8:  # noqa: PLR2004 - bytes of a pointer
                if base in self._machine.stack:
                    content = self._now.variables.get((base, place))
                elif isinstance(value, Address):
                    content = self._loaded(value.at + place)
                elif isinstance(value, Import) and place == 0:
                    content = value  # a constant is the value of a variable
            self._set(register, content)

    def _store(self, stored: tuple[int | None, ...], size: int, base: int, offset: int) -> None:
        if base not in self._machine.stack:
            return
        for number, register in enumerate(stored):
            key = (base, offset + number * size)
            value = None if register is None else self._now.registers.get(register)
            if value is None or size != 8:  # noqa: PLR2004 - bytes of a pointer
                self._now.variables.pop(key, None)
            else:
                self._now.variables[key] = value

    def _keep_for(self, target: int) -> None:
        if not self._at < target < self._start + len(self._code):
            return
        known = self._ahead.get(target)
        if known is not None:
            known.keep_common(self._now)
        elif len(self._ahead) < _MAX_AHEAD:
            self._ahead[target] = self._now.copy()

    def _branch(self, branch: Branch) -> bool:
        target, is_call, names = branch.target, branch.is_call, self._names
        if target is not None and not is_call and self._holds(target):
            self._keep_for(target)
            return False
        value = self._target_value(branch)
        if isinstance(value, Address):
            target = value.at
        result: Value | None = None
        symbol = names.stubs.get(target) if target is not None else None
        if symbol is None and isinstance(value, Import):
            symbol = value.symbol
        if target is not None and target in names.message_stubs:
            result = self._message(names.message_stubs[target], is_tail=not is_call)
        elif symbol is not None:
            result = self._call(symbol, is_tail=not is_call)
        else:
            self._lead_to(target, is_tail=not is_call)
        if not is_call:
            return False
        if symbol is None or not symbol.startswith(("_objc_retain_x", "_objc_release_x")):
            self._leave_saved()
            if result is not None:
                self._set(self._machine.result, result)
        return True

    def _target_value(self, branch: Branch) -> Value | None:
        if branch.register is not None:
            return self._now.registers.get(branch.register)
        return None if branch.slot is None else self._loaded_for_call(branch.slot)

    def _holds(self, target: int) -> bool:
        return self._start <= target < self._start + len(self._code)

    def _lead_to(self, target: int | None, *, is_tail: bool) -> None:
        if self._every:
            self._uses.append(CodeUse(target, self._at, self._after, is_tail))

    def _loaded_for_call(self, slot: int) -> Value | None:
        symbol, own = self._names.slots.get(slot), self._names.own_slots.get(slot)
        if symbol is not None:
            return Import(symbol)
        return None if own is None else Address(own)

    def _argument(self, number: int) -> Value | None:
        return self._now.registers.get(self._machine.arguments[number])

    def _call(self, symbol: str, *, is_tail: bool) -> Value | None:
        """Record a call of another image's function, and return its result."""
        if symbol in _SENDS:
            return self._send(symbol, is_tail=is_tail)
        self._uses.append(SymbolUse(symbol, self._at, self._after, is_call=True, is_tail=is_tail))
        first = self._argument(0)
        if symbol in LOOK_UPS:
            return self._named(symbol)
        if symbol in _SAME:
            return first
        if symbol in _NEW and isinstance(first, ClassObject):
            return Instance(first.name)
        if symbol == "_objc_opt_class":
            return ClassObject(first.class_name) if isinstance(first, Instance) else first
        return None

    def _named(self, symbol: str) -> Value | None:
        name = self._argument(LOOK_UPS[symbol])
        if not isinstance(name, Text):
            return None
        self._uses.append(TextUse(name.text, symbol, self._at, self._after))
        if symbol in _OF_CLASS_NAME:
            return ClassObject(name.text)
        return Selector(name.text) if symbol in _OF_SELECTOR_NAME else Import(f"_{name.text}")

    def _send(self, symbol: str, *, is_tail: bool) -> Value | None:
        shift = 1 if symbol.endswith("_stret") else 0  # the result's address comes first
        selector = self._argument(1 + shift)
        if not isinstance(selector, Selector):
            self._lead_to(None, is_tail=is_tail)
            return None
        if "Super" in symbol:  # the receiver is in a structure
            return self._message_to(selector.name, None, is_tail=is_tail)
        return self._message_to(selector.name, self._argument(shift), is_tail=is_tail)

    def _message(self, selector: str, *, is_tail: bool) -> Value | None:
        return self._message_to(selector, self._argument(0), is_tail=is_tail)

    def _message_to(self, selector: str, receiver: Value | None, *, is_tail: bool) -> Value | None:
        self._uses.append(MessageUse(selector, receiver, self._at, self._after, is_tail))
        argument = self._argument(2)
        if selector in LOOK_UP_KEYS and isinstance(argument, Text):
            self._uses.append(TextUse(argument.text, selector, self._at, self._after))
        if selector in _PERFORMS and isinstance(argument, Selector):
            self._uses.append(MessageUse(argument.name, receiver, self._at, self._after, is_tail))
        if isinstance(receiver, ClassObject):
            if selector in ("class", "self"):
                return receiver
            return Instance(receiver.name) if _makes(selector, receiver.name) else None
        if isinstance(receiver, Instance):
            is_same = selector in _RETURN_SELF or _begins(selector, "init")
            return receiver if is_same else None
        return None


def _begins(selector: str, word: str) -> bool:
    """Return whether a selector's first word is ``word``."""
    return selector.startswith(word) and not selector[len(word) : len(word) + 1].islower()


def _makes(selector: str, class_name: str) -> bool:
    """Return whether a class method returns an object of its class, by its name.

    Either it begins with a word for that, or with the end of the class's name:
    ``+[NSProcessInfo processInfo]``, ``+[NSURL URLWithString:]``.
    """
    if any(_begins(selector, word) for word in _MAKE):
        return True
    head = selector.partition(":")[0].partition("With")[0]
    return len(head) > 2 and class_name.lower().endswith(head.lower())  # noqa: PLR2004
