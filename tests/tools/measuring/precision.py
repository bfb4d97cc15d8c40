"""The cost in quality of a dtype or of quantized weights: next-token distributions against float32.

One model is loaded after the other. The log-probabilities of the first, in float32, are kept as
float16: 0.3 MB a token at a vocabulary of 150,000. They are normalized again when they are read.
Measured: on the built-in model and stories260k (mean KL divergences of 0.00954, and of 3.4e-5 to
0.002) storing them in float16 changed the mean by at most 1.2e-6 nats a token.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ngtcli.bench.grid import BASELINE, cell_of
from ngtcli.bench.live import Live, machine
from ngtcli.bench.prompts import Item
from ngtcli.bench.records import Generation, by_prompt, take
from ngtcli.bench.summary import row_of
from ngtcli.config import Settings
from ngtcli.decoding.memory_limits import ran_within_memory
from ngtcli.decoding.model import TargetModel
from ngtcli.documents.load import Document
from ngtcli.engine.local import LocalSession
from ngtcli.errors import ContextOverflowError, InputError, ModelError
from ngtcli.models.hf import forward_parameters
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.prompts.build import Prompt, check_known
from ngtcli.prompts.preset import Preset
from ngtcli.system import reporting
from ngtcli.words import counted
from tests.tools.measuring.results import QualityResult, QualityRow
from tests.tools.measuring.scores import Quality, Scores

# Tokens of a forward pass. Guess: the context of the smallest models in use.
WINDOW = 512
# Tokens from the start of one window to that of the next, and the context of each scored token.
# Guess.
STRIDE = 256
# Bytes of float32's log-probabilities that are kept: 6,600 tokens at a vocabulary of 150,000.
# Guess.
MOST_BYTES = 2e9
_ROWS = 128  # Positions whose log-probabilities are computed at once, to limit memory. Guess.
# Stands for the log-probability of a token that a model excludes. It is a number of float16.
_MIN_LOG_PROBABILITY = -1e4


@dataclass(frozen=True, slots=True)
class Passage:
    """Ids of one forward pass, of which those from index `first` on are scored."""

    ids: tuple[int, ...]
    first: int

    @property
    def scored(self) -> int:
        """The number of ids that are scored."""
        return len(self.ids) - self.first


def windows(
    ids: Sequence[int], start: Sequence[int], size: int = WINDOW, stride: int = STRIDE
) -> Iterator[Passage]:
    """Yield overlapping windows that score each id once.

    An id with nothing before it is not scored.

    Args:
        ids: The ids of a text.
        start: The ids that the tokenizer puts before a text, if any. Each window begins with them.
        size: The most ids of a window.
        stride: The ids from the start of one window to that of the next.

    >>> [(p.ids, p.first) for p in windows([1, 2, 3, 4, 5, 6], [0], size=4, stride=2)]
    [((0, 1, 2, 3), 1), ((0, 3, 4, 5), 2), ((0, 5, 6), 2)]
    """
    # At least one id of the previous window is repeated, so that each scored id has a context.
    stride = max(1, min(stride, size - len(start) - 1))
    begin = 0
    scored_until = 0
    while scored_until < len(ids):
        part = ids[begin : begin + size - len(start)]
        first = max(1, len(start) + scored_until - begin)
        if first < len(start) + len(part):
            yield Passage((*start, *part), first)
        scored_until = begin + len(part)
        begin += stride


@dataclass(slots=True)
class Scored:
    """The scores of one model over all passages, and its distance from float32.

    Attributes:
        weights: The dtype or the kind of weights.
        tokens: The number of scored tokens.
        loss: The sum of their negative log-probabilities, in nats.
        kept: If this is float32: its log-probabilities, float16 (rows, vocabulary), and most
            likely ids, int64 (rows,), in the order of `distributions`.
        scores: The scores of the answers, if any were asked for.
        against: The scores of float32, unless these are them.
        divergence: The sum of the KL divergences from float32, in nats.
        same: The number of positions with the same most likely id as float32.
    """

    weights: str
    tokens: int = 0
    loss: float = 0.0
    kept: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    scores: Scores | None = None
    against: "Scored | None" = None
    divergence: float = 0.0
    same: int = 0

    @property
    def perplexity(self) -> float:
        """The exponential of the mean loss. A mean loss above 700 counts as 700."""
        return _rounded(math.exp(min(self.loss / self.tokens, 700)))

    @property
    def differences(self) -> tuple[float, float, float] | tuple[None, None, None]:
        """The distance from float32; None for float32 itself.

        The relative change of the perplexity, the mean KL divergence in nats a token, and the
        share of positions with the same most likely token.
        """
        if self.against is None:
            return None, None, None
        change = math.expm1(min((self.loss - self.against.loss) / self.tokens, 700))
        mean_divergence = self.divergence / self.tokens
        share_of_same = self.same / self.tokens
        return _rounded(change), _rounded(mean_divergence), _rounded(share_of_same)


def _rounded(value: float) -> float:
    """Round to six digits."""
    return float(f"{value:.6g}")


def distributions(model: TargetModel, passage: Passage) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield log-probabilities, float32 (rows, vocabulary), and the ids that follow, part by part.

    They come of one forward pass over the whole passage, as a prompt is prefilled. Raises
    ContextOverflowError if memory runs out.
    """
    ids = torch.tensor(passage.ids, device=model.device)
    count = passage.scored
    options = {}
    if "logits_to_keep" in forward_parameters(model.hf):
        options["logits_to_keep"] = count
    results: list[Tensor] = []

    def forward() -> None:
        logits = model.hf(input_ids=ids[None, :-1], use_cache=False, **options).logits[0]
        results.append(logits[-count:])

    with torch.inference_mode():
        if not ran_within_memory(model, forward):
            raise ContextOverflowError(
                f"out of memory in a pass over {len(passage.ids)} tokens",
                hint="Give shorter prompts.",
            )
        logits = results[0]
        next_ids = ids[passage.first :]
        for begin in range(0, count, _ROWS):
            rows = slice(begin, begin + _ROWS)
            yield _log_probabilities(logits[rows]), next_ids[rows]


def _log_probabilities(logits: Tensor) -> Tensor:
    return logits.float().log_softmax(-1).clamp_min_(_MIN_LOG_PROBABILITY)


def score(
    model: TargetModel,
    passages: Sequence[Passage],
    weights: str,
    against: Scored | None = None,
) -> Scored:
    """Score the passages with a model.

    Args:
        model: The model.
        passages: The passages, the same for all models that are compared.
        weights: The name of the dtype or kind of weights.
        against: The scores of float32. Without them the result keeps its distributions, so that
            others can be compared with it.

    Raises ModelError if the scores are not numbers.
    """
    scored = Scored(weights, against=against)
    references = iter(against.kept if against else ())
    for number, passage in enumerate(passages, 1):
        reporting.status(f"Scoring in {weights}: {number} of {counted(len(passages), 'passage')}")
        for log_probabilities, next_ids in distributions(model, passage):
            best = log_probabilities.argmax(-1)
            scored.tokens += len(next_ids)
            of_next_ids = log_probabilities.gather(1, next_ids[:, None])
            scored.loss -= float(of_next_ids.cpu().double().sum())
            if against is None:
                scored.kept.append((log_probabilities.half().cpu(), best.cpu()))
                continue
            reference, reference_best = next(references)
            reference = _log_probabilities(reference.to(model.device))
            divergence = reference.exp() * (reference - log_probabilities)
            scored.divergence += float(divergence.cpu().double().sum())
            scored.same += int((reference_best.to(model.device) == best).sum())
    if math.isnan(scored.loss):
        raise ModelError(
            f"{model.name}: its scores in {weights} are not numbers", hint="Give another --dtype."
        )
    return scored


def compare(
    settings: Settings,
    texts: Sequence[Document],
    items: Sequence[Item],
    preset: Preset | None,
) -> QualityResult:
    """Compare the model of `settings` with float32 of the same checkpoint.

    Args:
        settings: The model, with the dtype or quantization to compare.
        texts: Texts to score. Without any, the reference answers of `items` are scored, each
            after its prompt.
        items: Prompts with reference answers. They are answered, and the answers judged.
        preset: The preset of the prompts.

    Raises InputError if there is nothing to score, and what a session raises.
    """
    judge = Quality()
    rows: list[Scored] = []
    notes: list[str] = []
    source = Live(items, preset)
    for model_settings in (settings.replace(dtype="float32", quantize="none"), settings):
        cell = cell_of(BASELINE, 0, model_settings)
        session = source.session(cell.settings)
        used_machine = machine(session.model)
        try:
            prompts = source.built_prompts(session)
        except ContextOverflowError as error:
            if not texts:
                raise
            source.items = ()
            source.prompts = range(0)
            prompts = []
            notes.append(f"no questions were asked: {error}")
        all_passages = list(_passages(session.model, texts, source.items, prompts))
        passages, note = _within(all_passages, session.model.vocabulary)
        notes.append(note)
        scored = score(session.model, passages, used_machine.dtype, rows[0] if rows else None)
        if prompts:
            reporting.status(f"Answering {counted(len(prompts), 'prompt')} …")
            turns = by_prompt([cell], len(prompts), 1)
            takes = take(source, turns, source.prompts)
            answers = [(answer.prompt, answer.generation) for answer in takes]
            scored.scores = judged(session, source.items, judge, answers)
            notes.append(judge.note)
        rows.append(scored)
        del session  # frees the memory of this model for the next
    return QualityResult(
        model=settings.model.model,
        machine=used_machine,
        scored="texts" if texts else "answers",
        texts=len(texts) or len(items),
        window=WINDOW,
        stride=STRIDE,
        notes=[note for note in dict.fromkeys(notes) if note],
        rows=[row_of(QualityRow, row) for row in rows],
    )


def judged(
    session: LocalSession,
    items: Sequence[Item],
    quality: Quality,
    answers: Sequence[tuple[int, Generation]],
) -> Scores | None:
    """Score the answers to `items` that have reference answers; None if there are none."""
    tokenizer = session.model.tokenizer
    judgeable = []
    for index, generation in answers:
        item = items[index]
        if item.answers:
            text = tokenizer.decode(generation.ids).strip()
            judgeable.append((text, item.answers, bool(item.question)))
    return quality.scores(judgeable) if judgeable else None


def _passages(
    model: TargetModel, texts: Sequence[Document], items: Sequence[Item], prompts: Sequence[Prompt]
) -> Iterator[Passage]:
    """Yield windows of the texts, or without texts the first reference answer of each item."""
    tokenizer = model.tokenizer
    if texts:
        size = min(WINDOW, model.context)
        start = _start_ids(tokenizer)
        for text in texts:
            ids = tokenizer.encode(text.text.strip())
            check_known(ids, model.vocabulary)
            yield from windows(ids, start, size, size * STRIDE // WINDOW)
        return
    for item, prompt in zip(items, prompts, strict=True):
        answer = tokenizer.encode(item.answers[0].strip())[: model.context - len(prompt.ids)]
        check_known(answer, model.vocabulary)
        if answer:
            yield Passage((*prompt.ids, *answer), len(prompt.ids))


def _start_ids(tokenizer: Tokenizer) -> Sequence[int]:
    """Return the ids that the tokenizer puts before a text, such as `<s>`."""
    plain = tokenizer.encode("a")
    marked = tokenizer.encode("a", special=True)
    for index in range(len(marked)):
        if marked[index : index + len(plain)] == plain:
            return marked[:index]
    return []


def _within(passages: list[Passage], vocabulary: int) -> tuple[list[Passage], str]:
    """Take the first passages within MOST_BYTES; return them and a note if others are left out."""
    tokens_left = int(MOST_BYTES / (2 * vocabulary))
    taken: list[Passage] = []
    for passage in passages:
        tokens_left -= passage.scored
        if tokens_left < 0 and taken:
            break
        taken.append(passage)
    scored = sum(passage.scored for passage in taken)
    total = sum(passage.scored for passage in passages)
    if not scored:
        raise InputError("there is nothing to score", hint="Give a text of two words or more.")
    if scored == total:
        return taken, ""
    reason = f"the distributions of more take over {MOST_BYTES / 1e9:g} GB"
    return taken, f"the first {scored} of {total} tokens were scored: {reason}"
