"""MetricKit's diagnostics: payloads of crashes, hangs and exceptions, and their trees."""
