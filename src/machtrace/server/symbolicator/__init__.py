"""The interface of Sentry's Symbolicator: stacks, crash reports, and answers that come later."""
