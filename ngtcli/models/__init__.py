"""Finding a model's files, its tokenizer and its context length; without torch."""
