"""Decoding with the target model: from a prompt to the tokens of an answer."""
