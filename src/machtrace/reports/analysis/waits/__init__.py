"""Waits between threads, and deadlocks."""
