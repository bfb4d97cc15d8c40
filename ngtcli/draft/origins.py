"""Where drafts come from, by the names that tokens, legends and JSON carry. Imports nothing."""

# Of `auto`, in the order it queries them.
SOURCES = ("own text", "prompt", "pool", "background", "scores")
DOCUMENT = "document"  # of those of the prompt's nodes that stand in a document
ORIGINS = (*SOURCES, DOCUMENT)
DRAFT = "draft"  # of a method with one source
