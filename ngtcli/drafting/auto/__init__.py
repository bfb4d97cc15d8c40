"""The method `auto`: a blend of what may come next, from several sources."""

NAME = "auto"  # of the method, and of what is compiled for it
