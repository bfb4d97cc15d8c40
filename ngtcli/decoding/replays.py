"""Functions of one small tensor that are captured as CUDA graphs once they have run before."""

from collections import Counter
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from ngtcli.decoding.captured import LATER, Capture, Outputs, graph_recorder
from ngtcli.decoding.out_of_memory import is_out_of_memory

Function = Callable[[Tensor], Outputs]


class Replays:
    """What ran under a key is captured at its next run, where the device has graphs.

    A function reads what else it needs from tensors that stay where they are, and what it gives
    holds until the next run. One that cannot be captured is run as it is, as all others then are,
    and `warn` is told of these; nothing is captured without it. Where memory ends one is tried
    later, without the other graphs. `of` says what they are.
    """

    def __init__(
        self, of: str, device: torch.device, warn: Callable[[str], None] | None = None
    ) -> None:
        self._of, self._device, self._warn = of, device, warn
        self._captured = dict[Hashable, Function]()
        self._capture: Capture | None = graph_recorder() if warn else None
        self._ran = Counter[Hashable]()
        self._buffers: dict[tuple[int, int], Tensor] = {}

    def forget(self) -> None:
        """Drop all: tensors that are read have moved."""
        self._captured.clear()
        self._ran.clear()

    def buffer(self, rows: int, width: int, dtype: torch.dtype) -> Tensor:
        """A tensor (rows, width) that stays where it is, for what a function reads."""
        if (rows, width) not in self._buffers:
            self._buffers[rows, width] = torch.zeros(rows, width, dtype=dtype, device=self._device)
        return self._buffers[rows, width]

    def run(self, key: Hashable, function: Function, given: Tensor) -> Outputs:
        """What a function makes of a tensor, which is on the CPU and is sent."""
        if (known := self._captured.get(key)) is not None:
            return known(given)
        sent = given.to(self._device, non_blocking=True)
        if self._capture and self._warn and self._ran[key] > 0:
            try:
                self._captured[key] = self._capture(function, sent)
                return self._captured[key](given)
            except Exception as error:  # whatever a network's own code or the device raises
                why = str(error).strip().partition("\n")[0] or type(error).__name__
                self._warn(f"{self._of} not captured: {why}")
                self.forget()
                if is_out_of_memory(error):
                    self._ran[key] = -LATER
                else:
                    self._capture = None
        self._ran[key] += 1
        return function(sent)
