"""vLLM's engine, which runs in processes of its own: its arguments, and the tokens that it returns.

vLLM must be started before numba is imported: its search for kernels fails on numba's dispatcher.
So neither this module nor its imports import numba, and vLLM is imported when it is started.
"""

import asyncio
import logging
import os
import re
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, TypeVar

from ngtcli.config import Settings
from ngtcli.engine.vllm import keeper
from ngtcli.errors import MissingDependencyError, NgtError, UsageError
from ngtcli.models.checkpoint import fetch
from ngtcli.models.quantized import name_of
from ngtcli.system.process import without_garbage_collection
from ngtcli.words import plain_number

T = TypeVar("T")
PROPOSER = "ngtcli.engine.vllm.proposer.NgramTrieProposer"
METHODS = ("auto", "none")  # the methods that can draft for vLLM
# The ranges of settings for which vLLM allows less than ngt.
_RANGES = {
    "temperature": (0.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"  # vLLM's variable that chooses its model runner
# Values of vLLM's variables that the user has not set: its log goes to stderr, and it sends no
# usage statistics.
ENVIRONMENT = {
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}

_LAST = 100_000  # bytes at the end of vLLM's log that are searched for an error (guess)
_ERROR = re.compile(r"\b\w+(?:Error|Exception): (\S.*)")
_VALIDATION = re.compile(r"error, (.*?)(?: \[type=|$)")
_LOG_HINT = "Set VLLM_LOGGING_LEVEL=INFO to see vLLM's log."
# vLLM's parent process reports this; the cause is in an earlier line.
_PARENT_ERROR = "Engine core initialization failed"


def drafts(settings: Settings) -> bool:
    """Return whether ngt drafts for vLLM."""
    return settings.drafting.method != "none" and settings.drafting.num_draft > 0


def check(settings: Settings, environ: Mapping[str, str] = os.environ) -> None:
    """Raise UsageError for settings that vLLM does not support."""
    if settings.drafting.method not in METHODS:
        raise UsageError(
            f"method {settings.drafting.method} does not draft for vLLM",
            hint=f"Use {' or '.join(METHODS)}.",
        )
    for name, (low, high) in _RANGES.items():
        if not low <= settings.get(name) <= high:
            raise UsageError(
                f"{name} {settings.get(name)} is out of range for vLLM",
                hint=f"Use a value from {plain_number(low)} to {plain_number(high)}.",
            )
    if not drafts(settings):
        return
    # Model runner V1 of vLLM 0.32 creates the drafter on the last rank only.
    if settings.engine.pipeline_parallel > 1:
        raise UsageError(
            "vLLM does not support drafts with --set pipeline_parallel",
            hint="Add --method none, or use --set tensor_parallel instead.",
        )
    if settings.answer.min_p > 0:
        raise UsageError("vLLM does not support min_p with drafts", hint="Add --method none.")
    if environ.get(RUNNER, "").lower() in ("1", "true"):
        raise UsageError(
            f"{RUNNER} selects vLLM's model runner V2, which does not support custom drafters",
            hint="Unset it, or use --method none.",
        )


def environment(settings: Settings) -> dict[str, str]:
    """Return the variables to set for vLLM; drafts need its model runner V1."""
    variables = dict(ENVIRONMENT)
    if drafts(settings):
        variables[RUNNER] = "0"
    return variables


def engine_arguments(settings: Settings, sequences: int, on_cpu: bool) -> dict[str, Any]:
    """Return the arguments of vLLM's engine.

    Args:
        settings: The settings of the session.
        sequences: The maximum batch size; 0: vLLM's default.
        on_cpu: vLLM runs on a CPU, where it captures no CUDA graphs and would compile for minutes.
    """
    s = settings
    arguments: dict[str, Any] = {
        "model": fetch(s.model.model, only_folders=True),
        "dtype": "float32" if s.model.dtype == "auto" and on_cpu else s.model.dtype,
        # This seeds vLLM's generators, which take 32 bits; each request has the complete seed.
        "seed": s.answer.seed % 2**32,
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
    """Return vLLM's sampling parameters for an answer of at most `room` tokens."""
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
    """The tokens of one or more steps of vLLM.

    Attributes:
        token_ids: The tokens.
        finish_reason: "stop" or "length" in the last piece, otherwise "".
        ended: An end token, the last of `token_ids`, stopped the answer, not a stop string.
        accepted: How many steps with drafts accepted 0, 1, … of them; only in the last piece.
        drafted: The number of draft tokens; only in the last piece.
    """

    token_ids: tuple[int, ...]
    finish_reason: str = ""
    ended: bool = False
    accepted: tuple[int, ...] = ()
    drafted: int = 0


class VllmEngine:
    """vLLM for one model; it runs in other processes.

    Attributes:
        loop: The event loop of vLLM's client. It runs during `wait` only.
        context: The longest sequence, in tokens.
        dtype: The name of the dtype that it computes in.
        vocabulary: The number of the model's token ids.
        sequences: The maximum batch size.

    Raises:
        MissingDependencyError: vLLM is not installed.
        UsageError: vLLM does not support the settings.
        NgtError: vLLM does not start.
    """

    def __init__(self, settings: Settings, sequences: int = 0) -> None:
        check(settings)
        for name, value in environment(settings).items():
            os.environ.setdefault(name, value)
        self._log = tempfile.TemporaryFile()
        self.loop = asyncio.new_event_loop()
        self._requests = 0  # so far; their numbers are vLLM's names of them
        with _redirect_output(self._log):
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
            with without_garbage_collection():
                from vllm import SamplingParams
                from vllm.engine.arg_utils import AsyncEngineArgs
                from vllm.platforms import current_platform
                from vllm.sampling_params import RequestOutputKind
                from vllm.v1.engine.async_llm import AsyncLLM
        except ImportError as error:
            raise MissingDependencyError(
                f"--engine vllm needs the extra vllm ({error})", hint="pip install 'ngtcli[vllm]'"
            ) from error
        self._parameters = SamplingParams
        self._kind = RequestOutputKind.DELTA
        arguments = AsyncEngineArgs(
            **engine_arguments(settings, sequences, current_platform.is_cpu()),
            enable_log_requests=False,
        )
        config = arguments.create_engine_config()
        if drafts(settings) and config.use_v2_model_runner:
            raise UsageError(
                "this vLLM has only its model runner V2, which does not support custom drafters",
                hint="Use --method none.",
            )

        async def start() -> Any:
            return AsyncLLM.from_engine_args(arguments)

        self._keeper = keeper.start()
        try:
            self._vllm = self.loop.run_until_complete(start())
        except BaseException:
            self._keeper.communicate()  # It ends the processes that vLLM has started.
            raise
        # From here on errors are raised as NgtErrors.
        logging.getLogger("vllm").setLevel(logging.CRITICAL)

    def wait(self, work: Awaitable[T]) -> T:
        """Run `work` in the event loop and return its result; an interrupt cancels it."""
        task = asyncio.ensure_future(work, loop=self.loop)
        try:
            return self.loop.run_until_complete(task)
        except KeyboardInterrupt:
            task.cancel()
            with suppress(asyncio.CancelledError):
                self.loop.run_until_complete(task)
            raise

    async def pieces(
        self, token_ids: list[int], parameters: dict[str, Any]
    ) -> AsyncGenerator[Piece]:
        """Generate from a prompt; the last piece has a finish reason. Raises NgtError."""
        self._requests += 1
        try:
            sampling = self._parameters(output_kind=self._kind, **parameters)
            prompt = {"prompt_token_ids": token_ids}
            async for output in self._vllm.generate(prompt, sampling, str(self._requests)):
                yield _piece(output.outputs[0])
        except (NgtError, asyncio.CancelledError, GeneratorExit):
            raise
        except Exception as error:
            raise self._failed(error, "vLLM failed") from error

    def _failed(self, error: BaseException, subject: str) -> NgtError:
        """Return an NgtError for an error of vLLM, with the cause that its log names.

        Args:
            error: The error.
            subject: The beginning of the message.
        """
        reason = first_words(str(error)) or type(error).__name__
        if _PARENT_ERROR in reason or type(error).__name__ == "EngineDeadError":
            reason = self._last_error() or reason
        return NgtError(f"{subject}: {reason}", hint=_LOG_HINT)

    def check_alive(self) -> None:
        """Raise NgtError if vLLM's process has ended."""
        if self._vllm.errored:
            reason = self._last_error() or "its process has ended"
            raise NgtError(f"vLLM failed: {reason}", hint=_LOG_HINT)

    def _last_error(self) -> str:
        """Return the last error in vLLM's log, "" if there is none."""
        size = os.fstat(self._log.fileno()).st_size
        start = max(0, size - _LAST)
        text = os.pread(self._log.fileno(), size - start, start).decode(errors="replace")
        return last_error(text)

    def close(self) -> None:
        """End vLLM's processes and wait until they have ended."""
        with _redirect_output(self._log), suppress(Exception):
            self._vllm.shutdown()
        self._keeper.communicate()


def last_error(log: str) -> str:
    """Return the last error in a log that names a cause, "" if there is none."""
    errors = [match for match in _ERROR.finditer(log) if _PARENT_ERROR not in match[1]]
    if not errors:
        return ""
    return first_words(log[errors[-1].start(1) :])


def first_words(error: str) -> str:
    """Return the line of an error's text that says what happened.

    >>> first_words("1 validation error for X\\n  Value error, too large [type=value_error, …]")
    'too large'
    """
    lines = error.strip().splitlines()
    if not lines:
        return ""
    if len(lines) > 1 and "validation error" in lines[0]:
        match = _VALIDATION.search(lines[1])
        if match:
            return match[1]
    return lines[0]


def _piece(output: Any) -> Piece:
    """Convert an output of vLLM. Raises NgtError if the answer was aborted."""
    reason = output.finish_reason or ""
    if reason not in ("", "stop", "length"):
        raise NgtError(f"vLLM ended the answer: {reason}", hint="Try again.")
    piece = Piece(
        tuple(output.token_ids),
        reason,
        ended=reason == "stop" and not isinstance(output.stop_reason, str),
    )
    metrics = getattr(output, "spec_decode_metrics", None)
    if not metrics:
        return piece
    return replace(piece, accepted=tuple(metrics.histogram), drafted=int(metrics.num_draft_tokens))


@contextmanager
def _redirect_output(file: BinaryIO) -> Iterator[None]:
    """Redirect stdout and stderr of this process and its children to a file within the context.

    If the user has asked vLLM for a more verbose log, they go to stderr.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    is_silent = os.environ.get("VLLM_LOGGING_LEVEL", "").upper() in ("ERROR", "CRITICAL")
    saved = {number: os.dup(number) for number in (1, 2)}
    try:
        for number in saved:
            os.dup2(file.fileno() if is_silent else saved[2], number)
        yield
    finally:
        for number, handle in saved.items():
            os.dup2(handle, number)
            os.close(handle)
