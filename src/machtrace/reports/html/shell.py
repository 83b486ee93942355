"""A self-contained HTML page: its own style and script, and no network requests."""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib import resources

from machtrace.reports.html.markup import text


def page(title: str, *, controls: str, main: str, footer: str, style: str, script: str) -> str:
    """Return a page whose policy allows its own style and script alone, by their hashes.

    Args:
        title: text.
        controls: HTML behind the heading.
        main: HTML.
        footer: HTML.
        style: CSS.
        script: JavaScript.
    """
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{text(title)}</title><style>{style}</style></head>\n"
        f"<body><header><h1>{text(title)}</h1>{controls}</header><main>{main}</main>"
        f"<footer>{footer}<p>Written by machtrace.</p></footer>"
        f"<script>{script}</script></body></html>\n"
    )


@cache
def resource(name: str, package: str = __package__) -> str:
    """Return the text of a file of a package."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return "sha256-" + b64encode(sha256(content.encode()).digest()).decode()
