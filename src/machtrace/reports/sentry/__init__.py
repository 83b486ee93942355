"""Reports of Sentry's clients: events and profiles, as their envelopes contain them."""
