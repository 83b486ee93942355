"""``python -m machtrace``."""

import sys

try:
    from machtrace.cli.main import main
except KeyboardInterrupt:  # before there is anything that could answer to it
    sys.exit(130)

main()
