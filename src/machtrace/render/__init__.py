"""Writers of captures and profiles: text, and the formats of other tools."""
