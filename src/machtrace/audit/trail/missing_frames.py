"""A tree of stacks with the functions that left no frame, as the instructions show them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from machtrace.audit.trail.calls import ImageRole
from machtrace.audit.trail.code_facts import Callee, CodeFacts, Goal, Path
from machtrace.audit.trail.libraries import CodeMap, Function
from machtrace.audit.trail.stacks import (
    NO_IMAGE,
    ROOT,
    SEVERAL,
    UNKNOWN_JUMP,
    Mask,
    Nodes,
    StackTree,
)

_Mark = int


class CompletedStacks(NamedTuple):
    """A tree with functions without frames."""

    tree: StackTree
    recorded: Nodes
    """By node: the recorded one; of a function without a frame, its caller's."""
    is_missing: Mask
    """By node: whether it has no frame."""


class CompletedTree:
    """A tree with nodes for functions without frames.

    Nodes of functions without frames have the address after the function's first byte, so that
    they are located in it.
    """

    def __init__(self, tree: StackTree, code: CodeMap, facts: CodeFacts) -> None:
        """Insert the functions between frames."""
        self._code, self._facts = code, facts
        self._indices = {image.key: index for index, image in enumerate(code.images)}
        self._located = code.locate(tree.image, tree.offset)
        inserted = self._between_frames(tree) if facts.calls else {}
        counts = np.zeros(len(tree), np.int64)
        counts[list(inserted)] = [len(functions) for functions in inserted.values()]
        self.node_of: Nodes = (np.arange(len(tree)) + np.cumsum(counts)).astype(np.int32)
        """By recorded node: the node in this tree."""
        size = len(tree) + int(counts.sum())
        self._parent = np.zeros(size, np.int32)
        self._image = np.full(size, NO_IMAGE, np.int32)
        self._offset = np.zeros(size, np.uint64)
        self._recorded = np.full(size, -1, np.int32)
        self._parent[self.node_of] = self.node_of[tree.parent]
        self._image[self.node_of], self._offset[self.node_of] = tree.image, tree.offset
        self._recorded[self.node_of] = np.arange(len(tree), dtype=np.int32)
        for node, functions in inserted.items():
            inner = int(self.node_of[node])
            outer = int(self._parent[inner])
            for number, function in enumerate(reversed(functions), inner - len(functions)):
                self._parent[number] = outer
                self._image[number], self._offset[number] = self._address(function)
                self._recorded[number] = self._recorded[outer]
                outer = number
            self._parent[inner] = outer
        self._is_missing = np.ones(size, np.bool_)
        self._is_missing[self.node_of] = False
        self._added: list[tuple[int, int, int, int]] = []
        self._nodes: dict[tuple[int, int, int], int] = {}

    def _address(self, function: Function | _Mark) -> tuple[int, int]:
        if isinstance(function, Function):
            return self._indices.get(function.image, NO_IMAGE), function.offset + 1
        return NO_IMAGE, function

    def _between_frames(self, tree: StackTree) -> dict[int, Sequence[Function | _Mark]]:
        """Return the functions between each recorded node and its caller, innermost first."""
        images = self._code.images
        is_known = np.zeros(len(tree), np.bool_)
        addresses: dict[tuple[int, int], Function] = {}
        for address in self._facts.calls:
            index = self._indices.get(address.image)
            if index is not None:
                addresses[index, address.offset] = address
        for index in {index for index, _ in addresses}:
            offsets = [offset for each, offset in addresses if each == index]
            is_known |= (tree.image == index) & np.isin(tree.offset, np.array(offsets, np.uint64))
        is_known[ROOT] = False
        inner = np.flatnonzero(is_known[tree.parent] & (tree.image >= 0))
        answers: dict[tuple[int, int, Goal], Sequence[Function | _Mark]] = {}
        inserted: dict[int, Sequence[Function | _Mark]] = {}
        for node in inner.tolist():
            caller = int(tree.parent[node])
            image = images[int(tree.image[node])]
            goal: Goal = None
            if image.role is not ImageRole.SYSTEM:
                start = int(self._located.function[node])
                if start < 0:
                    continue
                goal = Function(image.key, start)
            key = int(tree.image[caller]), int(tree.offset[caller]), goal
            if self._calls_original(addresses[key[:2]], caller):
                continue
            if key not in answers:
                answers[key] = self._one_path(addresses[key[:2]], goal)
            if answers[key]:
                inserted[node] = answers[key]
        return inserted

    def _calls_original(self, address: Function, node: int) -> bool:
        """Return whether a recorded node replaces a function, and calls by a pointer.

        Replacements store the address of what they replace.
        """
        if not self._facts.replacing or not self._facts.calls[address].is_unknown:
            return False
        function = Function(address.image, int(self._located.function[node]))
        return function in self._facts.replacing

    def _one_path(self, address: Function, goal: Goal) -> Sequence[Function | _Mark]:
        paths = self._facts.paths(address, goal)
        if not paths:
            function = self._facts.calls[address].function
            assert function is not None  # noqa: S101 - messages always have a path
            is_same = goal is not None and self._library(function) == self._library(goal)
            return (function,) if is_same else (UNKNOWN_JUMP, function)
        if len({self._libraries(path) for path in paths}) > 1:
            return (SEVERAL,)
        return paths[0]

    def _library(self, function: Goal) -> int:
        return self._code.library_of(function) if isinstance(function, Function) else -1

    def _libraries(self, path: Path) -> tuple[int, ...]:
        numbers = [self._library(function) for function in path]
        return tuple(
            number for at, number in enumerate(numbers) if at == 0 or number != numbers[at - 1]
        )

    def callers(self, node: int, watch: str) -> Iterator[int]:
        """Yield the nodes that may have called a watched function, if ``node`` called something.

        Nodes are added for functions without frames.
        """
        callee = self._callee(node)
        replacements = self._facts.replacements.get(watch, frozenset())
        if callee is None or (replacements and self._function(node) in replacements):
            yield node
            return
        paths: Sequence[Sequence[Function | _Mark]]
        paths = self._facts.paths(self._return_address(node), watch)
        if not paths and callee.function is not None:
            paths = ((UNKNOWN_JUMP, callee.function),)
        for path in paths:
            yield self._add(node, path)

    def _return_address(self, node: int) -> Function:
        image = self._code.images[int(self._image[node])]
        return Function(image.key, int(self._offset[node]))

    def _callee(self, node: int) -> Callee | None:
        if self._image[node] < 0 or self._is_missing[node]:
            return None
        return self._facts.calls.get(self._return_address(node))

    def _function(self, node: int) -> Function:
        image, offset = self._image[node : node + 1], self._offset[node : node + 1]
        start = int(self._code.locate(image, offset).function[0])
        return Function(self._code.images[int(image[0])].key, start)

    def _add(self, node: int, path: Sequence[Function | _Mark]) -> int:
        recorded = int(self._recorded[node])
        for function in reversed(path):
            image, offset = self._address(function)
            key = node, image, offset
            if key not in self._nodes:
                self._nodes[key] = len(self._parent) + len(self._added)
                self._added.append((node, image, offset, recorded))
            node = self._nodes[key]
        return node

    def calls_system(self, node: int) -> bool:
        """Return whether a node called a system function that is not watched."""
        callee = self._callee(node)
        return callee is not None and callee.is_system

    def build(self) -> CompletedStacks:
        """Return the tree."""
        columns = list(zip(*self._added, strict=True)) or [(), (), (), ()]
        return CompletedStacks(
            tree=StackTree(
                parent=np.concatenate((self._parent, np.array(columns[0], np.int32))),
                image=np.concatenate((self._image, np.array(columns[1], np.int32))),
                offset=np.concatenate((self._offset, np.array(columns[2], np.uint64))),
            ),
            recorded=np.concatenate((self._recorded, np.array(columns[3], np.int32))),
            is_missing=np.concatenate((self._is_missing, np.ones(len(self._added), np.bool_))),
        )
