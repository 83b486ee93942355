"""One HTML page of reports, which opens without a network."""
