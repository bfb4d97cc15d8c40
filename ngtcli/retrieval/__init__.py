"""Which passages of documents answer a question best."""
