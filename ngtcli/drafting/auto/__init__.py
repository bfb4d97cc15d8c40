"""The method `auto`: predictions of the next token from several sources, blended."""

NAME = "auto"  # of the method, and of what is compiled for it
