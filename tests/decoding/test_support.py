"""What a model supports is decided by types: the sentences are for people alone."""

import pytest
import torch

from ngtcli.decoding import support
from ngtcli.decoding.exactness.choice import Exactness
from ngtcli.decoding.exactness.numerics import NOT_EXACT, Numerics
from ngtcli.decoding.exactness.rows import PassRows
from ngtcli.decoding.model import Origin
from ngtcli.decoding.probe import find_batching, modes_without_trees
from ngtcli.decoding.support import DraftSupport, ExecutionMode, NoTrees, Obstacle
from tests.support.families import build, family, reason_and_way, target

# Of each way to run a model one: trees, chains that are cropped or restored, steps.
NAMES = ["llama", "bloom", "lfm2", "mamba2", "mamba", "deepseek_v4"]
CHAINS = {Obstacle.KEEPS_STATE, Obstacle.ATTENDS_IN_CHUNKS, Obstacle.NO_TREE_MASK}


@pytest.fixture
def reworded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sentence is another one, the same for all obstacles."""
    monkeypatch.setattr(support, "SENTENCES", dict.fromkeys(Obstacle, "it is otherwise"))


@pytest.mark.numeric
@pytest.mark.usefixtures("reworded")
@pytest.mark.parametrize("name", NAMES)
def test_other_sentences_find_the_same_mode(name: str) -> None:
    expected = family(name)
    model = target(build(expected), name)
    assert reason_and_way(model.mode) == (expected.reason, expected.way)
    assert model.mode.why == ("" if model.verifies_trees else "it is otherwise")


@pytest.mark.numeric
@pytest.mark.usefixtures("reworded")
@pytest.mark.parametrize("name", NAMES)
def test_other_sentences_change_no_decision_about_a_model(name: str) -> None:
    model = target(build(family(name)), name)
    assert find_batching(model).is_supported == model.verifies_trees
    assert model.prefix_caching.is_supported == model.verifies_trees
    numerics = Exactness(model).numerics("off", 4, 40)
    assert numerics == NOT_EXACT


@pytest.mark.usefixtures("reworded")
@pytest.mark.parametrize("obstacle", Obstacle)
def test_other_sentences_leave_the_order_of_trials(obstacle: Obstacle) -> None:
    modes = modes_without_trees(NoTrees(obstacle))
    takes_chains = [mode.support is DraftSupport.CHAINS for mode in modes]
    assert any(takes_chains) == (obstacle in CHAINS)
    assert takes_chains == sorted(takes_chains, reverse=True)
    assert [mode.chunks for mode in modes] == [True] * (len(modes) - 1) + [False]


def test_why_an_answer_is_exact_tells_no_answers_apart() -> None:
    """`ngt check` decodes plainly once for all answers with the same numerics."""
    rows = PassRows.fixed(8)
    assert Numerics(rows, "of one number") == Numerics(rows, "of another")
    assert hash(Numerics(rows, "of one number")) == hash(Numerics(rows, "of another"))


@pytest.mark.parametrize("why", ["", "it is quicker"])
def test_why_a_dtype_was_chosen_decides_nothing(why: str) -> None:
    model = target(build(family("mamba2")).to(torch.bfloat16), "mamba2")
    model.origin = Origin(dtype_why=why)
    exactness = Exactness(model)
    assert exactness.numerics("auto", 4, 40) == NOT_EXACT
    model.origin = Origin(half_by_rule=True)
    assert exactness.numerics("auto", 4, 40) == Numerics(PassRows.fixed(1))


@pytest.mark.parametrize("obstacle", Obstacle)
def test_each_obstacle_has_a_sentence_of_its_own(obstacle: Obstacle) -> None:
    sentence = support.SENTENCES[obstacle]
    assert [o for o, other in support.SENTENCES.items() if other == sentence] == [obstacle]
    assert NoTrees(obstacle, "some kind").why.isprintable()


def test_only_a_model_that_verifies_no_trees_has_an_obstacle() -> None:
    with pytest.raises(ValueError):
        ExecutionMode(DraftSupport.NONE)
    with pytest.raises(ValueError):
        ExecutionMode(DraftSupport.TREES, NoTrees(Obstacle.KEEPS_STATE))
