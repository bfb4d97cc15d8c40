"""The demands of exact decoding on the forward passes of one answer. Knows no torch."""

from dataclasses import dataclass, field

from ngtcli.decoding.exactness.rows import PassRows


@dataclass(frozen=True, slots=True)
class Numerics:
    """The exactness of an answer, and the rows of its forward passes.

    The layout of a forward pass asks for its size; all else follows from `is_exact`.

    Attributes:
        rows: Of exact forward passes. None: not exact, each is padded to the next size.
        why: For people: why it is exact, or is not.
    """

    rows: PassRows | None = None
    why: str = field(default="", compare=False)

    @property
    def is_exact(self) -> bool:
        """Return whether tokens do not depend on what is drafted, in any dtype."""
        return self.rows is not None

    @property
    def has_one_shape(self) -> bool:
        """Whether all forward passes have one number of rows: then a draft node costs nothing."""
        return self.rows is not None and self.rows.are_fixed

    @property
    def allows_any_kernel(self) -> bool:
        """Return whether a forward pass may take the kernel that is fastest for its shape.

        Otherwise the order in which attention adds up a row's keys could change its bits.
        """
        return self.rows is None

    @property
    def min_rows(self) -> int:
        """The rows that every forward pass has at least."""
        return self.rows.min if self.rows else 1

    def padded(self, rows: int) -> int:
        """The number of rows that a forward pass over `rows` has at least."""
        return self.rows.padded(rows) if self.rows else rows


NOT_EXACT = Numerics()
