"""Incidents: what a watcher saw go wrong, as values and as text."""
