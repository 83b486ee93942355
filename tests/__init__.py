"""Tests, and what they share in tests.support."""
