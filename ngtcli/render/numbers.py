"""Numbers as text: decimals, percent, speed-ups."""

MISSING = "–"


def number(value: float | None, digits: int = 2) -> str:
    """`value` with `digits` decimals; a dash for None."""
    return MISSING if value is None else f"{value:.{digits}f}"


def percent(value: float | None, digits: int = 0) -> str:
    """A share, 0 to 1, in percent; a dash for None."""
    return MISSING if value is None else f"{value * 100:.{digits}f}%"


def times(value: float | None) -> str:
    """A speed-up in the form 2.11×; a dash for None."""
    return MISSING if value is None else f"{value:.2f}×"
