"""The form that an answer must have: schemas, their grammar, and which token may come next."""
