"""Where drafts come from, by the names that tokens, legends and JSON carry. Imports nothing."""

SOURCES = ("own text", "prompt", "pool", "scores")  # of `auto`, in the order it queries them
DOCUMENT = "document"  # of those of the prompt's nodes that stand in a document
ORIGINS = (*SOURCES, DOCUMENT)
DRAFT = "draft"  # of a method with one source
