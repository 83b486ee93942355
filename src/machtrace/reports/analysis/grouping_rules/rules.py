"""Grouping rules: lines of matchers with actions on frames, or with a fingerprint.

The syntax is that of Sentry's stack trace rules and fingerprint rules
(docs.sentry.io/concepts/data-management/event-grouping); ``docs/grouping-rules.md`` lists the parts
that are read here.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from machtrace.frozen import dataclass
from machtrace.reports.analysis.grouping_rules.globs import Glob


class RuleFrame(NamedTuple):
    """A frame as matchers see it; empty texts are unknown, and match no pattern."""

    functions: tuple[str, ...] = ()
    """Its spellings; the last one, without the parts that builds change, is a variable's value."""
    package: str = ""
    """The image's path, or its name if the path is unknown."""
    path: str = ""
    """The source file."""
    module: str = ""
    """The module in the language's sense; native code has none."""
    family: str = "native"


class Raised(NamedTuple):
    """The cause of a report as matchers see it; each may have several spellings."""

    types: tuple[str, ...] = ()
    """``NSRangeException``, ``EXC_CRASH``, ``SIGABRT``; the most specific one is first."""
    values: tuple[str, ...] = ()
    """The reason in words."""
    mechanisms: tuple[str, ...] = ()
    """How it was noticed: ``exception``, ``mach``, ``signal``, or the kind of an incident."""


class Field(Enum):
    """The part of a frame or of a cause that a matcher tests."""

    FAMILY = "family"
    FUNCTION = "function"
    PACKAGE = "package"
    PATH = "path"
    MODULE = "module"
    CATEGORY = "category"
    APP = "app"
    TYPE = "type"
    VALUE = "value"
    MECHANISM = "mechanism"

    @property
    def is_of_cause(self) -> bool:
        """Whether it is a part of the cause, not of a frame."""
        return self in _OF_CAUSE

    @property
    def is_changing(self) -> bool:
        """Whether rules before can have changed it."""
        return self in {Field.CATEGORY, Field.APP}


_OF_CAUSE = frozenset({Field.TYPE, Field.VALUE, Field.MECHANISM})


class Matcher(NamedTuple):
    """A test of one field."""

    field: Field
    is_negated: bool
    glob: Glob | None = None
    words: frozenset[str] = frozenset()
    """The families, or ``yes`` or ``no`` for :attr:`Field.APP`."""

    def matches_frame(self, frame: RuleFrame, category: str, *, is_app: bool) -> bool:
        """Return whether the frame passes, negation included."""
        match self.field:
            case Field.FAMILY:
                passes = "all" in self.words or frame.family in self.words
            case Field.APP:
                passes = ("yes" in self.words) is is_app
            case Field.FUNCTION:
                passes = self._any(frame.functions)
            case Field.PACKAGE:
                passes = self._any((frame.package,))
            case Field.PATH:
                passes = self._any((frame.path,))
            case Field.MODULE:
                passes = self._any((frame.module,))
            case _:
                passes = self._any((category,))
        return passes is not self.is_negated

    def matches_cause(self, raised: Raised) -> bool:
        """Return whether the cause passes, negation included."""
        match self.field:
            case Field.TYPE:
                texts = raised.types
            case Field.VALUE:
                texts = raised.values
            case _:
                texts = raised.mechanisms
        return self._any(texts) is not self.is_negated

    def _any(self, texts: tuple[str, ...]) -> bool:
        glob = self.glob
        if glob is None:
            return False
        if glob.exact is not None:
            return texts != ("",) and not glob.exact.isdisjoint(texts)
        return any(text and _matches(glob, text) for text in texts)


@lru_cache(1 << 15)
def _matches(glob: Glob, text: str) -> bool:
    return glob.matches(text)


class Matchers(NamedTuple):
    """The left side of a rule; all must pass."""

    cause: tuple[Matcher, ...] = ()
    own: tuple[Matcher, ...] = ()
    """Tests of the frame itself."""
    caller: tuple[Matcher, ...] = ()
    """Tests of the next frame outwards; there must be one, if there are any."""
    callee: tuple[Matcher, ...] = ()
    """Tests of the next frame inwards, towards the crash."""

    @property
    def of_frames(self) -> bool:
        """Whether any test is of a frame."""
        return bool(self.own or self.caller or self.callee)


class Reach(Enum):
    """Which frames an action changes, seen from the one that matched."""

    ITSELF = ""
    INWARDS = "^"
    """All frames between it and the crash."""
    OUTWARDS = "v"
    """All of its callers."""


class FlagAction(NamedTuple):
    """Marks frames as the app's or not, or as part of the fingerprint or not."""

    flag: str
    """``app`` or ``group``."""
    is_set: bool
    reach: Reach = Reach.ITSELF


class RuleLine(NamedTuple):
    """Where a rule is written."""

    source: str
    line: int
    """From 1."""
    text: str

    def __str__(self) -> str:
        return f"{self.source}:{self.line}: {self.text}"


class StackRule(NamedTuple):
    """A rule that changes which frames are the app's, or count."""

    where: RuleLine
    matchers: Matchers
    flags: tuple[FlagAction, ...] = ()
    category: str | None = None
    max_frames: int | None = None
    min_frames: int | None = None

    @property
    def is_modifier(self) -> bool:
        """Whether it changes the fields that matchers test."""
        return self.category is not None or any(flag.flag == "app" for flag in self.flags)

    @property
    def is_chooser(self) -> bool:
        """Whether it changes which frames count."""
        limits = (self.max_frames, self.min_frames)
        return limits != (None, None) or any(flag.flag == "group" for flag in self.flags)


class Part(NamedTuple):
    """A part of a fingerprint: text, or a variable's name."""

    text: str
    is_variable: bool = False


class FingerprintRule(NamedTuple):
    """A rule that sets the fingerprint."""

    where: RuleLine
    matchers: Matchers
    parts: tuple[Part, ...]
    title: tuple[Part, ...] = ()
    """The title of the group, in pieces; empty if the rule has none."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupingRules:
    """The rules of a file, in its order."""

    source: str
    text: str
    stack: tuple[StackRule, ...]
    fingerprints: tuple[FingerprintRule, ...]

    @property
    def digest(self) -> str:
        """The identity of the text: 32 hexadecimal digits."""
        return blake2b(self.text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def __iter__(self) -> Iterator[RuleLine]:
        """Yield where each rule is written, those of stacks first."""
        yield from (rule.where for rule in self.stack)
        yield from (rule.where for rule in self.fingerprints)

    def __len__(self) -> int:
        return len(self.stack) + len(self.fingerprints)

    def __add__(self, other: GroupingRules) -> GroupingRules:
        """Return the rules of both: ``other``'s are applied later, so that they win."""
        return GroupingRules(
            f"{self.source}, {other.source}",
            f"{self.text}\n{other.text}",
            self.stack + other.stack,
            # The first fingerprint wins.
            other.fingerprints + self.fingerprints,
        )
