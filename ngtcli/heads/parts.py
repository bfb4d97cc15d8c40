"""What networks of several kinds of heads are made of."""

from torch import Tensor, nn


class ResidualBlock(nn.Module):
    """x + silu(linear(x)) on (…, width), named as Medusa and Hydra publish it.

    With `more` the input is (…, (1 + more) width), and `res_connection` makes x of it.
    """

    def __init__(self, width: int, more: int = 0) -> None:
        super().__init__()
        self.linear = nn.Linear((1 + more) * width, width)
        self.res_connection = nn.Linear((1 + more) * width, width) if more else nn.Identity()

    def forward(self, inputs: Tensor) -> Tensor:
        """(…, width)."""
        kept: Tensor = self.res_connection(inputs)
        return kept + nn.functional.silu(self.linear(inputs))
