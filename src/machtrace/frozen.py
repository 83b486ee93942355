"""``dataclass`` for frozen classes, at a fifth of the standard library's start-up cost.

:func:`dataclasses.dataclass` compiles six methods for each frozen class. Up to Python 3.12 that is
half a millisecond a class, and was half of the time of a first stack. Here only ``__init__`` is
compiled; the other methods are closures over the fields. Type checkers see the standard decorator,
and :func:`dataclasses.fields`, ``replace`` and ``asdict`` work as usual
(``docs/decisions/0032-frozen-dataclasses.md``).
"""

from __future__ import annotations

__all__ = ["dataclass"]

TYPE_CHECKING = False  # as type checkers read it; typing's own costs an import

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass
    from typing import Any, NoReturn
else:
    import dataclasses
    from operator import attrgetter
    from reprlib import recursive_repr

    def dataclass(
        cls: type | None = None,
        /,
        *,
        frozen: bool = False,
        eq: bool = True,
        repr: bool = True,  # noqa: A002 (the standard decorator's argument)
        **options: bool,
    ) -> Any:  # noqa: ANN401 (a class, or a decorator of classes)
        """Decorate a class as :func:`dataclasses.dataclass` does.

        A class that is not frozen is left to the standard library.
        """

        def decorate(cls: type) -> type:
            made = dataclasses.dataclass(cls, init=False, eq=False, repr=False, **options)
            methods = [_init(made), *_pickling(made), _setattr, _delattr]
            if eq:
                methods += _comparison(made)
                if made.__dict__.get("__hash__", cls) is None:  # it has an __eq__ of its own
                    del made.__hash__
            if repr:
                methods.append(_repr(made))
            for method in methods:
                if method.__name__ not in made.__dict__:
                    setattr(made, method.__name__, method)
            return made

        if not frozen:
            return dataclasses.dataclass(cls, eq=eq, repr=repr, **options)
        return decorate if cls is None else decorate(cls)

    class _Factory:
        """The default of a field with a factory, as signatures show it."""

        def __repr__(self) -> str:
            return "<factory>"

    _FACTORY = _Factory()

    def _init(cls: type) -> Callable[..., None]:
        """Compile ``__init__``, with parameters in the order of the standard library's."""
        names = {"_set": object.__setattr__, "_factory": _FACTORY}
        positional, keywords, body = ["self"], [], []
        annotations = {}
        for field in dataclasses.fields(cls):
            annotations[field.name] = field.type
            name = value = field.name
            slot = getattr(cls, name, None)
            if hasattr(slot, "__set__"):  # a slot's descriptor stores past __setattr__
                names[f"_set_{name}"] = slot.__set__
                store = f"_set_{name}(self, "
            else:
                store = f"_set(self, {name!r}, "
            default = ""
            if field.default is not dataclasses.MISSING:
                names[f"_default_{name}"] = field.default
                default = f"=_default_{name}"
            elif field.default_factory is not dataclasses.MISSING:
                names[f"_factory_{name}"] = field.default_factory
                default = "=_factory"
                value = f"_factory_{name}() if {name} is _factory else {name}"
            (keywords if field.kw_only else positional).append(name + default)
            body.append(f"    {store}{value})\n")
        if hasattr(cls, "__post_init__"):
            body.append("    self.__post_init__()\n")
        parameters = ", ".join([*positional, *(["*", *keywords] if keywords else [])])
        code = f"def __init__({parameters}):\n{''.join(body) or '    pass'}"
        exec(code, names)  # noqa: S102 (names of fields; the standard library does the same)
        init = names["__init__"]
        init.__annotations__ = {**annotations, "return": None}
        return init

    def _setattr(_self: object, name: str, _value: object) -> NoReturn:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def _delattr(_self: object, name: str) -> NoReturn:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    _setattr.__name__, _delattr.__name__ = "__setattr__", "__delattr__"

    def _comparison(cls: type) -> tuple[Callable[..., object], ...]:
        names = [field.name for field in dataclasses.fields(cls) if field.compare]
        key = attrgetter(*names) if names else lambda _: ()

        def __eq__(self: object, other: object) -> bool:  # noqa: N807 (becomes a method)
            if other.__class__ is not self.__class__:
                return NotImplemented
            return key(self) == key(other)

        def __hash__(self: object) -> int:  # noqa: N807
            return hash(key(self))

        return __eq__, __hash__

    def _repr(cls: type) -> Callable[[object], str]:
        names = [field.name for field in dataclasses.fields(cls) if field.repr]

        @recursive_repr()
        def __repr__(self: object) -> str:  # noqa: N807
            values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
            return f"{self.__class__.__qualname__}({values})"

        return __repr__

    def _pickling(cls: type) -> tuple[Callable[..., object], ...]:
        """Save and restore fields past ``__setattr__``; slots leave no ``__dict__`` for it."""
        names = [field.name for field in dataclasses.fields(cls)]

        def __getstate__(self: object) -> list[object]:  # noqa: N807
            return [getattr(self, name) for name in names]

        def __setstate__(self: object, state: list[object]) -> None:  # noqa: N807
            for name, value in zip(names, state, strict=True):
                object.__setattr__(self, name, value)

        return __getstate__, __setstate__
