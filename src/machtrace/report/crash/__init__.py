"""Apple's text of a crash: .crash files, and what Console and Xcode show of .ips files.

Sources: Apple, *Examining the fields in a crash report*, and reports as devices write them. iOS and
what is made like it has report version 104, macOS has 12, and other labels, spaces and order.
"""
