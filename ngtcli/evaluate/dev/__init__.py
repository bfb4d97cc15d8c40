"""Tools for those who work on ngt itself; no command of `ngt` imports them."""
