"""``python -m machtrace``."""

from machtrace.cli.main import main

main()
