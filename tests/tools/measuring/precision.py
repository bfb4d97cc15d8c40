"""What a dtype or a kind of weights costs: its distributions of the next token beside float32's.

One model is loaded after the other. Of the first, float32, the log-probabilities of all places are
kept in float16: 0.3 MB a token at a vocabulary of 150,000. They are made to sum to 1 again when
they are read; on the built-in model and stories260k that changed the mean KL divergence by at most
1.2e-6 nats a token (0.00954, 3.4e-5 to 0.002).
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
from ngtcli.decoding.memory_limits import fits
from ngtcli.decoding.model import TargetModel
from ngtcli.documents.load import Document
from ngtcli.engine.local import LocalSession
from ngtcli.errors import ContextOverflowError, InputError, ModelError
from ngtcli.models.hf import forward_parameters
from ngtcli.prompts.build import Prompt, check_known
from ngtcli.prompts.preset import Preset
from ngtcli.system import reporting
from ngtcli.words import counted
from tests.tools.measuring.results import QualityResult, QualityRow
from tests.tools.measuring.scores import Quality, Scores

WINDOW = 512  # tokens of a pass: the context of the smallest models in use; a guess
STRIDE = 256  # tokens from one window to the next, each scored after as many others; a guess
MOST_BYTES = 2e9  # of float32's log-probabilities: 6,600 tokens of 150,000 each; a guess
_ROWS = 128  # places whose scores are made log-probabilities at a time, which bounds memory; guess
_LOWEST = -1e4  # of a log-probability, for tokens that a model excludes; float16 has it


@dataclass(frozen=True, slots=True)
class Passage:
    """Ids that are read in one pass; those from index `first` on are scored."""

    ids: tuple[int, ...]
    first: int

    @property
    def scored(self) -> int:
        """How many ids are scored."""
        return len(self.ids) - self.first


def windows(
    ids: Sequence[int], start: Sequence[int], size: int = WINDOW, stride: int = STRIDE
) -> Iterator[Passage]:
    """Windows of at most `size` ids, one every `stride`, that score each id once.

    Each begins with `start`, the mark that the tokenizer puts before a text, or none. An id with
    nothing in front is not scored.

    >>> [(p.ids, p.first) for p in windows([1, 2, 3, 4, 5, 6], [0], size=4, stride=2)]
    [((0, 1, 2, 3), 1), ((0, 3, 4, 5), 2), ((0, 5, 6), 2)]
    """
    done = at = 0
    while done < len(ids):
        part = ids[at : at + size - len(start)]
        first = max(1, len(start) + done - at)
        if first < len(start) + len(part):
            yield Passage((*start, *part), first)
        done = at + len(part)
        at += max(1, min(stride, size - len(start) - 1))  # an id is before what is scored


@dataclass(slots=True)
class Scored:
    """One model over all passages: sums in nats, and where it stands against float32.

    `kept` are float32's log-probabilities, float16 (rows, vocabulary), and likeliest ids, int64
    (rows,), in the order of `distributions`. `divergence` is summed and `same` counted against it.
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
        """e to the mean loss, at most e to 700."""
        return float(f"{math.exp(min(self.loss / self.tokens, 700)):.6g}")

    @property
    def beside(self) -> tuple[float, float, float] | tuple[None, None, None]:
        """Against float32: the share by which the perplexity is higher, the mean KL divergence in
        nats a token, the share of places with the same likeliest token. None of float32 itself."""
        if self.against is None:
            return None, None, None
        change = math.expm1(min((self.loss - self.against.loss) / self.tokens, 700))
        kl, equal = self.divergence / self.tokens, self.same / self.tokens
        return float(f"{change:.6g}"), float(f"{kl:.6g}"), float(f"{equal:.6g}")


def distributions(model: TargetModel, passage: Passage) -> Iterator[tuple[Tensor, Tensor]]:
    """Parts of a passage: log-probabilities, float32 (rows, vocabulary), and the ids that came.

    They are those of one pass over the whole passage, as a prompt is read. Raises
    ContextOverflowError where memory ends.
    """
    ids, count = torch.tensor(passage.ids, device=model.device), passage.scored
    keep = {"logits_to_keep": count} if "logits_to_keep" in forward_parameters(model.hf) else {}
    found: list[Tensor] = []

    def read() -> None:
        scores = model.hf(input_ids=ids[None, :-1], use_cache=False, **keep).logits[0]
        found.append(scores[-count:])

    with torch.inference_mode():
        if not fits(model, read):
            what = f"out of memory in a pass over {len(passage.ids)} tokens"
            raise ContextOverflowError(what, hint="Give shorter prompts.")
        for at in range(0, count, _ROWS):
            scores, came = (x[at : at + _ROWS] for x in (found[0], ids[passage.first :]))
            yield scores.float().log_softmax(-1).clamp_min_(_LOWEST), came


def score(
    model: TargetModel,
    passages: Sequence[Passage],
    weights: str,
    against: Scored | None = None,
) -> Scored:
    """Score the passages by a model; without `against` it keeps what another one is compared by."""
    made, kept = Scored(weights, against=against), iter(against.kept if against else ())
    for number, passage in enumerate(passages, 1):
        reporting.status(f"Scoring in {weights}: {number} of {counted(len(passages), 'passage')}")
        for logs, came in distributions(model, passage):
            best = logs.argmax(-1)
            made.tokens += len(came)
            made.loss -= float(logs.gather(1, came[:, None]).cpu().double().sum())
            if against is None:
                made.kept.append((logs.half().cpu(), best.cpu()))
                continue
            true, likeliest = (part.to(model.device) for part in next(kept))
            true = true.float().log_softmax(-1).clamp_min_(_LOWEST)
            made.divergence += float((true.exp() * (true - logs)).cpu().double().sum())
            made.same += int((likeliest == best).sum())
    if math.isnan(made.loss):
        what = f"{model.name}: its scores in {weights} are not numbers"
        raise ModelError(what, hint="Give another --dtype.")
    return made


def compare(
    settings: Settings,
    texts: Sequence[Document],
    items: Sequence[Item],
    preset: Preset | None,
) -> QualityResult:
    """The model of `settings` against float32 of the same checkpoint.

    `texts` are scored, or where there are none the reference answers of `items`, each behind its
    prompt; the items, which all have reference answers, are answered and judged by them. Raises
    InputError where there is nothing to score, and as a session does.
    """
    judge, rows, notes = Quality(), list[Scored](), list[str]()
    source = Live(items, preset)
    for own in (settings.replace(dtype="float32", quantize="none"), settings):
        cell = cell_of(BASELINE, 0, own)
        session = source.session(cell.settings)
        on = machine(session.model)
        try:
            prompts = source.built_prompts(session)
        except ContextOverflowError as error:
            if not texts:
                raise
            source.items, source.prompts, prompts = (), range(0), []
            notes.append(f"no questions were asked: {error}")
        found = list(_passages(session.model, texts, source.items, prompts))
        passages, note = _within(found, session.model.vocabulary)
        made = score(session.model, passages, on.dtype, rows[0] if rows else None)
        if prompts:
            reporting.status(f"Answering {counted(len(prompts), 'prompt')} …")
            turns = by_prompt([cell], len(prompts), 1)
            answers = [(one.prompt, one.generation) for one in take(source, turns, source.prompts)]
            made.scores = judged(session, source.items, judge, answers)
        rows.append(made)
        notes += [note, judge.note if prompts else ""]
        del session  # the memory of one model is there for the next
    return QualityResult(
        model=settings.model.model,
        machine=on,
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
    """The quality of answers to those of `items` that have references; None without any."""
    decode = session.model.tokenizer.decode
    own = [(decode(g.ids).strip(), items[i]) for i, g in answers if items[i].answers]
    found = [(text, item.answers, bool(item.question)) for text, item in own]
    return quality.scores(found) if found else None


def _passages(
    model: TargetModel, texts: Sequence[Document], items: Sequence[Item], prompts: Sequence[Prompt]
) -> Iterator[Passage]:
    """What is scored: the texts in windows, or else the first reference answer of each item."""
    encode, size = model.tokenizer.encode, min(WINDOW, model.context)
    plain, marked = encode("a"), encode("a", special=True)
    places = (i for i in range(len(marked)) if marked[i : i + len(plain)] == plain)
    mark = marked[: next(places, 0)]  # what the tokenizer puts before a text, such as `<s>`
    for text in texts:
        ids = encode(text.text.strip())
        check_known(ids, model.vocabulary)
        yield from windows(ids, mark, size, size * STRIDE // WINDOW)
    for item, prompt in zip(items, prompts, strict=True) if not texts else ():
        answer = encode(item.answers[0].strip())[: model.context - len(prompt.ids)]
        check_known(answer, model.vocabulary)
        if answer:
            yield Passage((*prompt.ids, *answer), len(prompt.ids))


def _within(passages: list[Passage], vocabulary: int) -> tuple[list[Passage], str]:
    """The first passages, as many as MOST_BYTES allow, and a note where others are left out."""
    room, taken = int(MOST_BYTES / (2 * vocabulary)), list[Passage]()
    for passage in passages:
        room -= passage.scored
        if room < 0 and taken:
            break
        taken.append(passage)
    done, all_of = (sum(p.scored for p in some) for some in (taken, passages))
    if not done:
        raise InputError("there is nothing to score", hint="Give a text of two words or more.")
    left = f"the first {done} of {all_of} tokens were scored: the distributions of more take over"
    return taken, f"{left} {MOST_BYTES / 1e9:g} GB" if done < all_of else ""
