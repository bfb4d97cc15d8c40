"""The steps of an answer, their tokens, and how long they took. Imports no torch."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from ngtcli.system.json_form import HIDDEN, json_key, json_property, schema_of, shape

OWN = "model"
_THOUGHT = "text of the model's reasoning, for a token that is none of the answer's"
_PROBABILITY = "at temperature 1, among the tokens that may stand here"


@dataclass(frozen=True, slots=True)
class Token:
    """One emitted token and the text it completed.

    Attributes:
        origin: OWN for the model's own choice; for an accepted draft its source, or "draft".
        thought: The text of reasoning that it completed; None for a token of the answer.
        probability: Its probability at temperature 1 among the tokens that a grammar allows;
            None if it was not requested.
    """

    id: int
    text: str
    origin: str = OWN
    thought: str | None = field(default=None, metadata=json_key(omit=True, about=_THOUGHT))
    probability: float | None = field(
        default=None, metadata=json_key(omit=True, digits=6, about=_PROBABILITY)
    )

    @property
    def drafted(self) -> bool:
        """Return whether it was an accepted draft."""
        return self.origin != OWN


@dataclass(frozen=True, slots=True)
class Step:
    """The tokens that one step emitted.

    Attributes:
        finish_reason: "stop" (an end token or stop string), "repetition" (the text repeats itself),
            "length" (max_tokens) or "context" (no room left); "" in all steps but the last.
        nodes: Number of drafted nodes.
        predicted: How many of them came from a predicted answer.
    """

    tokens: tuple[Token, ...]
    finish_reason: str = ""
    nodes: int = 0
    predicted: int = 0


PARTS = ("draft", "tree", "forward", "verify", "cache")


class Stopwatch:
    """A stopwatch for the PARTS of a step: `with watch("draft"): …`, part by part.

    A part's time begins at the end of the previous part, so no time between two parts is lost;
    parts do not nest. `wait_for_device` is called before a part ends. Without it the work of an
    asynchronous device counts for the part that waits for its result.

    >>> watch = Stopwatch()
    >>> with watch("draft"):
    ...     pass
    >>> watch.elapsed_s >= watch.parts["draft"] > 0.0
    True
    """

    def __init__(self, wait_for_device: Callable[[], None] | None = None) -> None:
        self.parts = dict.fromkeys(PARTS, 0.0)
        self._wait = wait_for_device
        self._part = ""
        self._began = time.perf_counter()
        self._last = self._began

    @property
    def elapsed_s(self) -> float:
        """Return the seconds from the beginning of the step to the end of its last part."""
        return self._last - self._began

    def __call__(self, part: str) -> Self:
        self._part = part
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        if self._wait is not None:
            self._wait()
        now = time.perf_counter()
        self.parts[self._part] += now - self._last
        self._last = now


@dataclass(frozen=True, slots=True)
class Reused:
    """The tokens of a prompt whose KV entries were cached when an earlier prompt was read.

    Attributes:
        tokens: The number of these tokens.
        from_disk: How many of them came from disk.
        seconds: The seconds for copying their KV entries into place.
        read_s: The seconds of their original prefill.
    """

    tokens: int = 0
    from_disk: int = 0
    seconds: float = 0.0
    read_s: float = 0.0


_CACHED = "tokens of the prompt that were read before: their KV entries were cached"
_REASONING = "new tokens of the model's reasoning, which are none of the answer's"


@dataclass(slots=True)
class Statistics:
    """The counts and times of one sequence, which grow step by step, in seconds of wall clock.

    `shared_steps` counts the steps whose forward passes served other sequences as well,
    `plain_steps` those over a single query token, which took `plain_s`.
    """

    prompt_tokens: int = 0
    cached_tokens: int = field(default=0, metadata=json_key(about=_CACHED))
    cached_from_disk: int = field(default=0, metadata=json_key(about="of these, from disk"))
    cached_s: float = field(
        default=0.0, metadata=json_key(digits=6, about="seconds to copy their KV entries")
    )
    cached_read_s: float = field(
        default=0.0, metadata=json_key(digits=6, about="seconds that their prefill took")
    )
    new_tokens: int = 0
    thought_tokens: int | None = field(default=None, metadata=json_key(omit=True, about=_REASONING))
    steps: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    accepted_prediction_tokens: int | None = field(
        default=None,
        metadata=json_key(omit=True, about="tokens drafted from the predicted answer and accepted"),
    )
    rejected_prediction_tokens: int | None = field(
        default=None,
        metadata=json_key(omit=True, about="tokens drafted from the predicted answer and rejected"),
    )
    acceptance_histogram: Counter[int] = field(default_factory=Counter)
    prefill_s: float = field(default=0.0, metadata=json_key(digits=6))
    decode_s: float = field(default=0.0, metadata=json_key(digits=6))
    split_s: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(PARTS, 0.0),
        metadata=json_key(digits=6, schema=lambda: shape(dict.fromkeys(PARTS, schema_of(float)))),
    )

    shared_steps: int = field(default=0, metadata=HIDDEN)
    plain_steps: int = field(default=0, metadata=HIDDEN)
    plain_s: float = field(default=0.0, metadata=HIDDEN)

    def add_prefill(self, seconds: float, reused: Reused) -> None:
        """Add the seconds of a prefill; only the first one's reuse of the cache counts."""
        if not self.prefill_s:
            self.cached_tokens = reused.tokens
            self.cached_from_disk = reused.from_disk
            self.cached_s = reused.seconds
            self.cached_read_s = reused.read_s
        self.prefill_s += seconds

    def add_step(self, drafted: int, accepted: int, emitted: int) -> None:
        """Count one step that emitted `emitted` tokens, `accepted` of them drafted."""
        self.steps += 1
        self.drafted_tokens += drafted
        self.accepted_tokens += accepted
        self.new_tokens += emitted
        self.acceptance_histogram[accepted] += 1

    def add_predicted(self, drafted: int, accepted: int) -> None:
        """Count the nodes of a step that came from a predicted answer."""
        self.accepted_prediction_tokens = (self.accepted_prediction_tokens or 0) + accepted
        rejected = drafted - accepted
        self.rejected_prediction_tokens = (self.rejected_prediction_tokens or 0) + rejected

    def add_time(self, watch: Stopwatch, query_tokens: int, total: int) -> None:
        """Add this sequence's share of the seconds of a step.

        Args:
            watch: The time of the step.
            query_tokens: The number of this sequence's query tokens in the forward pass.
            total: The number of all query tokens in the forward pass.
        """
        share = query_tokens / total
        if query_tokens < total:
            self.shared_steps += 1
        if total == 1:
            self.plain_steps += 1
            self.plain_s += watch.elapsed_s
        self.decode_s += share * watch.elapsed_s
        for part, seconds in watch.parts.items():
            self.split_s[part] += share * seconds

    @property
    @json_property(after="accepted_tokens", digits=4)
    def mean_acceptance_length(self) -> float:
        """Return the number of tokens emitted per step."""
        return self.new_tokens / self.steps if self.steps else 0.0

    @property
    @json_property(after="mean_acceptance_length", digits=4)
    def draft_acceptance_rate(self) -> float:
        """Return the share of drafted tokens that were accepted."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else 0.0

    @property
    @json_property(after="decode_s", digits=3)
    def tokens_per_s(self) -> float:
        """Return the new tokens per second of decoding, without prefill."""
        return self.new_tokens / self.decode_s if self.decode_s else 0.0


@dataclass(frozen=True, slots=True)
class PassesReport:
    """A report on the capture of forward passes.

    Attributes:
        captured: The number of shapes that are captured as CUDA graphs.
        seconds: The seconds that capturing took.
        reason: Why none is captured.
    """

    captured: int
    seconds: float = field(metadata=json_key(digits=3))
    reason: str
