"""Programs for Darwin, compiled and linked on any machine."""

import pytest

from tests.audit.apps import build_images
from tests.formats.macho.conftest import llvm, zig

__all__ = ["images", "llvm", "zig"]


@pytest.fixture(scope="session")
def images(zig, llvm, tmp_path_factory):
    """The images of an app: its own, those of its next build, and an SDK's."""
    return build_images(zig, llvm, tmp_path_factory.mktemp("images"))
