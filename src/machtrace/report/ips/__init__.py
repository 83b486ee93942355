"""Apple's .ips files: a header's line of JSON, and a body.

Source: Apple, *Interpreting the JSON format of a crash report*. Keys that this document does not
name are as lldb's ``crashlog.py`` and ipsw read them.
"""
