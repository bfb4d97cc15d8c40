"""Answers from documents, faster than plain decoding and with the same tokens."""

__version__ = "0.2.0"
