"""Which way of walking many stacks there is on this machine."""

from __future__ import annotations

from machtrace.model.address import PacMask
from machtrace.model.arch import Arch
from machtrace.unwinder.rule_cache import RuleCache
from machtrace.unwinder.thread_walker import PythonWalker, ThreadWalker


def thread_walker(rules: RuleCache, arch: Arch, mask: PacMask) -> ThreadWalker:
    """The extension's, or without it Python's, which is ten times slower and more."""
    try:
        from machtrace.unwinder.native import NativeWalker
    except ImportError:
        return PythonWalker(rules, mask)
    return NativeWalker(rules, arch, mask)
