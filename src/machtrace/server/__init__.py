"""A warehouse over HTTP: reports and symbols in, names and answers out (extra ``server``)."""
