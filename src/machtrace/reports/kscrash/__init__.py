"""KSCrash's reports: JSON, and its text in Apple's format."""
