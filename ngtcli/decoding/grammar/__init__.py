"""Grammars of answers, and the tokens that they allow next. Knows no torch."""
