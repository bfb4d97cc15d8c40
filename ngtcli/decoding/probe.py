"""Finds how a model is to be run, by comparing its logits with those of `transformers`' generate.

The reference is the logits of `generate` on one arbitrary prompt, longer than every window of the
configuration. A model verifies draft trees only if these are the logits of its single steps in a
cache that can be rolled back, and those of a deep path after wide siblings. Any other model is run
in the first mode that gives them token by token; one that verifies chains must give them after
rejected chains, too. If no mode does (some `generate` cuts the cache to a window that the
model's mask does not have), the reference is one forward pass without a cache.
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
from ngtcli.decoding.logits import logits_are_not_numbers, rounds, same_logits
from ngtcli.decoding.model import Origin, TargetModel
from ngtcli.decoding.out_of_memory import is_out_of_memory
from ngtcli.decoding.prefixes import rope_types
from ngtcli.decoding.support import (
    SUPPORTED,
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
from ngtcli.models.weights.trials import SPREAD, module_devices, stored_trial
from ngtcli.system import reporting
from ngtcli.system.trials import Trial

NEW_TOKENS = 4  # enough for a path three deep, and a step whose cache holds two steps' rows
# Families whose lossless drafting the tests prove, and whether they prove it for a sliding window,
# too. A model of any other family is probed when it is first loaded.
_PROVEN = {
    "llama": False,
    "gemma": False,
    "mistral": True,
    "qwen2": True,
    "qwen3": True,
    "gemma2": True,
    "gemma3_text": True,
}
# Tokens of a prompt: longer than the common windows of 4,096; a CPU takes minutes to prefill more.
MAX_PROMPT = 4224
_MIN_PROMPT = 24
# Wrong siblings before the true path: as many as the window has tokens, within these bounds
# (guess).
_MAX_SIBLINGS = 512
_MIN_SIBLINGS = 40
_END = 2304  # tokens of context up to which its end is probed: learned positions end at 2,048
# Kinds of RoPE whose frequencies depend on the longest sequence of a batch: sequences would change
# each other.
_ROPE_OF_LENGTH = {"dynamic", "longrope"}
_BATCH_LENGTHS = 5, 9  # tokens of the two sequences that are tried in a batch (guess)
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
    """A prompt and what follows it.

    Attributes:
        tokens: The NEW_TOKENS tokens after the prompt.
        logits: (NEW_TOKENS, vocab_size), before each of them.
        is_float32: The model computes in float32 alone: logits may differ by its rounding only.
    """

    prompt: list[int]
    tokens: list[int]
    logits: Tensor
    is_float32: bool


def target_model(
    hf: Any,
    tokenizer: Tokenizer,
    name: str,
    origin: Origin | None = None,
) -> TargetModel:
    """Return the model, run in the mode that probing finds.

    It is not probed where the tests cover its family, its kinds of layers and its windows, on one
    device. Raises ModelError for a model that cannot be run.
    """

    def probe() -> ExecutionMode:
        reporting.status(f"Trying once how {name} takes drafts …")
        return find_mode(model)

    use_whole_vectors(hf)
    use_few_kernels(hf)
    model = TargetModel(hf, tokenizer, name, origin)
    proven_window = _PROVEN.get(model.config.model_type)
    is_proven = proven_window is not None and _kinds(model) <= _KNOWN_KINDS
    if window_numbers(model.config) and not proven_window:
        is_proven = False
    if not is_proven or module_devices(hf):
        return TargetModel(hf, tokenizer, name, origin, remembered_mode(hf).find(probe))
    return model


def _kinds(model: TargetModel) -> set[str]:
    return set(getattr(model.config, "layer_types", None) or ())


def remembered_mode(hf: Any) -> Trial[ExecutionMode]:
    """Return the stored result of the probe of a model."""
    tries_chains = [obstacle.value for obstacle in _MAY_TAKE_CHAINS]
    return stored_trial("modes", hf, ExecutionMode, tries_chains, sorted(_START_ANEW))


def sizes(model: TargetModel) -> tuple[int, int]:
    """Choose the length of the prompt, and how many wrong siblings are before the path.

    The prompt is longer than every window below MAX_PROMPT, as far as the context allows.
    """
    limit = min(model.context, MAX_PROMPT)
    windows = [number for number in window_numbers(model.config).values() if number < limit]
    window = max(windows, default=0)
    available = model.context - 2 * NEW_TOKENS
    siblings = min(max(window, _MIN_SIBLINGS), _MAX_SIBLINGS, max(2, available // 2))
    length = min(max(window + 8, _MIN_PROMPT), MAX_PROMPT, available - siblings)
    return max(1, length), siblings


@torch.inference_mode()
def find_mode(model: TargetModel) -> ExecutionMode:
    """Find how to run `model`; its mode changes meanwhile. Raises ModelError."""
    length, siblings = sizes(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for reference in _references(model, length):
            _check_causal(model, reference.prompt)
            no_trees = _obstacle_by_config(model) or _obstacle_by_trial(model, reference, siblings)
            if no_trees is None:
                return model.mode
            for mode in modes_without_trees(no_trees):
                model.use(mode)
                claims = [_steps_agree]
                if mode.support is DraftSupport.CHAINS:
                    claims.append(_chains_agree)
                if all(_holds(claim, model, reference, siblings) for claim in claims):
                    return mode
    raise ModelError(
        f"{model.name}: {model.config.model_type} models cannot be run: token by token they give"
        " neither what transformers' generate gives nor what they give in one pass",
        hint="Give another model.",
    )


def _obstacle_by_config(model: TargetModel) -> NoTrees | None:
    """Find what keeps a model from verifying trees in its configuration; None: a trial decides."""
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
        if "window" in name and name != "sliding_window" and MAX_PROMPT <= number < model.context:
            return NoTrees(Obstacle.LONG_WINDOW, f"{ascii(name)[1:-1][:60]} of {number} tokens")
    return None


def _obstacle_by_trial(model: TargetModel, reference: Reference, siblings: int) -> NoTrees | None:
    """Find by trial what keeps a model from verifying trees.

    None if it verifies them, in the mode that was probed last.
    """
    claims = (_steps_agree, _tree_agrees, _end_agrees)
    for window in (True, False) if model.window is not None else (True,):
        model.use(ExecutionMode(window=window))
        if all(_holds(claim, model, reference, siblings) for claim in claims):
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
        modes.append(ExecutionMode(DraftSupport.NONE, no_trees))
    if obstacle is Obstacle.KEEPS_STATE:
        no_trees = NoTrees(Obstacle.STARTS_ANEW)
    modes.append(ExecutionMode(DraftSupport.NONE, no_trees, chunks=False))
    return modes


def _holds(claim: Callable[..., bool], *args: Any) -> bool:
    """Return whether a claim is true; it is false of a model that raises an error meanwhile."""
    try:
        return claim(*args)
    except Exception as error:
        if isinstance(error, ModelError) or is_out_of_memory(error):
            raise
        return False


def _steps_agree(model: TargetModel, reference: Reference, siblings: int) -> bool:
    """Return whether single steps after a prompt that is prefilled in chunks have the right logits.

    The last chunk has two to four tokens, as errors about the tokens before it show most there.
    """
    model.start(len(reference.prompt) + siblings + 2 * NEW_TOKENS)
    model.prefill(reference.prompt[:-1], max(1, len(reference.prompt) // 3 - 1))
    logits = _one_by_one(model, (reference.prompt[-1], *reference.tokens[:-1]))
    return same_logits(logits, reference.logits, reference.is_float32)


def _one_by_one(model: TargetModel, tokens: Sequence[int]) -> list[Tensor]:
    """Return the logits (vocab_size,) after each token, one a forward pass; all are kept."""
    logits = []
    for token in tokens:
        logits.append(model.forward(token, _EMPTY)[0].clone())
        model.keep(())
    return logits


def _tree_agrees(model: TargetModel, reference: Reference, siblings: int) -> bool:
    """Return whether the path after all wrong siblings, and two of these, have right logits."""
    start = len(reference.prompt) - 1
    root = reference.prompt[-1]
    model.truncate(start)
    tree = _wide_tree(reference, siblings, model.vocabulary)
    logits = model.forward(root, tree)
    path = [logits[0], *logits[-(NEW_TOKENS - 1) :]]
    if len(logits) != len(tree) + 1:
        return False
    if not same_logits(path, reference.logits, reference.is_float32):
        return False
    wrong = [(tree.tokens[node], logits[node + 1].clone()) for node in (0, siblings - 1)]
    for token, in_tree in wrong:
        model.truncate(start)
        alone = _one_by_one(model, (root, token))[-1]
        if not same_logits([in_tree], [alone], reference.is_float32):
            return False
    return True


def _chains_agree(model: TargetModel, reference: Reference, siblings: int) -> bool:
    """Return whether rejected chains leave no trace in the logits of what follows.

    One chain is wrong from its first token, as long as the windows; one is wrong from its second.
    """
    first, second, third = reference.tokens[:3]
    wrong = _wide_tree(reference, siblings, model.vocabulary).tokens[:siblings]
    model.start(0)
    model.prefill(reference.prompt[:-1])
    logits = [model.forward(reference.prompt[-1], chain(wrong))[0].clone()]
    model.keep(())
    logits += list(model.forward(first, chain((second, wrong[0])))[:2].clone())
    model.keep((0,))
    logits += _one_by_one(model, (third,))
    return same_logits(logits, reference.logits, reference.is_float32)


def _wide_tree(reference: Reference, siblings: int, vocab_size: int) -> DraftTree:
    """Make a tree of wrong first tokens, and after them the true path, NEW_TOKENS - 1 deep."""
    right = reference.tokens[0]
    wrong = [(right + 1 + i % (vocab_size - 1)) % vocab_size for i in range(siblings)]
    path = reference.tokens[: NEW_TOKENS - 1]
    parents = [ROOT] * siblings + [ROOT, *(siblings + i for i in range(len(path) - 1))]
    return DraftTree((*wrong, *path), tuple(parents))


def _end_agrees(model: TargetModel, reference: Reference, _: int) -> bool:
    """Return whether a tree at the end of the context has the logits of its path token by token.

    The keys and values before the tree are zeros: no prompt is prefilled.
    """
    siblings = min(_MIN_SIBLINGS, model.context // 2)
    start = model.context - siblings - NEW_TOKENS
    if model.context > _END or start < 1:
        return True
    root = reference.prompt[-1]
    model.start(model.context)
    model.cache.length = start
    logits = model.forward(root, _wide_tree(reference, siblings, model.vocabulary))
    path = [logits[0], *logits[-(NEW_TOKENS - 1) :]]
    single = _one_by_one(model, (root, *reference.tokens[: NEW_TOKENS - 1]))
    return same_logits(path, single, reference.is_float32)


def _references(model: TargetModel, length: int) -> Iterator[Reference]:
    """Yield the logits of `generate` after a prompt, then those of a pass without a cache.

    One that the model fails to give is left out. Raises ModelError where it fails to give both, and
    for logits that are not numbers.
    """
    rng = random.Random(0)
    hf = model.hf
    name = model.name
    prompt = [rng.randrange(model.vocabulary) for _ in range(length)]
    continuation = [rng.randrange(model.vocabulary) for _ in range(NEW_TOKENS)]
    failure = Exception("no scores")
    has_one = False
    for source in (_generate, _without_cache):
        try:
            tokens, logits = source(hf, prompt, continuation)
        except Exception as error:  # whatever a model's own code raises
            failure = error
            continue
        if not torch.isfinite(logits.amax(-1)).all():
            raise logits_are_not_numbers(name)
        has_one = True
        yield Reference(prompt, tokens, logits, not rounds(hf))
    if not has_one:
        lines = str(failure).strip().splitlines() or [type(failure).__name__]
        raise ModelError(
            f"{name}: cannot be run ({lines[0]})", hint="Give a model that generates text."
        ) from failure


def _check_causal(model: TargetModel, prompt: Sequence[int]) -> None:
    """Raise ModelError where logits depend on tokens that come later: then it is not a decoder.

    A model that cannot be run without a cache passes.
    """
    try:
        long = _all_logits(model.hf, prompt[:16])
        short = _all_logits(model.hf, prompt[:8])
    except Exception:
        return
    if not same_logits([long[7]], [short[7]], not rounds(model.hf)):
        raise ModelError(
            f"{model.name}: not a decoder: its logits depend on later tokens",
            hint="Give a causal language model; an encoder such as BERT does not generate text.",
        )


@contextmanager
def plain_generation(hf: Any) -> Iterator[None]:
    """A context in which `generate` is plain greedy search, whatever the checkpoint suggests."""
    suggested = hf.generation_config
    hf.generation_config = GenerationConfig()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        hf.generation_config = suggested


def _generate(hf: Any, prompt: list[int], _: list[int]) -> tuple[list[int], Tensor]:
    token_ids = torch.tensor([prompt], device=hf.device)
    with plain_generation(hf):
        out = hf.generate(
            token_ids,
            attention_mask=torch.ones_like(token_ids),
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            output_logits=True,
            return_dict_in_generate=True,
        )
    tokens = out.sequences[0, len(prompt) :].tolist()
    logits = torch.stack([step[0] for step in out.logits])
    if len(tokens) != NEW_TOKENS:
        raise ValueError("generate stopped early")
    return tokens, logits


def _without_cache(hf: Any, prompt: list[int], continuation: list[int]) -> tuple[list[int], Tensor]:
    logits = _all_logits(hf, [*prompt, *continuation])
    return continuation, logits[len(prompt) - 1 : -1]


def _all_logits(hf: Any, token_ids: Sequence[int]) -> Tensor:
    """Return the logits after each token, of one forward pass without a cache."""
    inputs = torch.tensor([list(token_ids)], device=hf.device)
    logits: Tensor = hf(input_ids=inputs, use_cache=False).logits[0]
    return logits


def find_batching(model: TargetModel) -> Support:
    """Find whether several sequences can be decoded in one batch.

    The first time that a model is asked about, its cache is emptied.
    """
    return model.find_batching(_try_batching)


def _try_batching(model: TargetModel) -> Support:
    if not model.verifies_trees:
        return Support.no(model.mode.why)
    if module_devices(model.hf):
        return Support.no(SPREAD)
    if rope_types(model.config) & _ROPE_OF_LENGTH:
        return Support.no("its positions depend on the longest text of a pass")
    with suppress(ModelError):
        if _holds(_batch_agrees, model):
            return SUPPORTED
    if not model.runner.can_split:
        use_own(model.hf)
    return Support.no("several texts in one pass get other logits than one does")


def _batch_agrees(model: TargetModel) -> bool:
    """Return whether two sequences have the same logits in a batch as by themselves.

    Both are short, and one of them has a draft.
    """
    forked = DraftTree((1 % model.vocabulary, 2 % model.vocabulary), (ROOT, ROOT))
    prompts = [[(7 * i + n) % model.vocabulary for i in range(n)] for n in _BATCH_LENGTHS]
    roots = [(prompts[0][-1], forked), (prompts[1][-1], DraftTree())]
    capacity = max(_BATCH_LENGTHS) + len(forked)
    alone: list[Tensor] = []
    for prompt, root in zip(prompts, roots, strict=True):
        model.start(capacity)
        model.prefill(prompt[:-1])
        alone.append(model.forward(*root).clone())
    for slot, prompt in enumerate(prompts):
        if slot:
            model.resize(len(prompts), model.cache.slot_capacity)
        model.start(capacity, slot=slot)
        model.prefill(prompt[:-1])
    batched = model.score(model.lay_out(roots))
    model.close(0, 0)
    is_float32 = not rounds(model.hf)
    return all(
        same_logits(list(logits), expected, is_float32)
        for logits, expected in zip(batched, alone, strict=True)
    )
