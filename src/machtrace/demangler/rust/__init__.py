"""Rust names of both manglings: v0, and the legacy one."""
