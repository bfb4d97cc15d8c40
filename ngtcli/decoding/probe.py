"""Finds how a model is to be run: runs it, and compares with `transformers`' own generate.

The reference is the scores of `generate` on one arbitrary prompt, longer than every window of the
configuration. A model verifies draft trees only if its single steps in a cache that can be rolled
back, and its rows of a wide tree with a deep path in the last rows, give those scores. Any other
model is run in the first way that gives them token by token; one that verifies chains has to give
them behind chains that were taken back, too. Where no way does (some `generate` cuts the cache to a
window that the model's mask does not have), the reference is one pass without a cache.
"""

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from ngtcli.decoding.exactness.whole_vectors import use_whole_vectors
from ngtcli.decoding.kernels import use_few_kernels
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.out_of_memory import is_out_of_memory
from ngtcli.decoding.plain import CROPS, RESTORES, STEPS, TREES, Way
from ngtcli.decoding.prefixes import rope_types
from ngtcli.decoding.scores import rounds, same_scores, scores_are_not_numbers
from ngtcli.drafting.tree import ROOT, DraftTree, chain
from ngtcli.errors import ModelError
from ngtcli.models.pretrained import window_numbers
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.models.weights.trials import SPREAD, places_of, remembered
from ngtcli.system.trials import Trial

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
# Rotary frequencies that depend on the longest text of a pass: texts would change each other.
_ROPE_OF_LENGTH = {"dynamic", "longrope"}
_LENGTHS = 5, 9  # ids of the two texts that are tried; a guess
_EMPTY = DraftTree()

KEEPS_STATE = "its layers keep a running state"
STARTS_ANEW = "its passes over several tokens do not go on from the state that its layers keep"
# Families whose scores in float32 show STARTS_ANEW; rounding may hide it (tried: 0.03 to 0.08).
_START_ANEW = {"mamba", "falcon_mamba", "jamba", "minimax", "recurrent_gemma"}
ATTENDS_IN_CHUNKS = (
    "its layers attend within chunks, which the mask of a draft tree does not follow"
)
CHOOSES_TOKENS = "its layers choose the tokens they attend to, from a cache of their own"
NO_TREE_MASK = "it does not honour a tree attention mask"
# With these chains are tried. Layers that choose tokens may choose others in passes of more rows.
_CHAIN_REASONS = (KEEPS_STATE, ATTENDS_IN_CHUNKS, NO_TREE_MASK)
_KNOWN_KINDS = {"full_attention", "sliding_attention"}  # of layers
# Why a model with layers of a kind cannot verify drafts; of several reasons the first counts.
_PLAIN_KINDS = {
    "linear_attention": KEEPS_STATE, "conv": KEEPS_STATE, "hybrid": KEEPS_STATE,
    "hybrid_sliding": KEEPS_STATE, "chunked_attention": ATTENDS_IN_CHUNKS,
    "indexed_attention": CHOOSES_TOKENS, "compressed_sparse_attention": CHOOSES_TOKENS,
    "heavily_compressed_attention": CHOOSES_TOKENS, "minimax_m3_sparse": CHOOSES_TOKENS,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reference:
    """A prompt, the tokens that followed it, and `scores` (NEW_TOKENS, vocabulary) before each.

    `exact`: the model runs in float32 alone, so that scores differ by its rounding only.
    """

    prompt: list[int]
    tokens: list[int]
    scores: Tensor
    exact: bool


def target_model(
    hf: Any, tokenizer: Tokenizer, name: str, progress: Callable[[str], None] = lambda _: None
) -> TargetModel:
    """The model, run in the way that probing finds; `progress` is called before it is probed.

    It is not, where the tests cover its family, its kinds of layers and its windows, on one device.
    Raises ModelError for a model that cannot be run.
    """

    def probe() -> Way:
        progress(f"Trying once how {name} takes drafts …")
        return find_way(model)

    use_whole_vectors(hf)
    use_few_kernels(hf)
    model = TargetModel(hf, tokenizer, name)
    slides = _PROVEN.get(model.config.model_type)
    windows = window_numbers(model.config) and not slides
    if slides is None or windows or not _kinds(model) <= _KNOWN_KINDS or places_of(hf):
        model.use(remembered_way(hf).find(probe))
    return model


def _kinds(model: TargetModel) -> set[str]:
    return set(getattr(model.config, "layer_types", None) or ())


def remembered_way(hf: Any) -> Trial[Way]:
    """Where the way of a model is kept: for those reasons with which chains are tried."""
    return remembered("ways", hf, Way, _CHAIN_REASONS, sorted(_START_ANEW))


def sizes(model: TargetModel) -> tuple[int, int]:
    """How many prompt tokens, and wrong siblings before the path, a probe uses.

    The prompt is longer than every window below LONGEST tokens, as far as the context allows.
    """
    known = [n for n in window_numbers(model.config).values() if n < min(model.context, LONGEST)]
    window = max(known, default=0)
    room = model.context - 2 * NEW_TOKENS
    siblings = min(max(window, _NARROWEST), _WIDEST, max(2, room // 2))
    return max(1, min(max(window + 8, _SHORTEST), LONGEST, room - siblings)), siblings


@torch.inference_mode()
def find_way(model: TargetModel) -> Way:
    """The way to run `model`. Changes `model.way` while it probes. Raises ModelError."""
    length, siblings = sizes(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for truth in _references(model, length):
            _check_causal(model, truth.prompt)
            reason = _why_plain(model) or _tree_reason(model, truth, siblings)
            for way in _ways_without_trees(reason) if reason else ():
                model.use(way)
                claims = (_steps_agree, _chains_agree) if way.takes_chains else (_steps_agree,)
                if all(_holds(claim, model, truth, siblings) for claim in claims):
                    return way
            if not reason:
                return model.way
    raise ModelError(
        f"{model.name}: {model.config.model_type} models cannot be run: token by token they give"
        " neither what transformers' generate gives nor what they give in one pass",
        "Give another model.",
    )


def _why_plain(model: TargetModel) -> str:
    """Why, by its configuration, the model cannot verify drafts; "" where a probe must tell."""
    if model.config.model_type in _START_ANEW:
        return STARTS_ANEW
    kinds = _kinds(model)
    for kind, reason in _PLAIN_KINDS.items():
        if kind in kinds:
            return reason
    if unknown := kinds - _KNOWN_KINDS:
        return f"its layers are of a kind unknown here ({min(unknown)})"
    for name, number in window_numbers(model.config).items():
        # The tree mask applies a sliding window of any length; another window must be probed.
        if "window" in name and name != "sliding_window" and LONGEST <= number < model.context:
            return f"its {ascii(name)[1:-1][:60]} of {number} tokens is too long to be tried"
    return ""


def _tree_reason(model: TargetModel, truth: Reference, siblings: int) -> str:
    """Why the model cannot verify drafts, "" if it can; `model.way` is the last one probed."""
    claims = (_steps_agree, _tree_agrees, _end_agrees)
    for window in (True, False) if model.window is not None else (True,):
        model.use(Way(TREES, window=window))
        if all(_holds(claim, model, truth, siblings) for claim in claims):
            return ""
    return KEEPS_STATE if getattr(model.hf, "_is_stateful", False) else NO_TREE_MASK


def _ways_without_trees(reason: str) -> list[Way]:
    """The ways to run a model that verifies no draft trees, in the order in which they are tried.

    Those that take chains stand first, if the reason allows them; the others read token by token.
    """
    chains = (CROPS, RESTORES) if reason in _CHAIN_REASONS else ()
    anew = STARTS_ANEW if reason == KEEPS_STATE else reason
    kinds = (*chains, STEPS) if reason != STARTS_ANEW else ()
    return [*(Way(kind, reason) for kind in kinds), Way(STEPS, anew, chunks=False)]


def _holds(claim: Callable[..., bool], *about: Any) -> bool:
    """Whether a claim is true; it is false of a model that raises an error meanwhile."""
    try:
        return claim(*about)
    except Exception as error:
        if isinstance(error, ModelError) or is_out_of_memory(error):
            raise
        return False


def _steps_agree(model: TargetModel, truth: Reference, siblings: int) -> bool:
    """Whether single steps after a prompt read in chunks give the reference's scores.

    The last chunk has two to four tokens: what it does not know of those before shows most.
    """
    model.start(len(truth.prompt) + siblings + 2 * NEW_TOKENS)
    model.prefill(truth.prompt[:-1], max(1, len(truth.prompt) // 3 - 1))
    found = _one_by_one(model, (truth.prompt[-1], *truth.tokens[:-1]))
    return same_scores(found, truth.scores, truth.exact)


def _one_by_one(model: TargetModel, tokens: Sequence[int]) -> list[Tensor]:
    """Scores (vocabulary,) after each of the tokens, one a pass; their rows are kept."""
    found = []
    for token in tokens:
        found.append(model.forward(token, _EMPTY)[0].clone())
        model.keep(())
    return found


def _tree_agrees(model: TargetModel, truth: Reference, siblings: int) -> bool:
    """Whether the path after all its wrong siblings, and two of these, have the right scores."""
    start, root = len(truth.prompt) - 1, truth.prompt[-1]
    model.truncate(start)
    tree = _wide_tree(truth, siblings, model.vocabulary)
    rows = model.forward(root, tree)
    deep = [rows[0], *rows[-(NEW_TOKENS - 1) :]]
    if len(rows) != len(tree) + 1 or not same_scores(deep, truth.scores, truth.exact):
        return False
    wrong = [(tree.tokens[node], rows[node + 1].clone()) for node in (0, siblings - 1)]
    for token, found in wrong:
        model.truncate(start)
        true = _one_by_one(model, (root, token))[-1]
        if not same_scores([found], [true], truth.exact):
            return False
    return True


def _chains_agree(model: TargetModel, truth: Reference, siblings: int) -> bool:
    """Whether rows behind chains that were taken back have the scores of a text that never had one.

    One chain is wrong from its first token, as long as the windows; one is wrong from its second.
    """
    first, second, third = truth.tokens[:3]
    wrong = _wide_tree(truth, siblings, model.vocabulary).tokens[:siblings]
    model.start(0)
    model.prefill(truth.prompt[:-1])
    found = [model.forward(truth.prompt[-1], chain(wrong))[0].clone()]
    model.keep(())
    found += list(model.forward(first, chain((second, wrong[0])))[:2].clone())
    model.keep((0,))
    found += _one_by_one(model, (third,))
    return same_scores(found, truth.scores, truth.exact)


def _wide_tree(truth: Reference, siblings: int, vocabulary: int) -> DraftTree:
    """Wrong first tokens, then the true path, NEW_TOKENS - 1 deep, in the last rows."""
    wrong = [(truth.tokens[0] + 1 + i % (vocabulary - 1)) % vocabulary for i in range(siblings)]
    path = truth.tokens[: NEW_TOKENS - 1]
    parents = [ROOT] * siblings + [ROOT, *(siblings + i for i in range(len(path) - 1))]
    return DraftTree((*wrong, *path), tuple(parents))


def _end_agrees(model: TargetModel, truth: Reference, _: int) -> bool:
    """Whether a tree at the context's end has the scores that its path has token by token.

    The rows before the tree are zeros: no prompt is read.
    """
    siblings = min(_NARROWEST, model.context // 2)
    start = model.context - siblings - NEW_TOKENS
    if model.context > _END or start < 1:
        return True
    model.start(model.context)
    model.cache.length = start
    rows = model.forward(truth.prompt[-1], _wide_tree(truth, siblings, model.vocabulary))
    single = _one_by_one(model, (truth.prompt[-1], *truth.tokens[: NEW_TOKENS - 1]))
    return same_scores([rows[0], *rows[-(NEW_TOKENS - 1) :]], single, truth.exact)


def _references(model: TargetModel, length: int) -> Iterator[Reference]:
    """The scores of `generate` after `length` arbitrary tokens, then of one pass without cache.

    One that the model fails to give is left out. Raises ModelError where it fails to give both,
    and for scores that are not numbers.
    """
    rng, hf, name = random.Random(0), model.hf, model.name
    prompt = [rng.randrange(model.vocabulary) for _ in range(length)]
    spoken = [rng.randrange(model.vocabulary) for _ in range(NEW_TOKENS)]
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
        yield Reference(prompt, tokens, scores, not rounds(hf))
    if not had:
        lines = str(failed).strip().splitlines() or [type(failed).__name__]
        what = f"{name}: cannot be run ({lines[0]})"
        raise ModelError(what, "Give a model that generates text.") from failed


def _check_causal(model: TargetModel, prompt: Sequence[int]) -> None:
    """Raise ModelError where scores depend on tokens that come later: then it is not a decoder.

    Passes a model that cannot be run without a cache.
    """
    try:
        long, short = _whole_pass(model.hf, prompt[:16]), _whole_pass(model.hf, prompt[:8])
    except Exception:
        return
    if not same_scores([long[7]], [short[7]], not rounds(model.hf)):
        raise ModelError(
            f"{model.name}: no decoder: its scores depend on the tokens that follow",
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
    given = torch.tensor([list(ids)], device=hf.device)
    scores: Tensor = hf(input_ids=given, use_cache=False).logits[0]
    return scores


def why_not_together(model: TargetModel) -> str:
    """Why several texts cannot be decoded together; "" if they can.

    The first time that a model is asked about, its cache is emptied.
    """
    if model.joint_reason is None:
        model.joint_reason = _why_not(model)
    return model.joint_reason


def _why_not(model: TargetModel) -> str:
    if model.tree_reason or places_of(model.hf):
        return model.tree_reason or SPREAD
    if rope_types(model.config) & _ROPE_OF_LENGTH:
        return "its positions depend on the longest text of a pass"
    with suppress(ModelError):
        if _holds(_agrees, model):
            return ""
    return "several texts in one pass get other scores than one does"


def _agrees(model: TargetModel) -> bool:
    """Whether two short texts, one with a draft, have the scores together that each has alone."""
    forked = DraftTree((1 % model.vocabulary, 2 % model.vocabulary), (ROOT, ROOT))
    texts = [[(7 * i + n) % model.vocabulary for i in range(n)] for n in _LENGTHS]
    roots = [(texts[0][-1], forked), (texts[1][-1], DraftTree())]
    truth, places = list[Tensor](), max(_LENGTHS) + len(forked)
    for ids, root in zip(texts, roots, strict=True):
        model.start(places)
        model.prefill(ids[:-1])
        truth.append(model.forward(*root).clone())
    for beside, ids in enumerate(texts):
        if beside:
            model.resize(len(texts), model.cache.places)
        model.start(places, beside=beside)
        model.prefill(ids[:-1])
    exact, found = not rounds(model.hf), model.score(model.lay_out(roots))
    model.close(0, 0)
    return all(same_scores(a, b, exact) for a, b in zip(map(list, found), truth, strict=True))
