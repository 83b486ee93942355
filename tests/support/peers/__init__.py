"""Other programs as a second opinion: their output parsed, and how to run them."""
