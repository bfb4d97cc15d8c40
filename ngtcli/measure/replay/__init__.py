"""Recorded runs, and drafters driven over them without a model."""
