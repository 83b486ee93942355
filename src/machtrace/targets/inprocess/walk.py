"""The calling thread's own walk, in the extension: ``native/inprocess/stacks.c``.

Importing this raises ImportError where the package was installed without its extensions.
"""

from __future__ import annotations

from machtrace._native._inprocess import OwnStacks, image_changes

__all__ = ["OwnStacks", "image_changes"]
