"""Reports of observed calls: text, JSON, pages, SARIF and rows."""
