"""Live measurement for `ngt bench`: contestants, rounds, and the rows that come of them."""
