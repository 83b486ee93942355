"""Families of functions that an audit watches, and whose code calls them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import NamedTuple

from machtrace.audit.libraries import Library
from machtrace.audit.rules import Rule, RuleKind, RuleSet, load_rules, method_of
from machtrace.warehouse.function_tree import Function
from machtrace.warehouse.graphs.audit_matrix import Caller
from machtrace.warehouse.warehouse import Warehouse

_OWNERS = """
SELECT name, CASE
    WHEN bool_or(owner = 'app') AND bool_or(path LIKE '%/Frameworks/%') THEN 'sdk'
    WHEN bool_or(owner = 'app') THEN 'app'
    WHEN bool_or(owner = 'system') THEN 'system' ELSE 'unknown' END AS owner
FROM images GROUP BY name
"""


class Family(NamedTuple):
    """Watched functions of one kind of data."""

    name: str
    required: tuple[str, ...]
    """Apple's required-reason categories."""
    functions: int


def image_owners(warehouse: Warehouse) -> dict[str, str]:
    """Return by name of an image: app, sdk (a framework inside of an app), system or unknown."""
    rows = warehouse.query(_OWNERS).to_pylist()
    return {row["name"] or "": row["owner"] for row in rows}


@cache
def families() -> tuple[Family, ...]:
    """Return the families, those with required reasons first."""
    by_name: dict[str, list[Rule]] = {}
    for rule in _rules().rules:
        by_name.setdefault(rule.category, []).append(rule)
    made = [
        Family(name, tuple(sorted({each for rule in rules for each in rule.required})), len(rules))
        for name, rules in by_name.items()
    ]
    return tuple(sorted(made, key=lambda each: (not each.required, each.name)))


@lru_cache(maxsize=1 << 16)
def family_of(name: str) -> str | None:
    """Return the family of a function; None if it is not watched."""
    rule = _by_name().get(name) or _rules().of_symbol(f"_{name}")
    if rule is None:
        plain = name.partition(".")[2]
        rule = next(
            (
                each
                for prefix, each in _by_prefix()
                if name.startswith(prefix) or plain.startswith(prefix)
            ),
            None,
        )
    return None if rule is None else rule.category


def caller_of(owners: Mapping[str, str]) -> Callable[[Function], Caller | None]:
    """Return whose code a function is: a library's, an image's; None: the system's.

    Args:
        owners: see :func:`image_owners`.
    """

    def caller(function: Function) -> Caller | None:
        owner = owners.get(function.image, "unknown")
        if owner == "system" or not function.image:
            return None
        library = _library(function.name) if owner == "app" else None
        return Caller(function.image, owner) if library is None else Caller(library, "sdk")

    return caller


@cache
def _rules() -> RuleSet:
    return load_rules()


@cache
def _by_name() -> dict[str, Rule]:
    return {rule.watch: rule for rule in _rules().rules}


@cache
def _by_prefix() -> tuple[tuple[str, Rule], ...]:
    rules = [rule for rule in _rules().rules if rule.kind is RuleKind.SWIFT and rule.demangled]
    return tuple((rule.demangled, rule) for rule in rules)


@lru_cache(maxsize=1 << 16)
def _library(name: str) -> str | None:
    """Return the library that is linked into an app, by a function's name."""
    method = method_of(name)
    if method is not None:
        claims = [(each.class_prefix(method.class_name), each.name) for each in _libraries()]
        known = [(len(prefix), library) for prefix, library in claims if prefix]
        return max(known)[1] if known else None
    module = name.partition(".")[0]
    for each in _libraries():
        if module in each.modules or (each.functions and name.startswith(each.functions)):
            return each.name
    return None


@cache
def _libraries() -> tuple[Library, ...]:
    return _rules().libraries
