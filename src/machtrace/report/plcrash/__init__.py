"""PLCrashReporter's reports: seven letters, a version, and one message of Protocol Buffers.

Source: PLCrashReporter, ``Resources/crash_report.proto`` and ``PLCrashReportTextFormatter.m``.
Strings are read as bytes: reports exist whose strings are no UTF-8.
"""
