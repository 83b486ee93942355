"""Stripped twins of small Mach-O libraries."""

from tests.support.compilers.twins import twins

__all__ = ["twins"]
