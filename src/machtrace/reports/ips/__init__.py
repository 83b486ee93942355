"""Apple's .ips files: a header's line of JSON, and a body."""
