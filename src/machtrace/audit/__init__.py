"""The code that gets private data, and whether it declares so: rules, call sites, findings."""
