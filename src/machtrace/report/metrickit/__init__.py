"""MetricKit's diagnostics: payloads of crashes, hangs, exceptions of CPU and disk, and their trees.

Sources: Apple, ``MXDiagnosticPayload`` and ``MXCallStackTree`` (``JSONRepresentation``), and
payloads as devices deliver them; App Store Connect's ``diagnosticLogs`` have the same trees.
"""
