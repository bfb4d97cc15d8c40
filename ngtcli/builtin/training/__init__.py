"""Data mixture, training and evaluation of the built-in model. No command imports it."""
