"""The background of `auto`: English phrases that ship, and their counts for a tokenizer."""
