"""Which spans of an answer stand in which document."""
