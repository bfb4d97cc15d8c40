"""The ranges and choices of settings by name, each in one place."""

from typing import Any

from ngtcli.errors import UsageError, plain_number
from ngtcli.system.machine import MOST
from ngtcli.system.yaml_file import shown

RANGES: dict[str, tuple[float, float]] = {
    "n": (2, 64),
    "lp": (1, 63),
    "num_draft": (0, 1024),
    "max_tokens": (1, 1_000_000),
    "temperature": (0.0, 100.0),
    "top_p": (1e-6, 1.0),
    "top_k": (0, 10_000_000),
    "min_p": (0.0, 1.0),
    "threads": (0, MOST),
    "seed": (0, 2**63 - 1),
    "repetition_penalty": (1e-3, 100.0),
    "presence_penalty": (-100.0, 100.0),
    "frequency_penalty": (-100.0, 100.0),
    "max_repeats": (0, 1_000_000),
    "passages": (0, 1_000_000),
    "passage_tokens": (16, 100_000),
    "passage_overlap": (0, 50_000),
    "whole_tokens": (0, 1_000_000_000),
    "max_mb": (1, 1_000_000),
    "max_files": (1, 100_000_000),
    "max_depth": (1, 2000),  # a path of 4096 bytes, the most a system takes, has no more folders
    "parser_seconds": (1, 86_400),
    "cache_mb": (1, 100_000_000),
    "parser_mb": (200, 1_000_000),  # below it, the parsers themselves do not fit (measured)
    "tensor_parallel": (1, 10_000),
    "pipeline_parallel": (1, 10_000),
    "data_parallel": (1, 10_000),
}
# What a value must be, by its type in Python.
KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a string",
         list: "a list", tuple: "a list of strings"}  # fmt: skip
IN_PARTS = ("split", "refine")  # ways with what does not fit that take it part by part
SWITCH = ("auto", "on", "off")  # the choices of a setting that has the flags --NAME and --no-NAME
CHOICES: dict[str, tuple[str, ...]] = {
    "exact": SWITCH,
    "device": ("auto", "cuda", "mps", "cpu"),
    "dtype": ("auto", "float32", "bfloat16", "float16"),
    "draft_from": ("prompt", "all"),
    "overflow": ("auto", "error", "truncate", "retrieve", "split", "refine"),
    "color": ("auto", "always", "never"),
    "engine": ("ngt", "vllm"),
}


def check_value(name: str, value: Any) -> None:
    """Raise UsageError if `value`, of the right type, is out of the range of setting `name`."""
    if name in RANGES:
        low, high = RANGES[name]
        if not low <= value <= high:
            bounds = f"{plain_number(low)} to {plain_number(high)}"
            raise UsageError(f"{name} is {shown(value)}", f"Give a value from {bounds}.")
    if name in CHOICES and value not in CHOICES[name]:
        raise UsageError(f"{name} is {shown(value)}", f"Choose from {', '.join(CHOICES[name])}.")
