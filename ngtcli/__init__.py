"""Answers from documents by a local model: the output of plain decoding, but faster."""

__version__ = "0.2.0"
