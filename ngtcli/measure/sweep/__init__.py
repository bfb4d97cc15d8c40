"""What `ngt tune` has of its own: a grid of settings, what they are tried on, and the ranking."""
