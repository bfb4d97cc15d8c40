"""Finds how a model is to be run: runs it, and compares with `transformers`' own generate.

The reference is the scores of `generate` on one arbitrary prompt, longer than every window of the
configuration. A model verifies drafts only if its single steps in a cache that can be rolled back,
and its rows of a wide tree with a deep path in the last rows, give those scores. Any other model is
run token by token in the first way that gives them. Where no way does, because `generate`
contradicts itself (it cuts the cache to a window that the model's mask does not have), the
reference is one pass without a cache. A model that agrees with neither is refused. What was found
is stored for each configuration in the cache folder.
"""

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from ngtcli.decode.model import TargetModel
from ngtcli.decode.plain import REREAD, STEPS, TREES, Way
from ngtcli.decode.scores import runs_exactly, same_scores, scores_are_not_numbers
from ngtcli.draft.tree import ROOT, DraftTree
from ngtcli.errors import ModelError
from ngtcli.model_files.pretrained import window_numbers
from ngtcli.system.json_form import from_json
from ngtcli.system.remembered import Remembered
from ngtcli.tokens.tokenizer import Tokenizer

NEW_TOKENS = 4  # enough for a path three deep, and a step whose cache holds two steps' rows
# Families whose lossless drafting the tests prove, and whether they prove it for a sliding window,
# too. A model of any other family is probed when it is first loaded.
_PROVEN = {
    "llama": False, "gemma": False, "mistral": True, "qwen2": True, "qwen3": True, "gemma2": True,
    "gemma3_text": True,
}  # fmt: skip
# Tokens: longer than the common windows of 4,096; a CPU takes minutes to read more.
LONGEST = 4224
_SHORTEST = 24
# Wrong siblings before the path: as many as the window has tokens, within these bounds; guessed.
_WIDEST, _NARROWEST = 512, 40
_END = 2304  # tokens of context up to which its end is probed: learned positions end at 2,048
_EMPTY = DraftTree()

_STATE_KINDS = {"linear_attention", "conv", "hybrid", "hybrid_sliding"}
_CHOOSING_KINDS = {
    "indexed_attention", "compressed_sparse_attention", "heavily_compressed_attention",
    "minimax_m3_sparse",
}  # fmt: skip
_KNOWN_KINDS = {"full_attention", "sliding_attention"}
KEEPS_STATE = "its layers keep a running state that cannot be rolled back"
ATTENDS_IN_CHUNKS = (
    "its layers attend within chunks, which the mask of a draft tree does not follow"
)
CHOOSES_TOKENS = "its layers choose the tokens they attend to, from a cache of their own"
NO_TREE_MASK = "it does not honour a tree attention mask"
NO_CACHE = "it keeps no cache: everything is read again at each token"


@dataclass(frozen=True, slots=True)
class Reference:
    """A prompt, the tokens that followed it, and `scores` (NEW_TOKENS, vocabulary) before each.

    `exact`: the model runs in float32, so that scores differ by rounding in float32 only.
    """

    prompt: list[int]
    tokens: list[int]
    scores: Tensor
    exact: bool

    def agrees(self, rows: Sequence[Tensor], start: int = 0) -> bool:
        """Whether `rows`, each (vocabulary,), are the scores from token `start` on."""
        return same_scores(rows, self.scores[start : start + len(rows)], self.exact)


def target_model(
    hf: Any, tokenizer: Tokenizer, name: str, progress: Callable[[str], None] = lambda _: None
) -> TargetModel:
    """The model, run in the way that probing found; `progress` is called before it is probed.

    Raises ModelError for a model that cannot be run.
    """
    model = TargetModel(hf, tokenizer, name)
    _use_way_found(model, progress)
    return model


def use_attention(
    model: TargetModel, name: str, progress: Callable[[str], None] = lambda _: None
) -> None:
    """Compute attention by another implementation from now on. Empties the cache."""
    model.hf.set_attn_implementation(name)
    model.joint_reason = None
    model.use(Way())
    _use_way_found(model, progress)


def _use_way_found(model: TargetModel, progress: Callable[[str], None]) -> None:
    """Run a model of a family that the tests do not cover in the way that probing finds."""

    def probe() -> Way:
        progress(f"Trying once how {model.name} takes drafts …")
        return find_way(model)

    if not _proven(model.config):
        model.use(remembered_way(model.hf).find(probe))


def _proven(config: Any) -> bool:
    """Whether the tests cover this model: its family, its kinds of layers and its windows."""
    kinds = set(getattr(config, "layer_types", None) or ())
    slides = _PROVEN.get(config.model_type)
    return slides is not None and kinds <= _KNOWN_KINDS and (slides or not window_numbers(config))


def remembered_way(hf: Any) -> Remembered[Way]:
    """Where the way of a model is kept."""
    config = hf.config.to_json_string(use_diff=False)
    attention = getattr(hf.config, "_attn_implementation", None)
    parts = (hf.dtype, attention, type(hf).__name__, config)
    return Remembered("ways", hf.device, parts, _read, asdict, threads=False)


def _read(stored: Any) -> Way:
    way: Way = from_json(Way, stored)
    drafts = way.kind == TREES and not way.reason
    plain = way.kind in (STEPS, REREAD) and 0 < len(way.reason) < 200 and way.reason.isprintable()
    if not (drafts or plain):
        raise ValueError("no way to run a model")
    return way


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many prompt tokens, and wrong siblings before the path, a probe uses."""

    prompt: int
    siblings: int

    @property
    def rows(self) -> int:
        """Rows of cache that the probe needs, some to spare."""
        return self.prompt + self.siblings + 2 * NEW_TOKENS


def sizes(model: TargetModel) -> Sizes:
    """A prompt longer than every window below LONGEST tokens, as far as the context allows."""
    known = [n for n in window_numbers(model.config).values() if n < min(model.context, LONGEST)]
    window = max(known, default=0)
    room = model.context - 2 * NEW_TOKENS
    siblings = min(max(window, _NARROWEST), _WIDEST, max(2, room // 2))
    return Sizes(max(1, min(max(window + 8, _SHORTEST), LONGEST, room - siblings)), siblings)


@torch.inference_mode()
def find_way(model: TargetModel) -> Way:
    """The way to run `model`. Changes `model.way` while it probes. Raises ModelError."""
    taken = sizes(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for truth in references(model.hf, model.name, taken.prompt, model.vocabulary):
            check_causal(model.hf, model.name, truth.prompt)
            reason = _why_plain(model) or _tree_reason(model, truth, taken)
            if not reason:
                return model.way
            if way := _plain_way(model, truth, reason):
                return way
    raise ModelError(
        f"{model.name}: {model.config.model_type} models cannot be run: token by token they give"
        " neither what transformers' generate gives nor what they give in one pass",
        "Give another model.",
    )


def _why_plain(model: TargetModel) -> str:
    """Why, by its configuration, the model cannot verify drafts; "" where a probe must tell."""
    kinds = set(getattr(model.config, "layer_types", None) or ())
    for reason, of in (
        (KEEPS_STATE, _STATE_KINDS),
        (ATTENDS_IN_CHUNKS, {"chunked_attention"}),
        (CHOOSES_TOKENS, _CHOOSING_KINDS),
    ):
        if kinds & of:
            return reason
    if kinds - _KNOWN_KINDS:
        return f"its layers are of a kind unknown here ({min(kinds - _KNOWN_KINDS)})"
    for name, number in window_numbers(model.config).items():
        # The tree mask applies a sliding window of any length; another window must be probed.
        if "window" in name and name != "sliding_window" and LONGEST <= number < model.context:
            return f"its {name} of {number} tokens is too long to be tried"
    return ""


def _tree_reason(model: TargetModel, truth: Reference, taken: Sizes) -> str:
    """Why the model cannot verify drafts, "" if it can; `model.way` is the last one probed."""
    for window in (True, False) if model.window is not None else (True,):
        model.use(Way(TREES, window=window))
        if (
            _holds(lambda: _steps_agree(model, truth, taken.rows))
            and _holds(lambda: _tree_agrees(model, truth, taken))
            and _holds(lambda: _end_agrees(model, truth))
        ):
            return ""
    return KEEPS_STATE if getattr(model.hf, "_is_stateful", False) else NO_TREE_MASK


def _holds(claim: Callable[[], bool]) -> bool:
    """Whether `claim` is true; it is false of a model that raises an error meanwhile."""
    try:
        return claim()
    except (MemoryError, torch.OutOfMemoryError, ModelError):
        raise
    except Exception:
        return False


def _steps_agree(model: TargetModel, truth: Reference, rows: int) -> bool:
    """Whether single steps after a prompt read in chunks give the reference's scores."""
    model.start(rows)
    model.prefill(truth.prompt[:-1], max(1, len(truth.prompt) // 3))
    found = []
    for token in (truth.prompt[-1], *truth.tokens[:-1]):
        found.append(model.forward(token, _EMPTY)[0].clone())
        model.keep(())
    return truth.agrees(found)


def _tree_agrees(model: TargetModel, truth: Reference, taken: Sizes) -> bool:
    """Whether the path after all its wrong siblings, and two of these, have the right scores."""
    model.truncate(len(truth.prompt) - 1)
    tree = _wide_tree(truth, taken.siblings, model.vocabulary)
    rows = model.forward(truth.prompt[-1], tree)
    deep = [rows[0], *rows[-(NEW_TOKENS - 1) :]]
    if len(rows) != len(tree) + 1 or not truth.agrees(deep):
        return False
    return all(
        same_scores(
            [rows[node + 1]], [_step_by_step(model, truth, (tree.tokens[node],))], truth.exact
        )
        for node in (0, taken.siblings - 1)
    )


def _wide_tree(truth: Reference, siblings: int, vocabulary: int) -> DraftTree:
    """Wrong first tokens, then the true path, NEW_TOKENS - 1 deep, in the last rows."""
    wrong = [(truth.tokens[0] + 1 + i % (vocabulary - 1)) % vocabulary for i in range(siblings)]
    path = truth.tokens[: NEW_TOKENS - 1]
    parents = [ROOT] * siblings + [ROOT, *(siblings + i for i in range(len(path) - 1))]
    return DraftTree((*wrong, *path), tuple(parents))


def _step_by_step(model: TargetModel, truth: Reference, path: tuple[int, ...]) -> torch.Tensor:
    """Scores after prompt and `path`, one token a pass; the cache holds the prompt."""
    start = len(truth.prompt) - 1
    model.truncate(start)
    for token in (truth.prompt[-1], *path[:-1]):
        model.forward(token, _EMPTY)
        model.keep(())
    scores = model.forward(path[-1], _EMPTY)[0].clone()
    model.truncate(start)
    return scores


def _end_agrees(model: TargetModel, truth: Reference) -> bool:
    """Whether a tree at the context's end has the scores that its path has token by token.

    The rows before the tree are zeros: no prompt is read.
    """
    siblings = min(_NARROWEST, model.context // 2)
    start = model.context - siblings - NEW_TOKENS
    if model.context > _END or start < 1:
        return True
    tree = _wide_tree(truth, siblings, model.vocabulary)
    model.start(model.context)
    model.cache.length = start
    rows = model.forward(truth.prompt[-1], tree)
    single = []
    for token in (truth.prompt[-1], *truth.tokens[: NEW_TOKENS - 1]):
        single.append(model.forward(token, _EMPTY)[0].clone())
        model.keep(())
    return same_scores([rows[0], *rows[-(NEW_TOKENS - 1) :]], single, truth.exact)


def _plain_way(model: TargetModel, truth: Reference, reason: str) -> Way | None:
    """The first way that gives the reference's scores token by token; None if no way does."""
    for way in _plain_ways(reason):
        model.use(way)
        if _holds(lambda: _steps_agree(model, truth, 0)):
            return way
    return None


def _plain_ways(reason: str) -> Iterator[Way]:
    for positions, cache in ((True, False), (True, True), (False, False)):
        for chunks in (True, False):
            yield Way(STEPS, reason, positions=positions, cache=cache, chunks=chunks)
    reason = reason if reason == KEEPS_STATE else NO_CACHE
    for positions in (True, False):
        yield Way(REREAD, reason, positions=positions)


def references(hf: Any, name: str, length: int, vocabulary: int) -> Iterator[Reference]:
    """The scores of `generate` after `length` arbitrary tokens, then of one pass without cache.

    One that the model fails to give is left out. Raises ModelError where it fails to give both,
    and for scores that are not numbers.
    """
    rng = random.Random(0)
    prompt = [rng.randrange(vocabulary) for _ in range(length)]
    spoken = [rng.randrange(vocabulary) for _ in range(NEW_TOKENS)]
    failed, had = Exception("no scores"), False
    for source in (_generated, _passed):
        try:
            tokens, scores = source(hf, prompt, spoken)
        except Exception as error:  # whatever a model's own code raises
            failed = error
            continue
        if not torch.isfinite(scores.amax(-1)).all():
            raise scores_are_not_numbers(name)
        had = True
        yield Reference(prompt, tokens, scores, runs_exactly(hf))
    if not had:
        lines = str(failed).strip().splitlines() or [type(failed).__name__]
        raise ModelError(
            f"{name}: cannot be run ({lines[0]})", "Give a model that generates text."
        ) from failed


def check_causal(hf: Any, name: str, prompt: Sequence[int]) -> None:
    """Raise ModelError where scores depend on tokens that come later: then it is not a decoder.

    Passes a model that cannot be run without a cache.
    """
    try:
        long, short = _whole_pass(hf, prompt[:16]), _whole_pass(hf, prompt[:8])
    except Exception:
        return
    if not same_scores([long[7]], [short[7]], runs_exactly(hf)):
        raise ModelError(
            f"{name}: no decoder: its scores depend on the tokens that follow",
            "Give a causal language model; an encoder such as BERT does not generate text.",
        )


@contextmanager
def plain_generation(hf: Any) -> Iterator[None]:
    """A context in which `generate` is plain greedy search, whatever the checkpoint suggests."""
    own = hf.generation_config
    hf.generation_config = GenerationConfig()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        hf.generation_config = own


def _generated(hf: Any, prompt: list[int], _: list[int]) -> tuple[list[int], Tensor]:
    ids = torch.tensor([prompt], device=hf.device)
    with plain_generation(hf):
        out = hf.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            output_logits=True,
            return_dict_in_generate=True,
        )
    tokens = out.sequences[0, len(prompt) :].tolist()
    scores = torch.stack([row[0] for row in out.logits])
    if len(tokens) != NEW_TOKENS:
        raise ValueError("generate stopped early")
    return tokens, scores


def _passed(hf: Any, prompt: list[int], spoken: list[int]) -> tuple[list[int], Tensor]:
    return spoken, _whole_pass(hf, [*prompt, *spoken])[len(prompt) - 1 : -1]


def _whole_pass(hf: Any, ids: Sequence[int]) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scores: Tensor = hf(
            input_ids=torch.tensor([list(ids)], device=hf.device), use_cache=False
        ).logits[0]
    return scores
