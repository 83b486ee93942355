"""KSCrash's reports: JSON, and its text in Apple's format.

Sources: KSCrash, ``KSCrashReportFields.h`` for the keys and
``KSCrashReportFilterAppleFmt.m`` for the text; reports of versions 2 and 3.
"""
