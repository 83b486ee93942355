"""Call stacks as text, and as the formats that other tools read."""
