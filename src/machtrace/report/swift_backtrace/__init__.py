"""What Swift's runtime writes when a program crashes, since Swift 5.9: as text and as JSON.

Sources: *Backtracing support in Swift* (``docs/Backtracing.rst``), ``BacktraceFormatter.swift``,
and of ``swift-backtrace`` ``main.swift`` and ``JSON.swift``.
"""
