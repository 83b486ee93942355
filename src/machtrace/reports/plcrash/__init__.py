"""PLCrashReporter's reports: seven letters, a version, and one protobuf message."""
