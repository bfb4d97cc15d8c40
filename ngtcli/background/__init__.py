"""Backgrounds of `auto`: the phrases that ship, texts of the user's own, and their counts."""
