"""Reports of crashes, hangs and samples: read, analyse, write."""
