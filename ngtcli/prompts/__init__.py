"""Presets, and prompts made of them that fit a model's context."""
