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

from ngtcli.decoding.attention import use_own
from ngtcli.decoding.exactness.whole_vectors import use_whole_vectors
from ngtcli.decoding.kernels import use_few_kernels
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.out_of_memory import is_out_of_memory
from ngtcli.decoding.prefixes import rope_types
from ngtcli.decoding.scores import rounds, same_scores, scores_are_not_numbers
from ngtcli.decoding.support import (
    SUPPORTED,
    Ability,
    DraftSupport,
    ExecutionMode,
    NoTrees,
    Obstacle,
    Support,
)
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

# Families whose scores in float32 show Obstacle.STARTS_ANEW; rounding may hide it (tried: 0.03 to
# 0.08).
_START_ANEW = {"mamba", "falcon_mamba", "jamba", "minimax", "recurrent_gemma"}
# With these obstacles chains are tried. Layers that choose tokens may choose others in forward
# passes of more rows.
_MAY_TAKE_CHAINS = (Obstacle.KEEPS_STATE, Obstacle.ATTENDS_IN_CHUNKS, Obstacle.NO_TREE_MASK)
_KNOWN_KINDS = {"full_attention", "sliding_attention"}  # of layers
# What keeps a model with layers of a kind from verifying draft trees; the first one counts.
_OBSTACLES = {
    "linear_attention": Obstacle.KEEPS_STATE,
    "conv": Obstacle.KEEPS_STATE,
    "hybrid": Obstacle.KEEPS_STATE,
    "hybrid_sliding": Obstacle.KEEPS_STATE,
    "chunked_attention": Obstacle.ATTENDS_IN_CHUNKS,
    "indexed_attention": Obstacle.CHOOSES_TOKENS,
    "compressed_sparse_attention": Obstacle.CHOOSES_TOKENS,
    "heavily_compressed_attention": Obstacle.CHOOSES_TOKENS,
    "minimax_m3_sparse": Obstacle.CHOOSES_TOKENS,
}


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
    """Return the model, run in the mode that probing finds.

    It is not probed where the tests cover its family, its kinds of layers and its windows, on one
    device. `progress` is called before it is. Raises ModelError for a model that cannot be run.
    """

    def probe() -> ExecutionMode:
        progress(f"Trying once how {name} takes drafts …")
        return find_mode(model)

    use_whole_vectors(hf)
    use_few_kernels(hf)
    model = TargetModel(hf, tokenizer, name)
    slides = _PROVEN.get(model.config.model_type)
    windows = window_numbers(model.config) and not slides
    if slides is None or windows or not _kinds(model) <= _KNOWN_KINDS or places_of(hf):
        model.use(remembered_mode(hf).find(probe))
    return model


def _kinds(model: TargetModel) -> set[str]:
    return set(getattr(model.config, "layer_types", None) or ())


def remembered_mode(hf: Any) -> Trial[ExecutionMode]:
    """Where the mode of a model is stored."""
    tries_chains = [obstacle.value for obstacle in _MAY_TAKE_CHAINS]
    return remembered("modes", hf, ExecutionMode, tries_chains, sorted(_START_ANEW))


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
def find_mode(model: TargetModel) -> ExecutionMode:
    """Find how to run `model`; its mode changes meanwhile. Raises ModelError."""
    length, siblings = sizes(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for truth in _references(model, length):
            _check_causal(model, truth.prompt)
            no_trees = _obstacle_by_config(model) or _obstacle_by_trial(model, truth, siblings)
            if no_trees is None:
                return model.mode
            for mode in modes_without_trees(no_trees):
                model.use(mode)
                claims = [_steps_agree]
                if mode.support is DraftSupport.CHAINS:
                    claims.append(_chains_agree)
                if all(_holds(claim, model, truth, siblings) for claim in claims):
                    return mode
    raise ModelError(
        f"{model.name}: {model.config.model_type} models cannot be run: token by token they give"
        " neither what transformers' generate gives nor what they give in one pass",
        "Give another model.",
    )


def _obstacle_by_config(model: TargetModel) -> NoTrees | None:
    """What keeps the model from verifying trees by its configuration; None: a trial must tell."""
    if model.config.model_type in _START_ANEW:
        return NoTrees(Obstacle.STARTS_ANEW)
    kinds = _kinds(model)
    for kind, obstacle in _OBSTACLES.items():
        if kind in kinds:
            return NoTrees(obstacle)
    if unknown := kinds - _KNOWN_KINDS:
        return NoTrees(Obstacle.UNKNOWN_LAYERS, min(unknown))
    for name, number in window_numbers(model.config).items():
        # The tree mask applies a sliding window of any length; another window must be probed.
        if "window" in name and name != "sliding_window" and LONGEST <= number < model.context:
            return NoTrees(Obstacle.LONG_WINDOW, f"{ascii(name)[1:-1][:60]} of {number} tokens")
    return None


def _obstacle_by_trial(model: TargetModel, truth: Reference, siblings: int) -> NoTrees | None:
    """What keeps the model from verifying trees; None: it does, in the mode probed last."""
    claims = (_steps_agree, _tree_agrees, _end_agrees)
    for window in (True, False) if model.window is not None else (True,):
        model.use(ExecutionMode(window=window))
        if all(_holds(claim, model, truth, siblings) for claim in claims):
            return None
    is_stateful = getattr(model.hf, "_is_stateful", False)
    return NoTrees(Obstacle.KEEPS_STATE if is_stateful else Obstacle.NO_TREE_MASK)


def modes_without_trees(no_trees: NoTrees) -> list[ExecutionMode]:
    """List the modes of a model that verifies no draft trees, in the order they are tried.

    Those that verify chains come first, if the obstacle allows them; the others read a token a
    forward pass, the last one prefills a prompt in a single one.
    """
    obstacle = no_trees.obstacle
    modes = []
    if obstacle in _MAY_TAKE_CHAINS:
        modes.append(ExecutionMode(DraftSupport.CHAINS, no_trees, crops=True))
        modes.append(ExecutionMode(DraftSupport.CHAINS, no_trees, crops=False))
    if obstacle is not Obstacle.STARTS_ANEW:
        modes.append(ExecutionMode(DraftSupport.STEPS, no_trees))
    if obstacle is Obstacle.KEEPS_STATE:
        no_trees = NoTrees(Obstacle.STARTS_ANEW)
    modes.append(ExecutionMode(DraftSupport.STEPS, no_trees, chunks=False))
    return modes


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


def find_batching(model: TargetModel) -> Support:
    """Find whether several sequences can be decoded in one batch.

    The first time that a model is asked about, its cache is emptied.
    """
    if model.batching.ability is Ability.UNTRIED:
        model.batching = _try_batching(model)
    return model.batching


def _try_batching(model: TargetModel) -> Support:
    if not model.verifies_trees:
        return Support.no(model.mode.why)
    if places_of(model.hf):
        return Support.no(SPREAD)
    if rope_types(model.config) & _ROPE_OF_LENGTH:
        return Support.no("its positions depend on the longest text of a pass")
    with suppress(ModelError):
        if _holds(_agrees, model):
            return SUPPORTED
    use_own(model.hf)
    return Support.no("several texts in one pass get other scores than one does")


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
