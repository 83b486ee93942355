"""KSCrash's reports: JSON, and the text in Apple's manner that it makes of it.

Sources: KSCrash, ``KSCrashReportFields.h`` for the keys and
``KSCrashReportFilterAppleFmt.m`` for the text; reports of versions 2 and 3.
"""
