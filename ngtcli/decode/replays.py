"""Functions of one small tensor that are captured as CUDA graphs once they have run before."""

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from ngtcli.decode.captured import Capture, Outputs, graph_recorder

Function = Callable[[Tensor], Outputs]


class Replays:
    """What ran under a key is captured at its next run, where the device has graphs.

    A function reads what else it needs from tensors that stay where they are, and what it gives
    holds until the next run. One that cannot be captured is run as it is, as all others then are.
    """

    def __init__(self, device: torch.device, captures: bool) -> None:
        self._device, self._captured = device, dict[Hashable, Function]()
        self._capture: Capture | None = graph_recorder() if captures else None
        self._ran = set[Hashable]()

    def forget(self) -> None:
        """Drop all: tensors that are read have moved."""
        self._captured.clear()
        self._ran.clear()

    def run(self, key: Hashable, function: Function, given: Tensor) -> Outputs:
        """What a function makes of a tensor, which is on the CPU and is sent."""
        if (known := self._captured.get(key)) is not None:
            return known(given)
        sent = given.to(self._device, non_blocking=True)
        if self._capture is not None and key in self._ran:
            try:
                self._captured[key] = self._capture(function, sent)
                return self._captured[key](given)
            except Exception:  # whatever a network's own code or the device raises
                self._capture = None
                self.forget()
        self._ran.add(key)
        return function(sent)
