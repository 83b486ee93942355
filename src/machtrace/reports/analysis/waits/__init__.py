"""Which thread waits for which, and deadlocks."""
