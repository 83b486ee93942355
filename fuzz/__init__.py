"""Hostile bytes for everything that unwinds: ``python -m fuzz TARGET --count N --seed S``.

Outside of the package, since it is a tool for this repository, and outside of ``tests``, since a
run takes as long as one lets it. A short run of every target is part of the tests.

A target is a function of bytes that may return, or raise a
:class:`~machtrace.errors.MachtraceError`; whatever else happens is a finding, and so is an input
that takes longer than :data:`fuzz.runner.SLOW_SECONDS` of processor time.
"""
