"""Sample reports and profiles."""
