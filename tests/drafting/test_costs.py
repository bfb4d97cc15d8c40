"""The costs of forward passes: measured, stored, loaded, refused when they cannot be true."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ngtcli.config import Settings
from ngtcli.decoding import calibration
from ngtcli.decoding.probe import target_model
from ngtcli.decoding.sizes import row_sizes
from ngtcli.drafting.costs import SHORT, CostCurve, Costs, StoredCurve, costs_of
from ngtcli.engine.local import LocalSession
from ngtcli.engine.memory import AutoMemory
from ngtcli.engine.request import OtherModelError
from ngtcli.engine.session import AnswerOptions
from ngtcli.errors import ModelError
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.prompts.build import Prompt
from ngtcli.system.reporting import reporting_to
from tests.support.helpers import FakeBackend
from tests.support.recording_reporter import CallsOf
from tests.support.tiny_models import make_hf, make_target

MEASURED = {1: 0.05, 8: 0.1}


@pytest.fixture(autouse=True)
def instant_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have sessions take these costs for measured ones."""
    monkeypatch.setattr("ngtcli.engine.memory.calibrate", lambda _: CostCurve(MEASURED))


TINY_SETTINGS = Settings.of(background="none")  # its tokenizer knows no words


def tiny_session(warnings: list[str], persist: bool = True) -> LocalSession:
    model: Any = make_target()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ngtcli.engine.local.load_model", lambda *_, **__: model)
        with reporting_to(CallsOf(warn=warnings.append)):
            return LocalSession(TINY_SETTINGS, persist)


def repeating_prompt() -> Prompt:
    """Return a prompt in which every method that copies finds something."""
    ids = [5, 6, 7, 5, 6, 7, 5, 6]
    return Prompt("", ids, (tuple(ids),), ())


def test_calibration_times_passes_of_growing_size_and_leaves_the_model_usable() -> None:
    model = make_target()
    curve = calibration.calibrate(model)
    assert curve.rows == list(row_sizes("cpu", calibration.MOST_ROWS))
    assert all(seconds > 0 for seconds in curve.by_rows().values())

    model.start(8)
    model.prefill([5, 6])
    assert model.length == 2


def test_no_pass_is_timed_that_the_context_has_no_room_for() -> None:
    model = make_target(max_position_embeddings=20)
    assert max(calibration.calibrate(model).rows) < 20


def test_calibration_that_runs_out_of_time_leaves_the_larger_passes_to_extrapolation() -> None:
    curve = calibration.calibrate(make_target(), limit_s=0.0)
    assert curve.rows == [1, 4, 16, 64]
    shortest = calibration.calibrate(make_target(), limit_s=0.0, longest_s=0.0)
    assert shortest.rows == [1, 4]
    assert shortest.at(64) >= shortest.at(4)


def test_the_first_pass_of_a_size_is_not_its_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    timed_sizes: set[int] = set()

    def slow_first_pass(_: object, __: int, rows: int) -> float:
        is_first = rows not in timed_sizes
        timed_sizes.add(rows)
        return 100.0 if is_first else float(rows)

    monkeypatch.setattr(calibration, "seconds_of_a_pass", slow_first_pass)
    curve = calibration.calibrate(make_target(), limit_s=0.0)
    assert curve.by_rows() == {1: 1.0, 4: 4.0, 16: 16.0, 64: 64.0}


def test_curves_are_stored_by_model_and_dtype() -> None:
    model = make_target("llama")
    other = make_target("qwen2")
    half = target_model(make_hf("llama").to(torch.bfloat16), Tokenizer(FakeBackend()), "llama")
    learned = {1: 0.04, 8: 0.1}
    file = calibration.remembered_costs(model)
    assert file.load() is None
    costs = Costs({SHORT: CostCurve(MEASURED)})
    costs.at_length(2000)
    costs.curves[SHORT] = CostCurve(learned, MEASURED)

    file.save(costs.stored())

    stored = calibration.remembered_costs(model).load()
    assert stored is not None
    loaded = costs_of(stored, ())
    assert list(loaded.curves) == [1024, 4096]
    assert loaded.at_length(0).by_rows() == learned
    assert loaded.at_length(0).measured == MEASURED
    assert loaded.at_length(2000).by_rows() == MEASURED
    assert loaded.at_length(2000).measured == MEASURED
    assert calibration.remembered_costs(other).load() is None
    assert calibration.remembered_costs(half).load() is None


@pytest.mark.parametrize("curve", [{2: 0.01}, {1: -1.0}, {1: 0.0}, {}, {1: 0.02, 2: float("nan")}])
def test_impossible_costs_are_refused(curve: dict[int, float]) -> None:
    with pytest.raises(ValueError):
        StoredCurve(curve, curve)


def test_a_session_that_measures_neither_reads_nor_writes_the_stored_costs() -> None:
    warnings: list[str] = []
    session = tiny_session(warnings, persist=False)
    file = calibration.remembered_costs(session.model)
    file.save(Costs({SHORT: CostCurve({1: 0.02, 8: 0.09})}).stored())
    stored = file.load()

    session.memory.load()
    costs = session.memory.costs
    assert costs is not None
    assert costs.at_length(0).by_rows() == MEASURED

    session.drafter("auto")
    costs.at_length(0).learn(8, 0.2)
    session.save()
    assert file.load() == stored
    assert warnings == []


def seconds_of_one_row(memory: AutoMemory) -> float | None:
    """Load the costs of a session and return that of a pass of one row, if it has any."""
    memory.load()
    return memory.costs.at_length(0).at(1) if memory.costs else None


def test_costs_that_a_busy_machine_measured_are_measured_again_by_the_next_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run that may not measure uses them nevertheless."""
    measurements = iter([0.05, 0.01, 0.02])

    def calibrate(model: object) -> CostCurve:
        seconds = next(measurements)
        return CostCurve({1: seconds, 8: 2 * seconds})

    monkeypatch.setattr("ngtcli.engine.memory.calibrate", calibrate)
    uncalibrated = []
    calibrated = []
    for busy in (True, False, False):
        monkeypatch.setattr("ngtcli.system.trials.busy", lambda threads, busy=busy: busy)
        session = tiny_session([])
        may_not_measure = session.with_settings(TINY_SETTINGS.replace(calibrate=False))
        uncalibrated.append(seconds_of_one_row(may_not_measure.memory))
        memory = tiny_session([]).memory
        calibrated.append(seconds_of_one_row(memory))
        memory.save()

    assert uncalibrated == [None, 0.05, 0.01]
    assert calibrated == [0.05, 0.01, 0.01]


def test_a_long_context_has_a_curve_of_its_own() -> None:
    costs = Costs({SHORT: CostCurve({1: 1.0, 8: 2.0}), 65536: CostCurve({1: 5.0, 8: 9.0})})
    assert costs.at_length(0) is costs.at_length(1024)
    assert costs.at_length(2000).at(1) == 1.0  # that of the nearest length
    assert costs.at_length(17000) is costs.at_length(60000)
    assert costs.at_length(70000).at(8) == 9.0

    for _ in range(3):
        costs.at_length(2000).learn(1, 3.0)

    assert costs.at_length(100).at(1) == 1.0
    assert costs.at_length(4096).at(1) > 1.0


def test_sessions_of_one_model_share_it_and_its_costs_but_nothing_that_was_learned() -> None:
    session = tiny_session([], persist=False)
    first = session.with_settings(session.settings.replace(method="auto", num_draft=4))
    second = session.with_settings(session.settings.replace(method="auto", num_draft=8))
    assert session.settings == TINY_SETTINGS
    assert first.settings.drafting.num_draft == 4
    assert first.model is second.model is session.model

    first_drafter = first.drafter()
    assert first.drafter() is first_drafter
    assert second.drafter() is not first_drafter
    assert first.memory.costs is not None
    assert first.memory.costs is second.memory.costs  # measured once
    assert first.memory.pool is not second.memory.pool
    assert first.memory.background is second.memory.background  # as they are not stored
    english = session.settings.replace(background="english")
    assert first.with_settings(english).memory.background is not first.memory.background
    assert first.with_settings(first.settings).memory.pool is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("model", "other"), ("draft_model", "other"), ("device", "cpu"), ("dtype", "float32")],
)
def test_sessions_of_one_model_cannot_change_what_it_was_loaded_with(name: str, value: str) -> None:
    session = tiny_session([], persist=False)
    changed = session.settings.replace(**{name: value})
    with pytest.raises(OtherModelError, match=f"cannot change its {name}"):
        session.with_settings(changed)


def test_the_options_of_an_answer_replace_the_settings() -> None:
    settings = Settings.of(max_tokens=12, method="trie")
    session = tiny_session([], persist=False).with_settings(settings)
    prompt = repeating_prompt()

    drafted = session.generate(prompt, AnswerOptions())
    without_nodes = session.generate(prompt, AnswerOptions(num_draft=0))
    undrafted = session.generate(prompt, AnswerOptions("none"))

    assert drafted.token_ids == undrafted.token_ids
    assert without_nodes.token_ids == undrafted.token_ids
    assert drafted.statistics.drafted_tokens > 0
    assert without_nodes.statistics.drafted_tokens == 0
    assert without_nodes.drafter is drafted.drafter
    assert undrafted.drafter is not drafted.drafter


def test_a_session_has_a_drafter_of_its_own_unless_an_answer_brings_one() -> None:
    session = tiny_session([], persist=False).with_settings(Settings.of(method="trie"))
    first = session.sharing(session.settings, "another")
    second = session.sharing(session.settings, "another")
    assert first.drafter() is first.drafter()
    assert first.drafter() is not second.drafter()
    assert session.drafter() not in (first.drafter(), second.drafter())

    drafter = session.new_drafter("trie")
    sequence = session.sequence(repeating_prompt(), AnswerOptions(drafter=drafter))
    assert sequence.make_drafter() is drafter


def test_a_draft_model_samples_by_the_settings_of_its_own_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A draft model that equals the target is always right, if it samples as the target does."""
    monkeypatch.setattr("ngtcli.engine.local.load_model", lambda *_, **__: make_target())
    settings = TINY_SETTINGS.replace(method="draft-model", draft_model="twin", max_tokens=40)
    greedy = LocalSession(settings, persist=False)
    sampled = greedy.with_settings(settings.replace(temperature=1.5, seed=5))
    for session in (sampled, greedy, sampled):
        statistics = session.generate(repeating_prompt()).statistics
        assert statistics.drafted_tokens > 20
        assert statistics.accepted_tokens == statistics.drafted_tokens


def test_a_draft_model_with_another_tokenizer_is_refused_before_its_passes_are_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A model that cannot run: to capture its passes would fail with another error.
    draft_model = SimpleNamespace(tokenizer=SimpleNamespace(fingerprint="other"))
    models = iter([make_target(), draft_model])
    monkeypatch.setattr("ngtcli.engine.local.load_model", lambda *_, **__: next(models))
    settings = TINY_SETTINGS.replace(method="draft-model", draft_model="other", capture=True)
    with pytest.raises(ModelError, match="the tokenizers of other and"):
        LocalSession(settings, persist=False)


def _true_cost(rows: int) -> float:
    """Return the seconds of a pass on an idle machine."""
    return 0.01 + 0.0002 * rows


IDLE = {rows: _true_cost(rows) for rows in (1, 4, 16, 64)}


def test_a_disturbed_pass_changes_no_cost() -> None:
    curve = CostCurve(IDLE)
    for _ in range(50):
        curve.learn(16, _true_cost(16))
    before = curve.by_rows()
    curve.learn(16, 10 * _true_cost(16))
    curve.learn(4, 5 * _true_cost(4))
    assert curve.by_rows() == pytest.approx(before)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("share", [0.2, 0.4])
def test_costs_stay_those_of_an_idle_machine_where_passes_are_disturbed(
    share: float, seed: int
) -> None:
    """A `share` of the passes takes 2 to 8 times as long."""
    rng = random.Random(seed)
    curve = CostCurve(IDLE)
    for _ in range(500):
        rows = rng.choice((1, 4, 16, 16, 16, 16, 64))
        slowdown = rng.uniform(2, 8) if rng.random() < share else rng.uniform(1, 1.1)
        curve.learn(rows, slowdown * _true_cost(rows))
    for rows in IDLE:
        assert 0.8 * _true_cost(rows) < curve.at(rows) < 1.4 * _true_cost(rows)
    assert curve.at(64) / curve.at(1) == pytest.approx(_true_cost(64) / _true_cost(1), rel=0.25)


def test_costs_follow_a_machine_that_has_become_slower_or_quicker() -> None:
    curve = CostCurve(IDLE)
    for factor in (3, 0.5):
        for _ in range(120):
            curve.learn(16, factor * _true_cost(16))
        assert curve.at(16) == pytest.approx(factor * _true_cost(16), rel=0.05)
        for rows in IDLE:  # the other sizes follow, for most of the change is the machine's
            assert curve.at(rows) == pytest.approx(factor * _true_cost(rows), rel=0.3)


def test_a_second_measurement_keeps_the_quicker_pass_of_each_size() -> None:
    busy = CostCurve({1: 0.02, 4: 0.09, 16: 0.03}, sizes=(1, 4, 16))
    curve = busy.quickest({1: 0.03, 4: 0.025, 64: 0.01})
    assert curve.by_rows() == {1: 0.02, 4: 0.025, 16: 0.03}
    assert curve.sizes == (1, 4, 16)
