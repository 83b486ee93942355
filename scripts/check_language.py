#!/usr/bin/env python3
"""Check that prose and names use the field's words.

``python scripts/check_language.py [PATH...]`` reads docstrings, comments and messages of Python and
C sources and the text of Markdown pages, and prints each word of ``scripts/words.toml`` that stands
there, with what to write instead. It also rejects the variable names listed there, except where the
last use is within three lines of the binding, and words in names of constants that are limits.
Without a path it checks every file that git tracks. The exit status is 1 if anything was printed.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORDS = ROOT / "scripts" / "words.toml"
NEAR = 3
"""Lines between a binding and its last use within which any name will do."""
PROSE = re.compile(r"[A-Za-z']+ [A-Za-z']+ [A-Za-z']+")
"""Three words in a row: a string that a person reads, not a key or a format."""
FENCE = re.compile(r"^(```|~~~)")
CODE = re.compile(r"``[^`]*``|`[^`]*`|:\w+:`[^`]*`|\"[^\"\n]*\"|“[^”\n]*”")
"""Code and quotations inside prose; their words are somebody else's."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A word that is not used, what replaces it, and why."""

    pattern: re.Pattern[str]
    instead: str
    why: str


@dataclass(frozen=True, slots=True)
class WordList:
    """The rules of ``words.toml``."""

    rules: tuple[Rule, ...]
    opening: Rule
    """First words that a docstring does not have."""
    names: frozenset[str]
    limits: re.Pattern[str]
    """Names of constants that are limits, but for MAX and MIN."""
    excluded: tuple[str, ...]
    """Paths with texts of others: recorded reports, fixtures."""

    @classmethod
    def read(cls, path: Path) -> WordList:
        """Read and compile the list."""
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        rules = tuple(
            Rule(re.compile(rf"\b(?:{row['word']})\b", re.IGNORECASE), row["instead"], row["why"])
            for row in document["word"]
        )
        row = document["openings"]
        first = re.compile(rf"\s*(?:{'|'.join(row['words'])})\b")
        return cls(
            rules,
            Rule(first, row["instead"], row["why"]),
            frozenset(document["names"]["variables"]),
            re.compile(
                rf"(?:[A-Z0-9_]*_)?(?:{'|'.join(document['names']['limits'])})(?:_[A-Z0-9_]*)?"
            ),
            tuple(document["excluded"]),
        )


def main(arguments: list[str]) -> int:
    """Check the files named by the arguments, or all."""
    words = WordList.read(WORDS)
    paths = list(_files(arguments))
    count = 0
    for path in paths:
        relative = path.resolve().relative_to(ROOT).as_posix()
        if relative.startswith(words.excluded):
            continue
        for line, message in sorted(check(path, words)):
            print(f"{relative}:{line}: {message}")  # noqa: T201 (this is its output)
            count += 1
    if count:
        print(f"{count} to change; scripts/words.toml has the reasons")  # noqa: T201
    return 1 if count else 0


def check(path: Path, words: WordList) -> Iterator[tuple[int, str]]:
    """Yield line numbers and messages for one file."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".md":
        prose = _markdown(text)
    elif path.suffix in {".c", ".h"}:
        prose = _c_comments(text)
    else:
        tree = ast.parse(text)
        prose = _python_prose(text, tree)
        yield from _openings(tree, words.opening)
        yield from _names(tree, words.names)
        yield from _limits(tree, words.limits)
    for line, part in prose:
        for row, content in enumerate(_without_code(part).splitlines()):
            for rule in words.rules:
                for match in rule.pattern.finditer(content):
                    yield line + row, f"{match[0]!r}: write {rule.instead} ({rule.why})"


def _files(arguments: list[str]) -> Iterator[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *arguments]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603
    for name in listed.splitlines():
        path = Path(name)
        if path.suffix in {".py", ".md", ".c", ".h"} and path.is_file():
            yield path


def _without_code(text: str) -> str:
    """Blank code and quotations, so that lines keep their numbers."""
    return CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def _markdown(text: str) -> Iterator[tuple[int, str]]:
    lines, fenced = [], False
    for line in text.splitlines():
        is_fence = bool(FENCE.match(line.lstrip()))
        lines.append("" if fenced or is_fence else line)
        fenced ^= is_fence
    yield 1, "\n".join(lines)


def _c_comments(text: str) -> Iterator[tuple[int, str]]:
    for match in re.finditer(r"/\*.*?\*/|//[^\n]*", text, re.DOTALL):
        yield text.count("\n", 0, match.start()) + 1, match[0]


def _python_prose(text: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Constant) else None
        if isinstance(value, str) and PROSE.search(value):
            yield node.lineno, value
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _openings(tree: ast.AST, rule: Rule) -> Iterator[tuple[int, str]]:
    """Reject first words of docstrings, those of attributes as well."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = node.value.value
            if isinstance(text, str) and (match := rule.pattern.match(text)):
                yield (
                    node.lineno,
                    f"{match[0]!r} opens a docstring: write {rule.instead} ({rule.why})",
                )


def _names(tree: ast.AST, banned: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Reject banned variable names whose last use is far from the binding."""
    for scope in ast.walk(tree):
        if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        uses: dict[str, list[int]] = {}
        for node in _own_nodes(scope):
            name = node.id if isinstance(node, ast.Name) else getattr(node, "arg", None)
            if isinstance(node, ast.Name | ast.arg) and name in banned:
                uses.setdefault(name, []).append(node.lineno)
        for name, lines in uses.items():
            if max(lines) - min(lines) > NEAR:
                yield min(lines), f"variable {name!r}: name the thing"


def _limits(tree: ast.AST, banned: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """Reject names of constants that are limits in other words than MAX and MIN."""
    for node in ast.walk(tree):
        is_binding = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        if is_binding and banned.fullmatch(node.id):
            yield node.lineno, f"constant {node.id!r}: write MAX or MIN and the quantity"


def _own_nodes(scope: ast.AST) -> Iterable[ast.AST]:
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _own_nodes(child)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
