"""What a pass costs: measured, stored, read back, refused when it cannot be."""

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
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session calibrates in no time."""
    monkeypatch.setattr("ngtcli.engine.memory.calibrate", lambda _: CostCurve(MEASURED))


TINY_SETTINGS = Settings.of(background="none")  # its tokenizer knows no words


def tiny_session(said: list[str], persist: bool = True) -> LocalSession:
    tiny: Any = make_target()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ngtcli.engine.local.load_model", lambda *_, **__: tiny)
        reported = CallsOf(warn=said.append)
        with reporting_to(reported):
            return LocalSession(TINY_SETTINGS, persist)


def test_calibration_times_passes_of_growing_size_and_leaves_the_model_usable() -> None:
    model = make_target()
    curve = calibration.calibrate(model)
    assert curve.rows == list(row_sizes("cpu", calibration.MOST_ROWS))
    assert all(s > 0 for s in curve.by_rows().values())
    model.start(8)
    model.prefill([5, 6])
    assert model.length == 2


def test_a_short_context_is_timed_as_far_as_it_goes() -> None:
    model = make_target(max_position_embeddings=20)
    assert max(calibration.calibrate(model).rows) < 20


def test_time_that_runs_out_leaves_the_rest_to_extrapolation() -> None:
    curve = calibration.calibrate(make_target(), limit_s=0.0)
    assert curve.rows == [1, 4, 16, 64]
    shortest = calibration.calibrate(make_target(), limit_s=0.0, longest_s=0.0)
    assert shortest.rows == [1, 4]
    assert shortest.at(64) >= shortest.at(4)


def test_the_first_pass_of_a_size_is_not_its_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[int] = set()

    def passed(_: object, __: int, rows: int) -> float:
        slow = rows not in seen
        seen.add(rows)
        return 100.0 if slow else float(rows)

    monkeypatch.setattr(calibration, "seconds_of_a_pass", passed)
    curve = calibration.calibrate(make_target(), limit_s=0.0)
    assert curve.by_rows() == {1: 1.0, 4: 4.0, 16: 16.0, 64: 64.0}


def test_curves_are_stored_by_model_and_dtype() -> None:
    model = make_target("llama")
    other = make_target("qwen2")
    file = calibration.remembered_costs(model)
    assert file.load() is None
    stored = Costs({SHORT: CostCurve(MEASURED)})
    stored.at_length(2000)
    stored.curves[SHORT] = CostCurve({1: 0.04, 8: 0.1}, MEASURED)
    file.save(stored.stored())
    kept = calibration.remembered_costs(model).load()
    assert kept is not None
    found = costs_of(kept, ())
    assert list(found.curves) == [1024, 4096]
    for curve, of in ((found.at_length(0), {1: 0.04, 8: 0.1}), (found.at_length(2000), MEASURED)):
        assert curve.by_rows() == of
        assert curve.measured == MEASURED
    assert calibration.remembered_costs(other).load() is None
    half = target_model(make_hf("llama").to(torch.bfloat16), Tokenizer(FakeBackend()), "llama")
    assert calibration.remembered_costs(half).load() is None


@pytest.mark.parametrize("curve", [{2: 0.01}, {1: -1.0}, {1: 0.0}, {}, {1: 0.02, 2: float("nan")}])
def test_costs_that_no_pass_has_are_refused(curve: dict[int, float]) -> None:
    with pytest.raises(ValueError):
        StoredCurve(curve, curve)


def test_a_session_that_measures_neither_reads_nor_writes_the_stored_costs() -> None:
    said: list[str] = []
    session = tiny_session(said, persist=False)
    trial = calibration.remembered_costs(session.model)
    trial.save(Costs({SHORT: CostCurve({1: 0.02, 8: 0.09})}).stored())
    stored = trial.load()
    session.memory.load()
    found = session.memory.costs
    assert found is not None
    assert found.at_length(0).by_rows() == MEASURED
    session.drafter("auto")
    found.at_length(0).learn(8, 0.2)
    session.save()
    assert trial.load() == stored
    assert said == []


def test_costs_that_a_busy_machine_measured_are_measured_again_by_the_next_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the first run's steps taught goes with them; a run that may not measure takes them."""
    seconds = iter([0.05, 0.01, 0.02])
    monkeypatch.setattr(
        "ngtcli.engine.memory.calibrate", lambda _: CostCurve({1: (s := next(seconds)), 8: 2 * s})
    )
    found = []
    for busy in (True, False, False):
        monkeypatch.setattr("ngtcli.system.trials.busy", lambda threads, busy=busy: busy)
        session = tiny_session([])
        careful = session.with_settings(TINY_SETTINGS.replace(calibrate=False)).memory
        careful.load()
        before = careful.costs
        memory = tiny_session([]).memory
        memory.load()
        memory.save()
        assert memory.costs is not None
        found.append((before and before.at_length(0).at(1), memory.costs.at_length(0).at(1)))
    assert found == [(None, 0.05), (0.05, 0.01), (0.01, 0.01)]


def test_a_long_context_has_a_curve_of_its_own() -> None:
    known = Costs({SHORT: CostCurve({1: 1.0, 8: 2.0}), 65536: CostCurve({1: 5.0, 8: 9.0})})
    assert known.at_length(0) is known.at_length(1024)
    assert known.at_length(2000).at(1) == 1.0  # the nearest
    assert known.at_length(17000) is known.at_length(60000)
    assert known.at_length(70000).at(8) == 9.0
    for _ in range(3):
        known.at_length(2000).learn(1, 3.0)
    assert known.at_length(100).at(1) == 1.0 < known.at_length(4096).at(1)


def test_sessions_of_one_model_share_it_and_its_costs_but_nothing_that_was_learned() -> None:
    told: list[str] = []
    session = tiny_session(told, persist=False)
    first = session.with_settings(session.settings.replace(method="auto", num_draft=4))
    second = session.with_settings(session.settings.replace(method="auto", num_draft=8))
    assert session.settings == TINY_SETTINGS
    assert first.settings.drafting.num_draft == 4
    assert first.model is second.model is session.model
    drafters = [s.drafter() for s in (first, second)]
    assert drafters[0] is not drafters[1]
    assert drafters[0] is first.drafter()
    assert first.memory.costs is second.memory.costs is not None  # measured once
    assert first.memory.pool is not second.memory.pool
    assert first.memory.background is second.memory.background  # as they are not stored
    other = session.settings.replace(background="english")
    assert first.with_settings(other).memory.background is not first.memory.background
    assert first.with_settings(first.settings).memory.pool is None
    elsewhere = {"model": "other", "draft_model": "other", "device": "cpu", "dtype": "float32"}
    for name, value in elsewhere.items():
        other = session.settings.replace(**{name: value})
        with pytest.raises(OtherModelError, match=f"cannot change its {name}"):
            session.with_settings(other)


def test_options_of_an_answer_take_the_place_of_the_settings() -> None:
    session = tiny_session([], persist=False).with_settings(
        Settings.of(max_tokens=12, method="trie")
    )
    prompt = Prompt("", [5, 6, 7, 5, 6, 7, 5, 6], ((5, 6, 7, 5, 6, 7, 5, 6),), ())
    runs = {
        options: session.generate(prompt, options)
        for options in (AnswerOptions(), AnswerOptions(num_draft=0), AnswerOptions("none"))
    }
    drafted, at_zero, plain = runs.values()
    assert drafted.token_ids == at_zero.token_ids == plain.token_ids
    assert drafted.statistics.drafted_tokens > 0 == at_zero.statistics.drafted_tokens
    assert drafted.drafter is at_zero.drafter is not plain.drafter
    private, other = (session.sharing(session.settings, "another") for _ in range(2))
    assert private.drafter() is private.drafter() is not other.drafter()
    assert session.drafter() not in (private.drafter(), other.drafter())
    own = session.new_drafter("trie")
    assert session.sequence(prompt, AnswerOptions(drafter=own)).make_drafter() is own


def test_a_draft_model_draws_by_the_settings_of_its_own_session() -> None:
    """Equal to the target it is always right, if it draws as the target does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ngtcli.engine.local.load_model", lambda *_, **__: make_target())
        drafted = TINY_SETTINGS.replace(method="draft-model", draft_model="twin", max_tokens=40)
        session = LocalSession(drafted, persist=False)
    warm = session.with_settings(drafted.replace(temperature=1.5, seed=5))
    prompt = Prompt("", [5, 6, 7, 5, 6, 7, 5, 6], ((5, 6, 7, 5, 6, 7, 5, 6),), ())
    for one in (warm, session, warm):
        found = one.generate(prompt).statistics
        assert found.accepted_tokens == found.drafted_tokens > 20


def test_a_draft_model_with_another_tokenizer_is_refused_before_its_passes_are_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = SimpleNamespace(tokenizer=SimpleNamespace(fingerprint="other"))  # without passes
    models = iter([make_target(), other])
    monkeypatch.setattr("ngtcli.engine.local.load_model", lambda *_, **__: next(models))
    drafted = TINY_SETTINGS.replace(method="draft-model", draft_model="other", capture=True)
    with pytest.raises(ModelError, match="the tokenizers of other and"):
        LocalSession(drafted, persist=False)


def _true_cost(rows: int) -> float:
    """Seconds of a pass on an idle machine."""
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
    """Each pass is slowed down 2 to 8 times with a chance of `share`."""
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
        for rows in IDLE:  # most of the change is taken for that of the machine
            assert curve.at(rows) == pytest.approx(factor * _true_cost(rows), rel=0.3)


def test_a_second_measurement_keeps_the_quicker_pass_of_each_size() -> None:
    busy = CostCurve({1: 0.02, 4: 0.09, 16: 0.03}, sizes=(1, 4, 16))
    curve = busy.quickest({1: 0.03, 4: 0.025, 64: 0.01})
    assert curve.by_rows() == {1: 0.02, 4: 0.025, 16: 0.03}
    assert curve.sizes == (1, 4, 16)
