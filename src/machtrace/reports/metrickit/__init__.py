"""MetricKit's diagnostics: payloads of crashes, hangs, CPU and disk exceptions, and their trees.

Sources: Apple, ``MXDiagnosticPayload`` and ``MXCallStackTree`` (``JSONRepresentation``), and
payloads from devices; App Store Connect's ``diagnosticLogs`` have the same trees.
"""
