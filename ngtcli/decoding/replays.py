"""Functions of one small tensor that are captured as CUDA graphs at their second run."""

from collections import Counter
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from ngtcli.decoding.captured import LATER, Capture, Outputs, graph_recorder
from ngtcli.decoding.out_of_memory import is_out_of_memory
from ngtcli.system import reporting

Function = Callable[[Tensor], Outputs]


class Replays:
    """Runs functions; one that runs again under the same key is captured.

    A function may read other tensors if they stay at their addresses. Its outputs are valid until
    the next run. If a function cannot be captured, all functions run eagerly from then on. If
    memory does not suffice, all graphs are dropped, and the function is tried again later.

    Args:
        subject: The start of a warning, such as "draws are".
        device: The device that functions run on.
        captures: Whether functions are captured. Why one was not is a warning to the reporter of
            who makes this.
    """

    def __init__(self, subject: str, device: torch.device, *, captures: bool = False) -> None:
        self._subject = subject
        self._device = device
        self._reporter = reporting.current()
        self._capture: Capture | None = graph_recorder() if captures else None
        self._captured: dict[Hashable, Function] = {}
        self._eager_runs: Counter[Hashable] = Counter()
        self._buffers: dict[tuple[int, int], Tensor] = {}

    def forget(self) -> None:
        """Drop all graphs, because the tensors that they read have moved."""
        self._captured.clear()
        self._eager_runs.clear()

    def buffer(self, rows: int, width: int, dtype: torch.dtype) -> Tensor:
        """Return a tensor (rows, width) that stays at its address, for a function to read."""
        if (rows, width) not in self._buffers:
            self._buffers[rows, width] = torch.zeros(rows, width, dtype=dtype, device=self._device)
        return self._buffers[rows, width]

    def run(self, key: Hashable, function: Function, packed: Tensor) -> Outputs:
        """Apply a function to a tensor on the CPU, which is copied to the device."""
        replay = self._captured.get(key)
        if replay is not None:
            return replay(packed)

        on_device = packed.to(self._device, non_blocking=True)
        if self._capture and self._eager_runs[key] > 0:
            try:
                self._captured[key] = self._capture(function, on_device)
                return self._captured[key](packed)
            except Exception as error:  # whatever a network's own code or the device raises
                why = str(error).strip().partition("\n")[0] or type(error).__name__
                self._reporter.warn(f"{self._subject} not captured: {why}")
                self.forget()
                if is_out_of_memory(error):
                    self._eager_runs[key] = -LATER
                else:
                    self._capture = None

        self._eager_runs[key] += 1
        return function(on_device)
