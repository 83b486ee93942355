"""The upkeep of a warehouse: joining, removing and checking what it has."""
