"""Training of learned heads on a model's own answers."""
