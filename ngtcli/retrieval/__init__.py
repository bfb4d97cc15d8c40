"""Find the passages of documents that answer a question best."""
