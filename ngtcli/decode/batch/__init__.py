"""Several sequences in one pass of the model."""
