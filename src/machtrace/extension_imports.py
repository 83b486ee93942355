"""Importing extensions while another thread is in a callback of the loader.

Python holds the interpreter's lock while it loads an extension's library. glibc waits there while a
thread is in a callback of ``dl_iterate_phdr``; one in Python waits for the interpreter's lock, and
neither continues. A library that is loaded already is only looked up, which waits for no callback.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ExtensionFileLoader, PathFinder
from types import ModuleType


@contextmanager
def libraries_first() -> Iterator[None]:
    """Load the libraries of extensions that this thread imports without the interpreter's lock.

    Only in a process that uses ctypes: without it such a callback is hardly in Python, and its own
    import would be the first to wait.
    """
    open_library = _dlopen()
    if open_library is None:
        yield
        return
    finder = _LibraryLoader(open_library)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)


def _dlopen() -> Callable[[bytes, int], object] | None:
    """Return ``dlopen`` as a function that releases the interpreter's lock; None if there is none.

    Finding it does not wait for callbacks.
    """
    ctypes = sys.modules.get("ctypes")
    if ctypes is None or not hasattr(sys, "getdlopenflags"):
        return None
    try:
        kind = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int)
        function: Callable[[bytes, int], object] = kind(("dlopen", ctypes.pythonapi))
    except AttributeError:  # still being imported, or a program without dynamic symbols
        return None
    return function


class _LibraryLoader:
    """A finder of modules that finds none, but loads the library that the next finder will find."""

    def __init__(self, open_library: Callable[[bytes, int], object]) -> None:
        self._open_library = open_library
        self._thread = get_ident()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        """See :class:`importlib.abc.MetaPathFinder`."""
        if get_ident() != self._thread:
            return
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin and isinstance(spec.loader, ExtensionFileLoader):
            # If it fails, the import fails, and reports why.
            path_bytes = spec.origin.encode(sys.getfilesystemencoding(), "surrogateescape")
            self._open_library(path_bytes, sys.getdlopenflags())
