"""The lab of hangs: programs that state what they did, a watcher beside them, and the comparison.

The programs are in ``tests/lab/hangs/programs``. The watcher is the command ``machtrace watch``,
known by its JSON lines alone.
"""
