"""Pages as tests read them: texts, links and tables."""

from __future__ import annotations

from html.parser import HTMLParser

from tests.server.serving import Answer

MAX_BYTES = 200_000
"""Bytes of a page."""


class Content(HTMLParser):
    """The elements, links, texts and tables of a page."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        assert answer.headers["Content-Type"].startswith("text/html"), answer.headers
        assert len(answer.data) <= MAX_BYTES
        self.status = answer.status
        self.links: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.tables: list[list[list[str]]] = []
        self._is_cell = False
        self.feed(answer.data.decode())
        self.close()
        names = {name for _, attributes in self.elements for name in attributes}
        assert not {name for name in names if name.startswith("on")} | (names & {"style"})

    def handle_starttag(self, tag, attrs):
        """Note an element."""
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        if tag == "a":
            self.links.append(attributes["href"])
        elif tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self._is_cell = True

    def handle_endtag(self, tag):
        """Note the end of a cell."""
        if tag in ("td", "th"):
            self._is_cell = False

    def handle_data(self, data):
        """Note a text."""
        self.text += data
        if self._is_cell:
            self.tables[-1][-1][-1] += data

    def count(self, tag: str) -> int:
        """Return how many elements of a kind there are."""
        return sum(name == tag for name, _ in self.elements)

    def link(self, start: str) -> str:
        """Return the first link whose address has a beginning."""
        return next(link for link in self.links if link.startswith(start))
