"""Columns of the tree of stacks: each node's nearest code of the app's side, and its owner."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from machtrace.audit.trail.calls import ImageRole
from machtrace.audit.trail.libraries import CodeMap, CodeRole, Function
from machtrace.audit.trail.missing_frames import CompletedStacks
from machtrace.audit.trail.stacks import (
    NO_IMAGE,
    OUTER_MISSING,
    ROOT,
    SEVERAL,
    UNKNOWN_JUMP,
    Mask,
    follow,
    path_sums,
    reach,
)

UNKNOWN = -1
"""The library of an answer that is not known."""


class Reason(IntEnum):
    """Why a library is unknown."""

    NONE = 0
    NO_STACK = 1
    INNER_MISSING = 2
    """Inner frames were not recorded."""
    OUTER_MISSING = 3
    """Outer frames were not recorded."""
    UNKNOWN_CODE = 4
    """The code is in no image, or its function's library is not listed."""
    UNNAMED_SYSTEM = 5
    """System functions without names are between the call and the code around it."""
    SCHEDULED = 6
    """A queue or a timer called the function itself: who scheduled that is not recorded."""
    SEVERAL = 7
    """Functions of several libraries may have made the call without leaving a frame."""
    UNKNOWN_JUMP = 8
    """The caller calls a function that is not known to lead here."""


_MARKS = {
    OUTER_MISSING: Reason.OUTER_MISSING,
    SEVERAL: Reason.SEVERAL,
    UNKNOWN_JUMP: Reason.UNKNOWN_JUMP,
}


class NodeColumns:
    """Columns by node of the tree."""

    def __init__(self, stacks: CompletedStacks, code: CodeMap) -> None:
        self.tree = tree = stacks.tree
        self.recorded, self.is_missing = stacks.recorded, stacks.is_missing
        self.code = code
        self.located = code.locate(tree.image, tree.offset)
        libraries = code.libraries
        size = len(libraries)
        is_library = np.array(
            [library.role is ImageRole.LIBRARY for library in libraries] + [False]
        )
        is_app = np.array([library.role is ImageRole.APP for library in libraries] + [False])
        is_system = np.array([library.role is ImageRole.SYSTEM for library in libraries] + [False])
        passes = np.array([library.passes_through for library in libraries] + [False])
        runs = np.array([library.runs_callbacks for library in libraries] + [False])
        number = np.where(self.located.library < 0, size, self.located.library)
        self.library = self.located.library
        self.is_app: Mask = is_app[number]
        self.is_library: Mask = is_library[number]
        self.is_system: Mask = is_system[number]
        self.is_wrapper: Mask = passes[number] & self.is_library
        self.runs_callbacks: Mask = runs[number] & self.is_library
        self.reason = np.where(self.library < 0, Reason.UNKNOWN_CODE, Reason.NONE).astype(np.uint8)
        """Why the library is unknown; of marks, why the code is."""
        for mark, reason in _MARKS.items():
            self.reason[(tree.image == NO_IMAGE) & (tree.offset == mark)] = reason
        self.reason[ROOT] = Reason.NONE
        role = self.located.role
        self.dispatches: Mask = self.is_system & (role == CodeRole.DISPATCHER)
        self.is_plain: Mask = self.is_system & (role == CodeRole.ORDINARY)
        self.is_unnamed: Mask = self.is_system & (role == CodeRole.UNNAMED)
        self.plain_count = path_sums(tree.parent, self.is_plain)
        self.unnamed_count = path_sums(tree.parent, self.is_unnamed)
        self.system_count = path_sums(tree.parent, self.is_system)
        self.asker = reach(tree, ~self.is_system | self.dispatches)
        self.first_plain = reach(tree, self.is_plain)
        self.owner, self.owner_reason, self.passed = self._owners()

    def _owners(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8], Mask]:
        """Return for the nodes of the app's side the owner, a reason, and whether it passed."""
        tree = self.tree
        numbers = np.arange(len(tree), dtype=np.int32)
        # From a library: its caller, past wrappers, if that is a library and runs no callbacks.
        self.past_wrappers = reach(tree, ~self.is_wrapper)
        caller = self.past_wrappers[tree.parent]
        called = self.is_library & self.is_library[caller] & ~self.runs_callbacks[caller]
        # From a wrapper: the next code of the app's side, past other wrappers and the system.
        user = reach(tree, ~self.is_wrapper & (~self.is_system | self.dispatches))[tree.parent]
        is_used = self.is_wrapper & (self.is_app[user] | self.is_library[user])
        is_inlined = self.is_wrapper & (self.located.within >= 0)
        links = numbers.copy()
        normal = called & ~self.is_wrapper
        links[normal] = caller[normal]
        links[is_used & ~is_inlined] = user[is_used & ~is_inlined]
        ends = follow(links)
        answer = np.where(is_inlined, self.located.within, self.library)[ends]
        next_node = np.where(self.is_wrapper, user, caller)
        blocked = np.zeros(len(tree), np.uint8)
        ended = self.is_library & (links == numbers) & ~is_inlined
        blocked[ended] = self.reason[next_node[ended]]
        reason = blocked[ends]
        # A walk whose recording ended may be recognised by the call's flag alone.
        self.owner_at_root: Mask = (ended & (next_node == ROOT))[ends]
        return (
            np.where(reason > 0, UNKNOWN, answer).astype(np.int32),
            reason,
            (links != numbers) & self.is_wrapper | is_inlined,
        )

    def function_at(self, node: int) -> Function:
        """Return the function of a node's frame."""
        image = self.code.images[int(self.tree.image[node])]
        return Function(image.key, int(self.located.function[node]))
