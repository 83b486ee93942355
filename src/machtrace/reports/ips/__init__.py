"""Apple's .ips files: a header line of JSON, and a body.

Source: Apple, *Interpreting the JSON format of a crash report*. Keys that it does not document
are interpreted as lldb's ``crashlog.py`` and ipsw do.
"""
