"""Locks: who waits for whom, by the owners that locks record, and deadlocks."""
