"""What an answer may be, and which tokens may come next of one. Knows no torch."""
