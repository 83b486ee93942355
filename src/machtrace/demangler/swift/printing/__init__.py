"""How the tree of a Swift name is printed."""
