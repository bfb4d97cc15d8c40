"""Many answers in one run."""
