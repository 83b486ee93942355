"""Apple's text of a crash: .crash files, and what Console and Xcode show of .ips files.

Sources: Apple, *Examining the fields in a crash report*, and reports from devices. iOS and its
relatives write report version 104; macOS writes 12, with other labels, spacing and order.
"""
