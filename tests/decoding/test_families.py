"""Many families, tiny and random: which take trees, which chains, which no drafts and why.

All give the ids of `generate`. `python tests/decoding/test_families.py` prints the types by what
they take.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ngtcli.config import Settings
from ngtcli.decoding import probe
from ngtcli.decoding.memory_needs import cache_numbers
from ngtcli.decoding.support import DraftSupport, ExecutionMode, NoTrees, Obstacle
from ngtcli.drafting.tree import ROOT, DraftTree
from ngtcli.errors import ModelError
from ngtcli.models.weights.checkpoints import read_checkpoint
from ngtcli.models.weights.linear import packed_weights
from tests.support.families import (
    CROPS,
    FAMILIES,
    NO_CACHE,
    NO_DECODER,
    OTHERS,
    RESTORES,
    STEPS,
    TREES,
    UNCOUNTED,
    VOCABULARY,
    Family,
    build,
    chained,
    prompts,
    reason_and_way,
    target,
)
from tests.support.helpers import EXAMPLES
from tests.support.tiny_models import (
    Scripted,
    decode,
    generate,
    pack_layers,
    packed_from,
    plain,
    small_layers,
)

TOKENS = 14  # of each answer

DECODERS = [f for f in FAMILIES if f.reason != NO_DECODER]
# Most take trees, and differ in nothing that decoding looks at: two thirds are tried with one
# prompt, or with none where not all examples are wanted.
OFTEN = [f for i, f in enumerate(DECODERS) if f.way != TREES or f.reason or i % 3 == 0]
TRIED = DECODERS if EXAMPLES >= 1 else OFTEN

assert len({f.kind for f in [*FAMILIES, *OTHERS]}) >= 150


def greedy_without_cache(hf: Any, prompt: list[int], count: int) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        with torch.no_grad():
            ids.append(int(hf(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def forked(truth: list[int], start: int) -> Scripted:
    """The truth hidden among wrong siblings with wrong children, the true ones in the last rows."""

    def propose(ids: list[int], budget: int) -> DraftTree:
        tokens = []
        parents = []
        tip = ROOT
        for token in truth[len(ids) - start :][:4]:
            first = len(tokens)
            wrong = [(token + i) % VOCABULARY for i in (1, 2, 3)]
            tokens += [*wrong, token + 1 if token + 1 < VOCABULARY else 0, token]
            parents += [tip, tip, tip, first, tip]
            tip = len(tokens) - 1
        return DraftTree(tuple(tokens), tuple(parents))

    return Scripted(propose)


@torch.inference_mode()
def check_that_its_cache_is_counted(hf: Any, name: str) -> None:
    """It grows by as much as `ngt env -v` says from the eighth to the ninth token."""
    counted = cache_numbers(hf.config)
    if name in UNCOUNTED:
        assert counted is None or counted.total == 0
        return

    def numbers(tokens: int) -> int:
        state = hf(input_ids=torch.arange(5, 5 + tokens)[None], use_cache=True).past_key_values
        every = (one for layer in state.layers for one in vars(layer).values())
        return sum(one.numel() for one in every if isinstance(one, torch.Tensor))

    assert counted is not None
    assert counted.total == numbers(9) - numbers(8)


def check_that_it_is_read_as_by_the_library(hf: Any, folder: Path) -> None:
    hf.save_pretrained(folder)
    true = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    kept, report = read_checkpoint(str(folder), hf.config, None, torch.float32)
    assert not any(report.values())
    ours = kept.state_dict()
    theirs = true.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(one, theirs[name]) for name, one in ours.items())
    with small_layers():
        pack_layers(true)
        if any(packed_weights(true)):
            assert str(packed_from(folder, torch.float32)) == str(true)


@pytest.mark.search
@pytest.mark.parametrize("family", TRIED, ids=lambda f: f.name)
def test_a_family_drafts_or_says_why_not_and_gives_the_ids_of_generate(
    family: Family, tmp_path: Path
) -> None:
    """It is read as by the library, too, its cache is counted, its passes are captured."""
    hf = build(family)
    check_that_its_cache_is_counted(hf, family.name)
    check_that_it_is_read_as_by_the_library(hf, tmp_path)
    model = target(hf, family.name)
    assert reason_and_way(model.mode) == (family.reason, family.way)
    assert model.takes_chains == (model.takes_drafts and family.way != TREES)
    accepted = 0
    drafts = family.way != STEPS
    for prompt in prompts()[0 if family in OFTEN else -1 :]:
        if len(prompt) == 1 and family.kind == "recurrent_gemma":
            continue  # its layers then begin with the state of the text before, in generate, too
        expected = (generate if family.consistent else greedy_without_cache)(hf, prompt, TOKENS)
        assert plain(model, prompt, max_tokens=TOKENS) == expected
        # Where no drafts are taken, none is asked for.
        for drafter in (chained, forked) if drafts and len(prompt) > 1 else (chained,):
            run = decode(model, drafter(expected, len(prompt)), prompt, max_tokens=TOKENS)
            assert run.output == expected
            assert drafts or not run.statistics.drafted_tokens
            accepted += run.statistics.accepted_tokens
    if family.way != TREES:  # the rows of trees are scored alike whatever is drawn of them
        sampling = Settings.of(temperature=0.8, seed=3)
        sampled = plain(model, prompt, sampling, max_tokens=TOKENS)
        run = decode(model, chained(sampled, len(prompt)), prompt, sampling, max_tokens=TOKENS)
        assert run.output == sampled
    assert (accepted > TOKENS) == drafts


@pytest.mark.parametrize("kind", sorted(probe._START_ANEW))
def test_rounding_does_not_hide_that_passes_start_anew(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = target(build(next(f for f in FAMILIES if f.kind == kind)), kind)
    # As where rounding hides errors.
    monkeypatch.setattr(probe, "_obstacle_by_trial", lambda *_: None)
    model.use(ExecutionMode())
    monkeypatch.setattr(probe, "_kinds", lambda _: set())  # not all configurations name them
    assert probe.find_mode(model) == ExecutionMode(
        DraftSupport.NONE, NoTrees(Obstacle.STARTS_ANEW), chunks=False
    )


def test_a_family_without_a_cache_or_a_decoder_is_refused() -> None:
    for family in (NO_CACHE, *(f for f in FAMILIES if f not in DECODERS)):
        with pytest.raises(ModelError, match=NO_DECODER if family.reason else "cannot be run"):
            target(build(family), family.name)


@pytest.mark.search
@pytest.mark.parametrize(
    "family", [f for f in [*OTHERS, *DECODERS] if f not in TRIED], ids=lambda f: f.name
)
def test_another_family_is_run_as_in_the_table(family: Family) -> None:
    model = target(build(family), family.name)
    assert reason_and_way(model.mode) == (family.reason, family.way)


def table() -> str:
    """Each way to run a model, how many types of models are run so, and which."""
    titles = {
        TREES: "trees",
        CROPS: "chains, cropped",
        RESTORES: "chains, state restored",
        STEPS: "none",
        NO_DECODER: "not a decoder",
    }
    groups: dict[str, list[Family]] = {title: [] for title in titles.values()}
    for family in sorted([*FAMILIES, *OTHERS], key=lambda f: f.name):
        groups[titles[NO_DECODER if family.reason == NO_DECODER else family.way]].append(family)
    lines = []
    for title, group in groups.items():
        count = sum(not family.label for family in group)
        lines.append(f"| {title} | {count} | {', '.join(family.name for family in group)} |")
    return "\n".join(["| drafts | types | which |", "|---|---|---|", *lines])


if __name__ == "__main__":
    print(table())
