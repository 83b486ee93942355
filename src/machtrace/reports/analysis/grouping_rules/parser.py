"""Reads files of grouping rules: a rule a line, comments after ``#``.

``MATCHERS ACTIONS`` changes frames, ``MATCHERS -> PARTS`` sets the fingerprint.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import resources

from machtrace.errors import RulesError
from machtrace.reports.analysis.grouping_rules.globs import Glob, GlobError
from machtrace.reports.analysis.grouping_rules.rules import (
    Field,
    FingerprintRule,
    FlagAction,
    GroupingRules,
    Matcher,
    Matchers,
    Part,
    Reach,
    RuleLine,
    StackRule,
)

_MAX_TEXT_LENGTH = 1 << 20
_MAX_LINE_LENGTH = 1 << 13
_MAX_RULES = 2000
_REMEDY = "correct the line; docs/grouping-rules.md describes the syntax"

_FIELDS = {field.value: field for field in Field} | {
    "stack.function": Field.FUNCTION,
    "stack.package": Field.PACKAGE,
    "stack.abs_path": Field.PATH,
    "stack.path": Field.PATH,
    "stack.module": Field.MODULE,
    "error.type": Field.TYPE,
    "error.value": Field.VALUE,
    "error.mechanism": Field.MECHANISM,
    "message": Field.VALUE,
}
VARIABLES = {
    "default": "default",
    "function": "function",
    "stack.function": "function",
    "package": "package",
    "stack.package": "package",
    "module": "module",
    "stack.module": "module",
    "path": "path",
    "stack.abs_path": "path",
    "stack.filename": "filename",
    "type": "type",
    "error.type": "type",
    "value": "value",
    "error.value": "value",
    "message": "value",
    "mechanism": "mechanism",
    "error.mechanism": "mechanism",
}
"""The variables of fingerprint rules, with the names that they are stored by."""

_SPACE = re.compile(r"[ \t]*")
_MATCHER = re.compile(r'(?P<not>!?)(?:(?P<key>[A-Za-z0-9_.-]+)|"(?P<quoted>[A-Za-z0-9_.:-]+)"):')
_QUOTED = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"')
_UNQUOTED = re.compile(r"[^ \t]+")
_FLAG = re.compile(r"(?P<reach>[\^v]?)(?P<sign>[+-])(?P<flag>app|group)(?=[ \t#]|$)")
_SETTING = re.compile(r"(?P<key>[A-Za-z-]+)[ \t]*=[ \t]*(?P<value>[A-Za-z0-9_.-]+)(?=[ \t#]|$)")
_VARIABLE = re.compile(r"\{\{[ \t]*([A-Za-z0-9_.-]+)[ \t]*\}\}")
_PART = re.compile(r"[^ \t,{]+")
_TITLE = re.compile(r"title=(?=\")")
_YES = {"yes": "yes", "true": "yes", "1": "yes", "no": "no", "false": "no", "0": "no"}
_FAMILY = re.compile(r"[A-Za-z0-9_-]+(?:,[A-Za-z0-9_-]+)*")


def parse_rules(text: str, source: str) -> GroupingRules:
    """Parse a file of grouping rules.

    Args:
        text: its contents.
        source: its name, for errors and explanations.

    Raises:
        RulesError: a line is no rule; the message has its number.
    """
    if len(text) > _MAX_TEXT_LENGTH:
        raise RulesError(f"{source}: more than {_MAX_TEXT_LENGTH:,} characters", remedy=_REMEDY)
    stack: list[StackRule] = []
    fingerprints: list[FingerprintRule] = []
    for number, line in enumerate(text.split("\n"), 1):
        content = line.strip()
        if not content or content.startswith("#"):
            continue
        where = RuleLine(source, number, content)
        if len(stack) + len(fingerprints) == _MAX_RULES:
            raise _error(where, f"more than {_MAX_RULES:,} rules")
        rule = _Line(where).rule()
        if isinstance(rule, StackRule):
            stack.append(rule)
        else:
            fingerprints.append(rule)
    return GroupingRules(source, text, tuple(stack), tuple(fingerprints))


@lru_cache(1)
def builtin_rules() -> GroupingRules:
    """Return the rules that machtrace has itself; they are applied only if passed."""
    package = "machtrace.reports.analysis.grouping_rules"
    text = (resources.files(package) / "builtin.rules").read_text("utf-8")
    return parse_rules(text, "builtin.rules")


def _error(where: RuleLine, problem: str, remedy: str = _REMEDY) -> RulesError:
    return RulesError(f"{where.source}:{where.line}: {problem}", remedy=remedy)


class _Line:
    """Parses one line."""

    def __init__(self, where: RuleLine) -> None:
        self._where = where
        self._text = where.text
        self._at = 0
        if len(self._text) > _MAX_LINE_LENGTH:
            raise self._error(f"more than {_MAX_LINE_LENGTH:,} characters")

    def rule(self) -> StackRule | FingerprintRule:
        """Return the rule."""
        caller: tuple[Matcher, ...] = ()
        callee: tuple[Matcher, ...] = ()
        if self._takes("["):
            caller = self._neighbour()
            if not self._takes("|"):
                raise self._error("no | after the matchers of the caller")
        own = self._matchers()
        if self._takes("|"):
            if not self._takes("["):
                raise self._error("no [ before the matchers of the callee")
            callee = self._neighbour()
        if not (caller or own or callee):
            raise self._error(f"no matcher, such as function:abort, at {self._rest()}")
        matchers = Matchers(
            cause=tuple(each for each in own if each.field.is_of_cause),
            own=tuple(each for each in own if not each.field.is_of_cause),
            caller=caller,
            callee=callee,
        )
        return self._fingerprint(matchers) if self._takes("->") else self._actions(matchers)

    def _error(self, problem: str, remedy: str = _REMEDY) -> RulesError:
        return _error(self._where, problem, remedy)

    def _rest(self) -> str:
        rest = self._text[self._at : self._at + 40]
        return repr(rest) if rest else "the end of the line"

    def _skip(self) -> bool:
        """Skip blanks; return whether the rule has more."""
        space = _SPACE.match(self._text, self._at)
        self._at = self._at if space is None else space.end()
        return self._at < len(self._text) and self._text[self._at] != "#"

    def _takes(self, sign: str) -> bool:
        self._skip()
        if not self._text.startswith(sign, self._at):
            return False
        self._at += len(sign)
        return True

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self._text, self._at)
        if match is not None:
            self._at = match.end()
        return match

    def _neighbour(self) -> tuple[Matcher, ...]:
        matchers = self._matchers()
        if any(matcher.field.is_of_cause for matcher in matchers):
            raise self._error("a matcher of the exception is in brackets", "move it out of them")
        if not matchers or not self._takes("]"):
            raise self._error(
                f"no ] after matchers, at {self._rest()}",
                "write blanks inside of the brackets, as in [ function:main ]",
            )
        return matchers

    def _matchers(self) -> tuple[Matcher, ...]:
        matchers: list[Matcher] = []
        while self._skip() and (match := self._match(_MATCHER)) is not None:
            name = match["key"] or match["quoted"]
            field = _FIELDS.get(name)
            if field is None:
                raise self._error(f"unknown matcher {name!r}", f"use one of: {', '.join(_FIELDS)}")
            matchers.append(self._matcher(field, self._value(name), is_negated=bool(match["not"])))
        return tuple(matchers)

    def _value(self, name: str) -> str:
        if self._text.startswith('"', self._at):
            match = self._match(_QUOTED)
            if match is None:
                raise self._error(f"the quoted value of {name!r} does not end")
            value = match[1].replace('\\"', '"')
        else:
            match = self._match(_UNQUOTED)
            value = "" if match is None else match[0]
        if not value:
            raise self._error(f"{name!r} has no value")
        return value

    def _matcher(self, field: Field, value: str, *, is_negated: bool) -> Matcher:
        if field is Field.APP:
            if value.lower() not in _YES:
                raise self._error(f"app is {value!r}", "write app:yes or app:no")
            return Matcher(field, is_negated, words=frozenset({_YES[value.lower()]}))
        if field is Field.FAMILY:
            if _FAMILY.fullmatch(value) is None:
                raise self._error(f"family is {value!r}", "write names separated by commas")
            return Matcher(field, is_negated, words=frozenset(value.lower().split(",")))
        try:
            glob = Glob(
                value,
                is_path=field in {Field.PACKAGE, Field.PATH},
                has_case=field is not Field.VALUE,
            )
        except GlobError as error:
            raise self._error(f"{field.value}: {error}") from None
        return Matcher(field, is_negated, glob)

    def _actions(self, matchers: Matchers) -> StackRule:
        flags: list[FlagAction] = []
        category: str | None = None
        limits: dict[str, int] = {}
        while self._skip():
            match = self._match(_FLAG)
            if match is not None:
                reach = Reach(match["reach"])
                flags.append(FlagAction(match["flag"], match["sign"] == "+", reach))
                continue
            match = self._match(_SETTING)
            if match is not None and match["key"] == "category":
                category = match["value"]
            elif match is not None and match["key"] in {"max-frames", "min-frames"}:
                limits[match["key"]] = self._number(match["key"], match["value"])
            else:
                if match is not None:
                    self._at = match.start()
                raise self._error(
                    f"unknown action at {self._rest()}",
                    "use +app, -app, +group or -group, with ^ or v before it, category=NAME, "
                    "max-frames=N, min-frames=N, or -> and a fingerprint",
                )
        if not flags and category is None and not limits:
            raise self._error("matchers without an action", "add an action, such as -group")
        return StackRule(
            self._where,
            matchers,
            tuple(flags),
            category,
            limits.get("max-frames"),
            limits.get("min-frames"),
        )

    def _number(self, key: str, value: str) -> int:
        if not (value.isascii() and value.isdigit() and len(value) <= len("999999")):
            raise self._error(f"{key} is {value!r}", "write a number of frames")
        return int(value)

    def _fingerprint(self, matchers: Matchers) -> FingerprintRule:
        parts: list[Part] = []
        title: tuple[Part, ...] = ()
        while self._skip():
            if self._match(_TITLE) is not None:
                title = self._template(self._value("title"))
            elif (match := self._match(_VARIABLE)) is not None:
                parts.append(self._variable(match[1]))
            elif self._text.startswith('"', self._at):
                parts.append(self._whole(self._value("->")))
            elif (match := self._match(_PART)) is not None:
                parts.append(Part(match[0]))
            else:
                raise self._error(
                    f"no part of a fingerprint at {self._rest()}",
                    "write words, quoted texts or variables such as {{ default }}",
                )
            self._takes(",")
        if not parts:
            raise self._error("no fingerprint after ->", "add one, such as {{ default }}")
        return FingerprintRule(self._where, matchers, tuple(parts), title)

    def _variable(self, name: str) -> Part:
        if name not in VARIABLES:
            raise self._error(f"unknown variable {name!r}", f"use one of: {', '.join(VARIABLES)}")
        return Part(VARIABLES[name], is_variable=True)

    def _whole(self, value: str) -> Part:
        match = _VARIABLE.fullmatch(value)
        return Part(value) if match is None else self._variable(match[1])

    def _template(self, value: str) -> tuple[Part, ...]:
        pieces = _VARIABLE.split(value)
        plain = [Part(piece) for piece in pieces[::2]]
        variables = [self._variable(name) for name in pieces[1::2]]
        if any(variable.text == "default" for variable in variables):
            raise self._error("a title has no {{ default }}", "use another variable")
        mixed = [piece for pair in zip(plain, variables, strict=False) for piece in pair]
        return tuple(piece for piece in (*mixed, plain[-1]) if piece.text)
