"""Names as lines of texts can have them."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")


def shown(text: str) -> str:
    r"""``text`` on one line and without power over a terminal: ``\x1b`` for an escape byte.

    Bytes that were no UTF-8, and letters that only some fonts have, stay as they are: a file that
    is read and written again has them still.
    """
    if text.isprintable():
        return text
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)
