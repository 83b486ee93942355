"""Globs of grouping rules, matched in time bounded by the lengths of pattern and text.

``*`` matches any characters, ``?`` one, ``[a-z]`` and ``[!a]`` one of a set, ``{a,b}`` either
alternative; a backslash escapes the next character. In paths ``*``, ``?`` and sets do not match a
slash, ``**`` does, backslashes are slashes and letters match without regard to case.
"""

from __future__ import annotations

from typing import NamedTuple

MAX_PATTERN_LENGTH = 1024
"""Maximum characters of a pattern."""
_MAX_TEXT_LENGTH = 4096
"""Characters of a text that are examined."""
_MAX_EXACT = 64
"""Maximum texts that a pattern without wildcards is expanded to."""
_MAX_DEPTH = 8
"""Maximum nesting of alternatives."""


class GlobError(ValueError):
    """A pattern is malformed."""


class _Step(NamedTuple):
    """A part of a pattern: characters, a set of characters, a wildcard or alternatives."""

    kind: str
    """``text``, ``set``, ``any``, ``run``, ``deep`` (``**``), ``folders`` (``**/``), ``either``."""
    text: str = ""
    ranges: tuple[tuple[str, str], ...] = ()
    is_negated: bool = False
    branches: tuple[tuple[_Step, ...], ...] = ()


class Glob:
    """A compiled pattern."""

    __slots__ = ("_is_path", "_literal", "_lowered", "_steps", "exact", "pattern")

    def __init__(self, pattern: str, *, is_path: bool = False, has_case: bool = True) -> None:
        """Compile a pattern.

        Raises:
            GlobError: a set or alternatives do not end, or the pattern is too long.
        """
        if len(pattern) > MAX_PATTERN_LENGTH:
            raise GlobError(f"a pattern of more than {MAX_PATTERN_LENGTH} characters")
        self.pattern = pattern
        self._is_path = is_path
        self._lowered = is_path or not has_case
        source = pattern.replace("\\\\", "/").replace("\\", "/") if is_path else pattern
        self._steps = _Compiler(source.lower() if self._lowered else source, is_path).whole()
        self._literal = max(
            (step.text for step in self._steps if step.kind == "text"), key=len, default=""
        )

        self.exact = None if self._lowered else _expanded(self._steps)
        """All texts that match, if they are few; None if case does not count, or in paths."""

    def matches(self, text: str) -> bool:
        """Return whether the pattern matches the whole of ``text``."""
        text = text[:_MAX_TEXT_LENGTH]
        if self._lowered:
            text = text.lower()
        start = 1
        if self._is_path:
            text = text.replace("\\", "/")
            if not text.startswith("/"):  # a relative path is below ``**/``, too
                text, start = f"/{text}", 3
        if self._literal not in text:
            return False
        if self.exact is not None:
            return text in self.exact
        return bool(_Text(text, self._is_path).after(self._steps, start) >> len(text))


def _expanded(steps: tuple[_Step, ...]) -> frozenset[str] | None:
    """Return the texts that steps match; None if there are many."""
    texts = [""]
    for step in steps:
        if step.kind == "text":
            texts = [text + step.text for text in texts]
            continue
        endings: list[str] = []
        for branch in step.branches:
            expanded = _expanded(branch)
            if expanded is None:
                return None
            endings += expanded
        if not endings or len(texts) * len(endings) > _MAX_EXACT:
            return None
        texts = [text + ending for text in texts for ending in endings]
    return frozenset(texts)


class _Text:
    """A text, and the positions of its characters as bits of integers.

    A set of positions is an integer, too: bit ``n`` is set if the steps so far can match the first
    ``n`` characters. Each step maps such a set to the next by a few operations on integers.
    """

    def __init__(self, text: str, is_path: bool) -> None:  # noqa: FBT001 - private
        self._all = (1 << len(text) + 1) - 1
        masks: dict[str, int] = {}
        for at, letter in enumerate(text):
            masks[letter] = masks.get(letter, 0) | 1 << at
        self._masks = masks
        self._slashes = masks.get("/", 0)
        self._in_run = (1 << len(text)) - 1
        if is_path:
            self._in_run &= ~self._slashes

    def after(self, steps: tuple[_Step, ...], start: int) -> int:
        """Return the positions that ``steps`` can reach from those in ``start``."""
        for step in steps:
            if not start:
                return 0
            match step.kind:
                case "text":
                    start = self._by_text(step.text, start)
                case "set":
                    start = (start & self._in_run & self._members(step)) << 1
                case "any":
                    start = (start & self._in_run) << 1
                case "run":
                    # The sum carries each position to the end of its run of characters.
                    run = self._in_run
                    start |= (run + (start & run)) ^ run
                case "deep":
                    start = self._onwards(start)
                case "folders":
                    start |= (self._onwards(start) & self._slashes) << 1
                case _:
                    start = self._by_either(step, start)
        return start

    def _by_text(self, text: str, start: int) -> int:
        for letter in text:
            start = (start & self._masks.get(letter, 0)) << 1
        return start

    def _by_either(self, step: _Step, start: int) -> int:
        reached = 0
        for branch in step.branches:
            reached |= self.after(branch, start)
        return reached

    def _onwards(self, start: int) -> int:
        return self._all & -(start & -start)

    def _members(self, step: _Step) -> int:
        members = 0
        for letter, mask in self._masks.items():
            if any(low <= letter <= high for low, high in step.ranges) is not step.is_negated:
                members |= mask
        return members


class _Compiler:
    """Parses a pattern."""

    def __init__(self, pattern: str, is_path: bool) -> None:  # noqa: FBT001 - private
        self._pattern = pattern
        self._is_path = is_path
        self._at = 0

    def whole(self) -> tuple[_Step, ...]:
        """Return the steps of the pattern."""
        steps = self._steps(0)
        if self._at < len(self._pattern):
            raise GlobError("a } without {; \\} is the character")
        return steps

    def _steps(self, depth: int) -> tuple[_Step, ...]:
        steps: list[_Step] = []
        text: list[str] = []
        pattern = self._pattern
        while self._at < len(pattern) and not (
            pattern[self._at] == "}" or (depth and pattern[self._at] == ",")
        ):
            letter = pattern[self._at]
            if letter not in "*?[{\\":
                text.append(letter)
                self._at += 1
                continue
            if letter == "\\":
                text.append(pattern[self._at + 1 : self._at + 2] or letter)
                self._at += 2
                continue
            before = "".join(text)
            if text:
                steps.append(_Step("text", before))
                text.clear()
            steps.append(self._special(letter, depth, before))
        if text:
            steps.append(_Step("text", "".join(text)))
        return tuple(steps)

    def _special(self, letter: str, depth: int, before: str) -> _Step:
        start = self._at
        if letter == "?":
            self._at += 1
            return _Step("any")
        if letter == "*":
            while self._pattern.startswith("*", self._at):
                self._at += 1
            if not self._is_path or self._at - start == 1:
                return _Step("run")
            if self._pattern.startswith("/", self._at) and (not start or before.endswith("/")):
                self._at += 1
                return _Step("folders")
            return _Step("deep")
        return self._set() if letter == "[" else self._either(depth)

    def _set(self) -> _Step:
        pattern = self._pattern
        at = self._at + 1
        is_negated = pattern[at : at + 1] in {"!", "^"}
        at += is_negated
        end = pattern.find("]", at + 1)  # a ] in front is a member
        if end == -1:
            raise GlobError("a [ without ]; \\[ is the character, in paths [[]")
        ranges: list[tuple[str, str]] = []
        while at < end:
            if at + 2 < end and pattern[at + 1] == "-":
                ranges.append((pattern[at], pattern[at + 2]))
                at += 3
            else:
                ranges.append((pattern[at], pattern[at]))
                at += 1
        self._at = end + 1
        return _Step("set", ranges=tuple(ranges), is_negated=is_negated)

    def _either(self, depth: int) -> _Step:
        if depth == _MAX_DEPTH:
            raise GlobError(f"alternatives nested more than {_MAX_DEPTH} deep")
        branches: list[tuple[_Step, ...]] = []
        while not branches or self._pattern.startswith(",", self._at):
            self._at += 1
            branches.append(self._steps(depth + 1))
        if not self._pattern.startswith("}", self._at):
            raise GlobError("a { without }; \\{ is the character, in paths [{]")
        self._at += 1
        return _Step("either", branches=tuple(branches))
