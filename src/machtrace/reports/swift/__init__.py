"""Backtraces that Swift's runtime writes when a program crashes, as text and as JSON.

Sources: *Backtracing support in Swift* (``docs/Backtracing.rst``), ``BacktraceFormatter.swift``,
and ``main.swift`` and ``JSON.swift`` of ``swift-backtrace``; Swift 5.9 and newer.
"""
