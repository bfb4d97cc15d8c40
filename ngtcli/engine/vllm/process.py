"""A vLLM engine in a process of its own: what it is told, and what it makes of a prompt.

vLLM must be started before numba is imported: its search for kernels fails on numba's dispatcher.
So this module, and what it imports, is free of numba, and loads nothing of vLLM until it starts.
"""

import asyncio
import logging
import os
import re
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar

from ngtcli.config import Settings
from ngtcli.engine.vllm import keeper
from ngtcli.errors import MissingDependencyError, NgtError, UsageError
from ngtcli.models.checkpoint import fetch
from ngtcli.models.quantized import name_of
from ngtcli.system.process import without_collection
from ngtcli.words import plain_number

T = TypeVar("T")
PROPOSER = "ngtcli.engine.vllm.proposer.NgramTrieProposer"
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

_LAST = 100_000  # bytes at the end of vLLM's log that are searched for an error; guess
_ERROR = re.compile(r"\b\w+(?:Error|Exception): (\S.*)")
_VALIDATION = re.compile(r"error, (.*?)(?: \[type=|$)")
_OWN_WORDS = "See vLLM's own words with VLLM_LOGGING_LEVEL=INFO."
_OF_PARENT = "Engine core initialization failed"  # says only that another line says why


def drafts(settings: Settings) -> bool:
    """Whether vLLM is given drafts."""
    return settings.drafting.method != "none" and settings.drafting.num_draft > 0


def check(settings: Settings, environ: Mapping[str, str] = os.environ) -> None:
    """Raise UsageError for settings that vLLM cannot follow."""
    if settings.drafting.method not in METHODS:
        raise UsageError(
            f"method {settings.drafting.method} does not draft for vLLM",
            hint=f"Use {' or '.join(METHODS)}.",
        )
    for name, (low, high) in _RANGES.items():
        if not low <= settings.get(name) <= high:
            hint = f"vLLM takes values from {plain_number(low)} to {plain_number(high)}."
            raise UsageError(f"{name} is {settings.get(name)}", hint=hint)
    if not drafts(settings):
        return
    # Its runner V1, 0.32, has a drafter on the last rank alone.
    if settings.engine.pipeline_parallel > 1:
        raise UsageError(
            "vLLM does not take drafts for a pipeline (--set pipeline_parallel)",
            hint="Give --method none as well, or --set tensor_parallel alone.",
        )
    if settings.answer.min_p > 0:
        raise UsageError("vLLM has no min_p with drafts", hint="Give --method none as well.")
    if environ.get(RUNNER, "").lower() in ("1", "true"):
        raise UsageError(
            f"{RUNNER} asks for vLLM's model runner V2, which takes drafts of no other program",
            hint="Unset it, or give --method none.",
        )


def environment(settings: Settings) -> dict[str, str]:
    """Variables that vLLM reads; drafts need its model runner V1."""
    return ENVIRONMENT | ({RUNNER: "0"} if drafts(settings) else {})


def engine_arguments(settings: Settings, sequences: int, on_cpu: bool) -> dict[str, Any]:
    """The arguments of vLLM's engine; `sequences` at a time, 0 for as many as vLLM takes.

    On a CPU vLLM captures nothing, and would compile for minutes instead.
    """
    s = settings
    arguments: dict[str, Any] = {
        "model": fetch(s.model.model, plain=True),
        "dtype": "float32" if s.model.dtype == "auto" and on_cpu else s.model.dtype,
        "seed": s.answer.seed % 2**32,  # of its own generators; each request has the whole one
        "enforce_eager": on_cpu or not s.model.capture,
        "tensor_parallel_size": s.engine.tensor_parallel,
        "pipeline_parallel_size": s.engine.pipeline_parallel,
        "data_parallel_size": s.engine.data_parallel,
    }
    if sequences:
        arguments["max_num_seqs"] = sequences
    if s.engine.ray:
        arguments["distributed_executor_backend"] = "ray"
        if s.engine.data_parallel > 1:
            arguments["data_parallel_backend"] = "ray"
    if drafts(s):
        arguments["speculative_config"] = {
            "method": "custom_class",
            "model": PROPOSER,
            "num_speculative_tokens": s.drafting.num_draft,
        }
        arguments["additional_config"] = {
            "ngt": {"pool": s.drafting.pool, "background": s.drafting.background}
        }
        arguments["per_request_spec_decode_metrics"] = "summary"
    return arguments


def sampling_arguments(settings: Settings, room: int) -> dict[str, Any]:
    """vLLM's parameters of sampling for an answer of at most `room` tokens."""
    s = settings
    arguments: dict[str, Any] = {
        "max_tokens": room,
        "temperature": s.answer.temperature,
        "repetition_penalty": s.answer.repetition_penalty,
        "presence_penalty": s.answer.presence_penalty,
        "frequency_penalty": s.answer.frequency_penalty,
        "stop": list(filter(None, s.answer.stop)),
    }
    if not s.drafting.pool:
        arguments["extra_args"] = {"ngt_pool": False}
    if s.answer.temperature > 0:
        arguments |= {
            "top_p": s.answer.top_p,
            "top_k": s.answer.top_k,
            "min_p": s.answer.min_p,
            "seed": s.answer.seed,
        }
    return arguments


@dataclass(frozen=True, slots=True)
class Piece:
    """Token ids that one or more steps made; the last piece has a `finish_reason`.

    Reasons: "stop" (an end token, which then is the last id and `ended`, or a stop string) and
    "length". `accepted`, then, is how many steps that had drafts accepted 0, 1, … of them, and
    `drafted` how many drafts there were.
    """

    ids: tuple[int, ...]
    finish_reason: str = ""
    ended: bool = False
    accepted: tuple[int, ...] = ()
    drafted: int = 0


class VllmEngine:
    """vLLM for one model: `pieces` of an answer come from its own process.

    `loop` is the event loop that its client lives in; nothing runs in it but during `wait`.
    `context` is in tokens. Raises UsageError where vLLM is not installed or cannot do what the
    settings say, NgtError where it does not start.
    """

    def __init__(self, settings: Settings, sequences: int = 0) -> None:
        check(settings)
        for name, value in environment(settings).items():
            os.environ.setdefault(name, value)
        self._log = tempfile.TemporaryFile()
        self.loop = asyncio.new_event_loop()
        self._asked = 0
        with _output_to(self._log):
            try:
                self._start(settings, sequences)
            except BaseException as error:
                failure = self._failed(error, "vLLM does not start")
                self.loop.close()
                self._log.close()
                if isinstance(error, NgtError) or not isinstance(error, Exception):
                    raise
                raise failure from error
        config = self._vllm.vllm_config
        self.context = int(config.model_config.max_model_len)
        self.dtype = name_of(config.model_config.dtype)
        self.vocabulary = int(config.model_config.get_vocab_size())
        self.sequences = int(config.scheduler_config.max_num_seqs)

    def _start(self, settings: Settings, sequences: int) -> None:
        try:
            with without_collection():
                from vllm import SamplingParams
                from vllm.engine.arg_utils import AsyncEngineArgs
                from vllm.platforms import current_platform
                from vllm.sampling_params import RequestOutputKind
                from vllm.v1.engine.async_llm import AsyncLLM
        except ImportError as error:
            what = f"--engine vllm needs the extra vllm ({error})"
            raise MissingDependencyError(what, hint="pip install 'ngtcli[vllm]'") from error
        self._parameters, self._kind = SamplingParams, RequestOutputKind.DELTA
        given = engine_arguments(settings, sequences, current_platform.is_cpu())
        arguments = AsyncEngineArgs(**given, enable_log_requests=False)
        config = arguments.create_engine_config()
        if drafts(settings) and config.use_v2_model_runner:
            raise UsageError(
                "this vLLM runs its model runner V2 alone, which takes drafts of no other program",
                hint="Give --method none.",
            )

        async def start() -> Any:
            return AsyncLLM.from_engine_args(arguments)

        self._keeper = keeper.start()
        try:
            self._vllm = self.loop.run_until_complete(start())
        except BaseException:
            self._keeper.communicate()  # what was started of vLLM ends as well
            raise
        logging.getLogger("vllm").setLevel(logging.CRITICAL)  # errors are raised as NgtErrors

    def wait(self, work: Awaitable[T]) -> T:
        """The result of `work`, run in the event loop; where that is interrupted, it is ended."""
        task = asyncio.ensure_future(work, loop=self.loop)
        try:
            return self.loop.run_until_complete(task)
        except KeyboardInterrupt:
            task.cancel()
            with suppress(asyncio.CancelledError):
                self.loop.run_until_complete(task)
            raise

    async def pieces(self, ids: list[int], parameters: dict[str, Any]) -> AsyncGenerator[Piece]:
        """What is made of a prompt; its last piece has a finish reason. Raises NgtError."""
        self._asked += 1
        try:
            sampling = self._parameters(output_kind=self._kind, **parameters)
            made = self._vllm.generate({"prompt_token_ids": ids}, sampling, str(self._asked))
            async for output in made:
                yield _piece(output.outputs[0])
        except (NgtError, asyncio.CancelledError, GeneratorExit):
            raise
        except Exception as error:
            raise self._failed(error, "vLLM failed") from error

    def _failed(self, error: BaseException, what: str) -> NgtError:
        """One line: the error, or what it was caused by, as far as the log tells."""
        reason = first_words(str(error)) or type(error).__name__
        if _OF_PARENT in reason or type(error).__name__ == "EngineDeadError":
            reason = self._last_error() or reason
        return NgtError(f"{what}: {reason}", hint=_OWN_WORDS)

    def check_alive(self) -> None:
        """Raise NgtError where vLLM's process has ended."""
        if self._vllm.errored:
            reason = self._last_error() or "its process has ended"
            raise NgtError(f"vLLM failed: {reason}", hint=_OWN_WORDS)

    def _last_error(self) -> str:
        """The last error in vLLM's log."""
        size = os.fstat(self._log.fileno()).st_size
        start = max(0, size - _LAST)
        text = os.pread(self._log.fileno(), size - start, start).decode(errors="replace")
        return last_error(text)

    def close(self) -> None:
        """End vLLM's processes, and wait for that."""
        with _output_to(self._log), suppress(Exception):
            self._vllm.shutdown()
        self._keeper.communicate()


def last_error(log: str) -> str:
    """Return the last error in a log that is not about another one; "" without any."""
    errors = [match for match in _ERROR.finditer(log) if _OF_PARENT not in match[1]]
    if not errors:
        return ""
    return first_words(log[errors[-1].start(1) :])


def first_words(error: str) -> str:
    """The line of an error's text that says what happened.

    >>> first_words("1 validation error for X\\n  Value error, too large [type=value_error, …]")
    'too large'
    """
    line, *more = error.strip().splitlines() or [""]
    if more and (found := _VALIDATION.search(more[0])) and "validation error" in line:
        return found[1]
    return line


def _piece(output: Any) -> Piece:
    counted = getattr(output, "spec_decode_metrics", None)
    reason = output.finish_reason or ""
    if reason not in ("", "stop", "length"):
        raise NgtError(f"vLLM ended the answer: {reason}", hint="Try it again.")
    ended = reason == "stop" and not isinstance(output.stop_reason, str)
    counts = (tuple(counted.histogram), int(counted.num_draft_tokens)) if counted else ((), 0)
    return Piece(tuple(output.token_ids), reason, ended, *counts)


@contextmanager
def _output_to(file: BinaryIO) -> Iterator[None]:
    """What this process and those it starts write to stdout and stderr goes to `file` meanwhile.

    Where the user asks vLLM to say more, it goes to stderr.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    silent = os.environ.get("VLLM_LOGGING_LEVEL", "").upper() in ("ERROR", "CRITICAL")
    saved = {number: os.dup(number) for number in (1, 2)}
    try:
        for number in saved:
            os.dup2(file.fileno() if silent else saved[2], number)
        yield
    finally:
        for number, handle in saved.items():
            os.dup2(handle, number)
            os.close(handle)
