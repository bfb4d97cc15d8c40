"""What vLLM is told: its arguments, its parameters of sampling and its environment, by settings.

Knows the settings' meaning for vLLM and nothing of vLLM's own modules, which take seconds to load.
"""

import os
from collections.abc import Mapping
from typing import Any

from ngtcli.config import Settings
from ngtcli.errors import UsageError, plain_number
from ngtcli.model_files.checkpoint import fetch

PROPOSER = "ngtcli.engines.vllm.NgramTrieProposer"
METHODS = ("auto", "none")  # what can draft for vLLM
# What vLLM takes, where that is less than ngt does.
_RANGES = {
    "temperature": (0.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"  # vLLM's own switch between its model runners
# vLLM's variables, where the user has not set them. Its log goes where stderr does, and it sends
# nothing about its use to anyone.
ENVIRONMENT = {
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


def drafts(settings: Settings) -> bool:
    """Whether vLLM is given drafts."""
    return settings.method != "none" and settings.num_draft > 0


def check(settings: Settings, environ: Mapping[str, str] = os.environ) -> None:
    """Raise UsageError for settings that vLLM cannot follow."""
    if settings.method not in METHODS:
        what = f"method {settings.method} does not draft for vLLM"
        raise UsageError(what, f"Use {' or '.join(METHODS)}.")
    for name, (low, high) in _RANGES.items():
        if not low <= getattr(settings, name) <= high:
            hint = f"vLLM takes values from {plain_number(low)} to {plain_number(high)}."
            raise UsageError(f"{name} is {getattr(settings, name)}", hint)
    if not drafts(settings):
        return
    if settings.pipeline_parallel > 1:  # its runner V1, 0.32, has a drafter on the last rank alone
        what = "vLLM does not take drafts for a pipeline (--set pipeline_parallel)"
        raise UsageError(what, "Give --method none as well, or --set tensor_parallel alone.")
    if settings.min_p > 0:
        raise UsageError("vLLM has no min_p with drafts", "Give --method none as well.")
    if environ.get(RUNNER, "").lower() in ("1", "true"):
        what = f"{RUNNER} asks for vLLM's model runner V2, which takes drafts of no other program"
        raise UsageError(what, "Unset it, or give --method none.")


def environment(settings: Settings) -> dict[str, str]:
    """Variables that vLLM reads; drafts need its model runner V1."""
    return ENVIRONMENT | ({RUNNER: "0"} if drafts(settings) else {})


def speculation(tokens: int) -> dict[str, Any]:
    """vLLM's `speculative_config` for our drafts, chains of at most `tokens`."""
    return {"method": "custom_class", "model": PROPOSER, "num_speculative_tokens": tokens}


def engine_arguments(settings: Settings, sequences: int, on_cpu: bool) -> dict[str, Any]:
    """The arguments of vLLM's engine; `sequences` at a time, 0 for as many as vLLM takes.

    On a CPU vLLM captures nothing, and would compile for minutes instead.
    """
    s = settings
    arguments: dict[str, Any] = {
        "model": fetch(s.model, plain=True),
        "dtype": "float32" if s.dtype == "auto" and on_cpu else s.dtype,
        "seed": s.seed % 2**32,  # of its own generators; each request has the whole one
        "enforce_eager": on_cpu or not s.capture,
        "tensor_parallel_size": s.tensor_parallel,
        "pipeline_parallel_size": s.pipeline_parallel,
        "data_parallel_size": s.data_parallel,
    }
    if sequences:
        arguments["max_num_seqs"] = sequences
    if s.ray:
        arguments["distributed_executor_backend"] = "ray"
        if s.data_parallel > 1:
            arguments["data_parallel_backend"] = "ray"
    if drafts(s):
        arguments["speculative_config"] = speculation(s.num_draft)
        arguments["additional_config"] = {"ngt": {"pool": s.pool, "background": list(s.background)}}
        arguments["per_request_spec_decode_metrics"] = "summary"
    return arguments


def sampling_arguments(settings: Settings, room: int) -> dict[str, Any]:
    """vLLM's parameters of sampling for an answer of at most `room` tokens."""
    s = settings
    arguments: dict[str, Any] = {
        "max_tokens": room,
        "temperature": s.temperature,
        "repetition_penalty": s.repetition_penalty,
        "presence_penalty": s.presence_penalty,
        "frequency_penalty": s.frequency_penalty,
        "stop": list(filter(None, s.stop)),
    }
    if not s.pool:
        arguments["extra_args"] = {"ngt_pool": False}
    if s.temperature > 0:
        arguments |= {"top_p": s.top_p, "top_k": s.top_k, "min_p": s.min_p, "seed": s.seed}
    return arguments
