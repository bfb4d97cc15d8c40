"""Which spans of an answer are in which document."""
