"""A pass recorded once, operation by operation, and replayed without the model's own Python.

Between two operations a model's code takes as long as a small operation does. What it decides there
is the same for every pass of one shape, if it reads nothing back from tensors. The rules are those
of a CUDA graph: inputs are tensors, buffers stay where they are.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

# What a pass over packed inputs gives: scores, and hidden states where they are wanted.
Outputs = tuple[Tensor, ...]
Pass = Callable[[Tensor], Outputs]
_aten = torch.ops.aten
# The same functions by the quicker of their two names in Python.
_QUICK: dict[Any, Callable[..., Any]] = {
    _aten.add.Tensor: torch.add, _aten.cat.default: torch.cat,
    _aten.linear.default: torch._C._nn.linear, _aten.matmul.default: torch.matmul,
    _aten.mean.dim: torch.mean, _aten.mm.default: torch.mm, _aten.mul.Tensor: torch.mul,
    _aten.neg.default: torch.neg, _aten.pow.Tensor_Scalar: torch.pow,
    _aten.rsqrt.default: torch.rsqrt, _aten.silu.default: torch._C._nn.silu,
    _aten.transpose.int: torch.transpose, _aten.unsqueeze.default: torch.unsqueeze,
    _aten.view.default: Tensor.view, _aten._unsafe_view.default: Tensor.view,
}  # fmt: skip
# Views: of a constant they are constants themselves.
_VIEWS = {
    _aten.t.default, _aten.transpose.int, _aten.view.default, _aten.slice.Tensor,
    _aten.unsqueeze.default, _aten.expand.default, _aten.detach.default, _aten.alias.default,
}  # fmt: skip


class CannotRecord(Exception):
    """A pass that reads a tensor back, or whose shapes depend on what tensors hold."""


def record(run: Pass, example: Tensor) -> Pass:
    """Run a pass on `example` and record it; the replay takes an input of the same shape.

    What the pass takes from elsewhere, as weights and buffers, is the same tensor at each replay.
    Raises CannotRecord, and what the pass raises.
    """
    tape = _Tape(example)
    with tape:
        outputs = run(example)
    return tape.function(outputs)


def _reads_back(func: Any, args: Sequence[Any]) -> bool:
    """Whether what comes next, or a shape, depends on what a tensor holds."""
    if func is _aten.index.Tensor:  # its shape depends on indices that are true or false only
        return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    return bool({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags))


class _Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes a line of Python for each operation; a tensor's name is held as long as it lives."""

    def __init__(self, example: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names: Any = WeakTensorKeyDictionary()
        self._names[example] = "given"
        self._lines: list[tuple[str, list[str], str]] = []  # result, what is read, expression
        self._known: dict[str, Any] = {}  # functions and constants by name
        self._functions: dict[Any, str] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if _reads_back(func, args):
            raise CannotRecord(f"its layers read tensors back ({func})")
        result = func(*args, **kwargs)
        if func in _VIEWS and not self._is_made(args[0]):
            self._constant(result)
            return result
        read: list[str] = []
        words = [self._word(value, read) for value in args]
        words += [f"{name}={self._word(value, read)}" for name, value in kwargs.items()]
        name = self._functions.setdefault(func, f"f{len(self._functions)}")
        self._known[name] = _QUICK.get(func) or func._op
        self._write(result, read, f"{name}({', '.join(words)})")
        return result

    def _is_made(self, tensor: Tensor) -> bool:
        """Whether a tensor is the input or made from it, and no constant."""
        return str(self._names.get(tensor, "k")).startswith(("v", "given"))

    def _write(self, result: Any, read: list[str], expression: str) -> None:
        name = f"v{len(self._lines)}"
        self._lines.append((name, read, expression))
        if isinstance(result, Tensor):
            self._names[result] = name
        elif isinstance(result, list | tuple):
            for i, part in enumerate(result):
                if isinstance(part, Tensor):
                    self._write(part, [name], f"{name}[{i}]")

    def _constant(self, value: Any) -> str:
        name = f"k{len(self._known)}"
        self._known[name] = value
        if isinstance(value, Tensor):
            self._names[value] = name
        return name

    def _word(self, value: Any, read: list[str]) -> str:
        """How an argument is written; names of tensors are added to `read`."""
        if isinstance(value, Tensor):
            name = str(self._names.get(value) or self._constant(value))
            read.append(name)
            return name
        if isinstance(value, list | tuple):
            return f"[{', '.join(self._word(part, read) for part in value)}]"
        return repr(value) if type(value) in (int, bool, str, type(None)) else self._constant(value)

    def function(self, outputs: Outputs) -> Pass:
        """The replay, which drops each tensor after its last use. Raises CannotRecord."""
        if not all(map(self._is_made, outputs)):
            raise CannotRecord("its scores do not depend on its input")
        last = {name: at for at, (_, read, _) in enumerate(self._lines) for name in read}
        names = [str(self._names[output]) for output in outputs]
        body = []
        for at, (result, read, expression) in enumerate(self._lines):
            body.append(f" {result} = {expression}")
            gone = {n for n in read if last[n] == at and n[0] == "v"} - {*names}
            if result not in last and result not in names:
                gone.add(result)
            if gone:
                body.append(f" del {', '.join(sorted(gone))}")
        taken = "".join(f", {known}={known}" for known in self._known)
        source = "\n".join([f"def replay(given{taken}):", *body, f" return {', '.join(names)},"])
        made = dict(self._known)
        exec(compile(source, "<recorded pass>", "exec"), made)
        replay: Pass = made["replay"]
        return replay
