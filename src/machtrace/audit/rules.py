"""Rules: the calls, constants and files that give an app private data.

A file of rules is TOML: ``schema = 1``, ``name``, and an array ``rules`` of tables, whose keys are
described at the top of ``privacy.toml``, the built-in set. ``include = ["privacy"]`` adds another
set; a rule of the file replaces the included one that watches the same. ``policies`` state what is
a fault (:mod:`~machtrace.audit.policies`), ``allowed`` lists the libraries that may call what is
watched, and ``libraries`` state whose a class, function or module is
(:mod:`~machtrace.audit.libraries`).
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import cached_property
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from machtrace.audit.libraries import Library, parse_libraries
from machtrace.audit.policies import Condition, Policy, Severity, parse_policies
from machtrace.errors import FileAccessError, RulesError
from machtrace.frozen import dataclass

PRIVACY = "privacy"
"""The built-in set."""
SCHEMA = 1
_MAX_BYTES = 1 << 24
"""Bytes of a file of rules."""
_METHOD = re.compile(r"([-+])\[([A-Za-z_$][\w$.]*) ([A-Za-z_$:][\w$:]*)\]\Z")
_SYMBOL = re.compile(r"[A-Za-z_$][\w$.]*\Z")


class RuleKind(Enum):
    """The kind of thing that a rule watches."""

    OBJC = "objc"
    """A method."""
    C = "c"
    """A C function."""
    DATA = "data"
    """A constant that is an argument of a call."""
    SWIFT = "swift"
    """A Swift declaration, by linkage names or demangled names."""
    FILE = "file"
    """A file, by its path."""


class Rate(Enum):
    """How often apps call it."""

    LOW = "L"
    MEDIUM = "M"
    HIGH = "H"


class Method(NamedTuple):
    """An Objective-C method."""

    is_class_method: bool
    class_name: str
    selector: str


def method_of(watch: str) -> Method | None:
    """Return the method of a name such as ``-[UIDevice name]``; None if it is none of a method."""
    match = _METHOD.match(watch)
    return Method(match[1] == "+", match[2], match[3]) if match else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One watched thing."""

    watch: str
    """Its name: ``-[UIDevice identifierForVendor]``, ``stat``; unique in a set."""
    kind: RuleKind
    category: str
    """The kind of data."""
    zh: str = ""
    """The category in Chinese."""
    framework: str = ""
    """The public framework that declares it."""
    symbols: tuple[str, ...] = ()
    """The linkage names of a Swift declaration."""
    demangled: str = ""
    """The beginning of its demangled name, module aside."""
    required: tuple[str, ...] = ()
    """Apple's required-reason categories, without ``NSPrivacyAccessedAPICategory``."""
    usage: str = ""
    """The key of Info.plist that states the purpose."""
    report: str = ""
    """The category of the App Privacy Report."""
    rate: Rate = Rate.MEDIUM
    since: str = ""
    """The first version of iOS."""
    unverified: bool = False
    """Whether no header, export list or document of Apple has it."""
    note: str = ""

    @property
    def method(self) -> Method | None:
        """The watched method; None if the rule watches something else."""
        return method_of(self.watch) if self.kind is RuleKind.OBJC else None

    @property
    def linkage_names(self) -> tuple[str, ...]:
        """The linkage names that the rule watches, for functions and constants."""
        if self.kind in (RuleKind.C, RuleKind.DATA):
            return (f"_{self.watch}",)
        return self.symbols

    def category_in(self, language: str) -> str:
        """Return the category in ``en`` or ``zh``."""
        return self.zh or self.category if language == "zh" else self.category


@dataclass(frozen=True, kw_only=True)  # without slots, for its cached property
class RuleSet:
    """Rules, each of which watches something else."""

    name: str
    rules: tuple[Rule, ...]
    source: str = PRIVACY
    """The file."""
    policies: tuple[Policy, ...] = ()
    allowed: tuple[str, ...] = ()
    """The libraries that may call what is watched; empty for any."""
    libraries: tuple[Library, ...] = ()
    """Whose classes, functions and modules are whose."""
    digest: str = ""
    """The SHA-256 of the file and of those that it includes, in hexadecimal."""
    files: tuple[tuple[str, bytes], ...] = ()
    """The names and contents of the file and of those that it includes."""

    def __len__(self) -> int:
        return len(self.rules)

    @cached_property
    def by_linkage_name(self) -> Mapping[str, Rule]:
        """The rules for functions and constants."""
        return {name: rule for rule in self.rules for name in rule.linkage_names}

    @cached_property
    def by_selector(self) -> Mapping[str, tuple[Rule, ...]]:
        """The rules for methods; several classes may have one of the same selector."""
        by_selector: dict[str, tuple[Rule, ...]] = {}
        for rule in self.rules:
            if (method := rule.method) is not None:
                known = by_selector.get(method.selector, ())
                by_selector[method.selector] = (*known, rule)
        return by_selector

    def severity(self, condition: Condition, default: Severity | None) -> Severity | None:
        """Return a condition's severity; None if it is ignored, ``default`` without a policy."""
        policies = {policy.condition: policy.severity for policy in self.policies}
        return policies.get(condition, default)

    def of_symbol(self, name: str) -> Rule | None:
        """Return the rule for a linkage name.

        C functions have variants for older systems and other struct layouts, whose names have a
        suffix: ``_stat$INODE64``.
        """
        rule = self.by_linkage_name.get(name)
        if rule is None and "$" in name and not name.startswith("_$"):
            rule = self.by_linkage_name.get(name.partition("$")[0])
        return rule


def load_rules(source: str | Path = PRIVACY) -> RuleSet:
    """Read a set of rules.

    Args:
        source: ``privacy`` for the built-in set, or a file.

    Raises:
        FileAccessError: the file cannot be read.
        RulesError: it is not a file of rules.
    """
    return _loaded(source, ())


def _loaded(source: str | Path, including: tuple[str, ...]) -> RuleSet:
    name = str(source)
    if name in including:
        raise RulesError(f"{name}: includes itself: {' → '.join((*including, name))}")
    data = _bytes(source)
    table = _table(data, name)
    included = [
        _loaded(PRIVACY if other == PRIVACY else Path(name).parent / other, (*including, name))
        for other in _strings(table.get("include", []), f"{name}: include")
    ]
    rules = {rule.watch: rule for each in included for rule in each.rules}
    rules |= {rule.watch: rule for rule in _rules(table.get("rules", []), name)}
    if not rules:
        raise RulesError(f"{name}: no rules")
    title = table.get("name", Path(name).stem)
    if not isinstance(title, str):
        raise RulesError(f"{name}: name is no string")
    policies = {policy.condition: policy for each in included for policy in each.policies}
    own = parse_policies(_strings(table.get("policies", []), f"{name}: policies"), name)
    policies |= {policy.condition: policy for policy in own}
    # A file's own libraries come first: the first that claims a name has it.
    libraries = parse_libraries(table.get("libraries", []), name)
    allowed = _strings(table.get("allowed", []), f"{name}: allowed")
    digest = sha256(data)
    for each in included:
        digest.update(each.digest.encode())
    return RuleSet(
        name=title,
        rules=tuple(rules.values()),
        source=name,
        policies=tuple(policies.values()),
        allowed=(*(library for part in included for library in part.allowed), *allowed),
        libraries=(*libraries, *(library for part in included for library in part.libraries)),
        digest=digest.hexdigest(),
        files=((name, data), *(file for each in included for file in each.files)),
    )


def _bytes(source: str | Path) -> bytes:
    if source == PRIVACY:
        return (resources.files("machtrace.audit") / "privacy.toml").read_bytes()
    return _read(Path(source))


def _table(data: bytes, source: str) -> dict[str, Any]:
    try:
        table = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RulesError(f"{source}: not TOML: {error}") from None
    except RecursionError:
        raise RulesError(f"{source}: nested too deeply") from None
    if table.get("schema") != SCHEMA:
        raise RulesError(
            f"{source}: schema {table.get('schema')!r} of rules, {SCHEMA} expected",
            remedy="a file of rules begins with: schema = 1",
        )
    return table


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        known = "" if path.suffix else f"; {PRIVACY!r} is the built-in set"
        reason = f"cannot read rules: {getattr(error, 'strerror', None) or error}{known}"
        raise FileAccessError(str(path), reason) from None
    if len(data) > _MAX_BYTES:
        raise RulesError(f"{path}: larger than {_MAX_BYTES} bytes")
    return data


def _rules(rows: object, source: str) -> list[Rule]:
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise RulesError(f"{source}: rules is not an array of tables")
    rules = [_rule(row, f"{source}: rule {number}") for number, row in enumerate(rows, 1)]
    doubles = [watch for watch, count in Counter(rule.watch for rule in rules).items() if count > 1]
    if doubles:
        raise RulesError(f"{source}: several rules watch {doubles[0]}")
    return rules


_TEXTS = ("watch", "category", "zh", "framework", "demangled", "usage", "report", "since", "note")
_KEYS = frozenset({*_TEXTS, "kind", "symbols", "required", "rate", "unverified"})


def _rule(row: Mapping[str, Any], place: str) -> Rule:
    unknown = sorted(set(row) - _KEYS)
    if unknown:
        raise RulesError(f"{place}: unknown key {unknown[0]!r}")
    texts = {key: row.get(key, "") for key in _TEXTS}
    for key, value in texts.items():
        if not isinstance(value, str):
            raise RulesError(f"{place}: {key} is no string")
    if not texts["watch"]:
        raise RulesError(f"{place}: watches nothing: watch is missing")
    place = f"{place} ({texts['watch']})"
    try:
        kind = RuleKind(row.get("kind", _kind_of(texts["watch"]).value))
        rate = Rate(row.get("rate", "M"))
    except ValueError as error:
        raise RulesError(f"{place}: {error}") from None
    rule = Rule(
        **texts,
        kind=kind,
        rate=rate,
        symbols=_strings(row.get("symbols", []), f"{place}: symbols"),
        required=_strings(row.get("required", []), f"{place}: required"),
        unverified=row.get("unverified", False) is True,
    )
    _check(rule, place)
    return rule


def _kind_of(watch: str) -> RuleKind:
    if watch.startswith(("-[", "+[")):
        return RuleKind.OBJC
    return RuleKind.FILE if watch.startswith("/") else RuleKind.C


def _check(rule: Rule, place: str) -> None:
    """Refuse a rule that no call can match."""
    if not rule.category:
        raise RulesError(f"{place}: category is missing")
    if rule.kind is RuleKind.OBJC and rule.method is None:
        raise RulesError(f"{place}: not a method such as -[UIDevice identifierForVendor]")
    if rule.kind in (RuleKind.C, RuleKind.DATA) and not _SYMBOL.match(rule.watch):
        raise RulesError(f"{place}: not the name of a C function or constant")
    if rule.kind is RuleKind.SWIFT and not rule.symbols and not rule.demangled:
        raise RulesError(f"{place}: neither symbols nor demangled")
    if rule.kind is RuleKind.FILE and not rule.watch.startswith("/"):
        raise RulesError(f"{place}: not an absolute path")


def _strings(value: object, place: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise RulesError(f"{place}: not an array of strings")
    return tuple(value)


def selectors_of(rules: Iterable[Rule]) -> frozenset[str]:
    """Return the selectors of rules for methods."""
    methods = (rule.method for rule in rules)
    return frozenset(method.selector for method in methods if method is not None)
