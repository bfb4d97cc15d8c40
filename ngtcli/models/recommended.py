"""Recommended models by the memory of a machine, and notes on the built-in model.

Manual pages and commands take their texts from here.
"""

import re
from dataclasses import dataclass

# Weights that stay in 2 bytes with --quantize int8, mostly embeddings, are about 6% of all.
_INT8_BYTES = 1.06
_SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)([BM])(?![A-Za-z0-9])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RecommendedModel:
    """An instruct model of Hugging Face in bfloat16.

    Attributes:
        memory_gb: The memory of a machine that it suits, in GB.
        name: The id on Hugging Face.
        download_gb: The size of its weights, in units of 10^9 bytes.
    """

    memory_gb: int
    name: str
    download_gb: float

    @property
    def command(self) -> str:
        """The command that downloads it."""
        return f"ngt models pull {self.name}"


RECOMMENDED = (
    RecommendedModel(8, "Qwen/Qwen2.5-1.5B-Instruct", 3.1),
    RecommendedModel(16, "Qwen/Qwen3-4B-Instruct-2507", 8.0),
    RecommendedModel(32, "Qwen/Qwen2.5-7B-Instruct", 15.2),
)


def markdown_table() -> str:
    """Return the table of README.md and the manual."""
    rows = ["| memory | model | download | get it | use it |", "|---|---|---|---|---|"]
    for model in RECOMMENDED:
        size = f"{model.download_gb:.1f} GB"
        rows.append(
            f"| {model.memory_gb} GB | {model.name} | {size} | `{model.command}` |"
            f" `-m {model.name}` |"
        )
    return "\n".join(rows)


def recommendations() -> list[str]:
    """Return a line for each model: the machine's memory, the command, the size."""
    return [
        f"{model.memory_gb} GB of memory: {model.command}  ({model.download_gb:.1f} GB)"
        for model in RECOMMENDED
    ]


BUILTIN = "builtin"
DEMONSTRATION = "a demonstration, made only to quote sentences"


def is_demonstration(model: str) -> bool:
    """Return whether the built-in model answers under this name."""
    return model == BUILTIN


def demonstration_limit(task: str, documents: int, has_schema: bool = False) -> str:
    """Return the part of a task that the built-in model cannot do, "" if it can do all.

    >>> demonstration_limit("chat", documents=1)
    'hold a conversation'
    >>> demonstration_limit("ask", documents=30)
    ''

    Args:
        task: The task of the question, "ask", "summarize", "chat" or "generate".
        documents: How many documents the question is about.
        has_schema: Whether the answer has to obey a schema.
    """
    if task == "chat":
        return "hold a conversation"
    if has_schema:
        return "fill in a schema"
    if task == "generate":
        return "follow a free prompt"
    if not documents:
        return "answer without documents"
    if task == "summarize" and documents > 1:
        return "summarize several documents"
    return ""


def described(model: str) -> str:
    """Return the name of a model for people, with a remark on the built-in one.

    >>> described("Qwen/Qwen3-8B")
    'Qwen/Qwen3-8B'
    >>> described("builtin")
    'builtin (a demonstration, made only to quote sentences)'
    """
    return f"{model} ({DEMONSTRATION})" if is_demonstration(model) else model


def demonstration_note(model: str, limit: str = "") -> str:
    """Return one line on the limits of the built-in model, "" for another model.

    Args:
        model: The name of the model that answers.
        limit: The result of `demonstration_limit`.
    """
    if not is_demonstration(model):
        return ""
    smallest = RECOMMENDED[0]
    cannot = f" and cannot {limit}" if limit else ""
    return (
        f"The built-in model is {DEMONSTRATION}{cannot}. For real answers: {smallest.command}"
        f" ({smallest.download_gb:.1f} GB), then -m {smallest.name}"
    )


@dataclass(frozen=True, slots=True)
class SizeEstimate:
    """The bytes of a model's weights, by the number of parameters in its name."""

    label: str
    bfloat16_bytes: int
    int8_bytes: int


def estimate_of(name: str) -> SizeEstimate | None:
    """Estimate a model's weights by its name; None if the name has no number of parameters.

    >>> estimate_of("Qwen/Qwen3-8B")
    SizeEstimate(label='8B', bfloat16_bytes=16000000000, int8_bytes=8480000000)
    >>> estimate_of("gpt2") is None
    True
    """
    match = _SIZE.search(name.rpartition("/")[2].replace("-", " ").replace("_", " "))
    if match is None:
        return None
    number = match[1]
    unit = match[2].upper()
    parameters = float(number) * (1e9 if unit == "B" else 1e6)
    label = f"{number}{unit}"
    return SizeEstimate(label, round(2 * parameters), round(_INT8_BYTES * parameters))
