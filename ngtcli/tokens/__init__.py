"""Text to token ids and back, and a tokenizer's control tokens."""
