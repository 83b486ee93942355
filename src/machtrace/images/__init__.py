"""An image's files: where they may be, and whether they are its own."""
