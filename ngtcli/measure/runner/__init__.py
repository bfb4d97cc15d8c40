"""Contestants, prompts and rounds: the one way in which `ngt bench` and `ngt tune` measure."""
