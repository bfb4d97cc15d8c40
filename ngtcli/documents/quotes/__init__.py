"""The spans of an answer that are quotes, and the documents that they are from."""
