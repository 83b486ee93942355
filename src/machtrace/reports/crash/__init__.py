"""Apple's text of a crash: .crash files, and what Console and Xcode show of .ips files."""
