"""An image's files: where they may be, and how they are identified."""
