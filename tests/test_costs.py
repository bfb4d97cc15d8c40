"""What a pass costs: measured, stored, read back, refused when it cannot be."""

import json

from conftest import make_target

from ngtcli.config import Settings
from ngtcli.decode import costs
from ngtcli.decode.load import load_model
from ngtcli.draft.auto.costs import SHORT, CostCurve, Costs
from ngtcli.session import Session

MEASURED = {1: 0.5, 8: 1.0}


def test_calibration_times_passes_of_growing_size_and_leaves_the_model_usable() -> None:
    model = make_target()
    curve = costs.calibrate(model)
    assert curve.rows.tolist() == list(costs.ROWS)
    assert all(s > 0 for s in curve.seconds)
    model.start(8)
    model.prefill([5, 6])
    assert model.length == 2


def test_a_short_context_is_timed_as_far_as_it_goes() -> None:
    model = make_target(max_position_embeddings=20)
    assert costs.calibrate(model).rows.max() < 20


def test_time_that_runs_out_leaves_the_rest_to_extrapolation() -> None:
    curve = costs.calibrate(make_target(), limit_s=0.0)
    assert curve.rows.tolist() == [1, 2]
    assert curve.at(64) >= curve.at(2)


def test_curves_are_stored_by_model_and_dtype_and_a_bad_file_is_passed_over() -> None:
    model, other = make_target("llama"), make_target("qwen2")
    assert costs.load_costs(model) is None
    stored = Costs({SHORT: CostCurve(MEASURED)})
    stored.at_length(2000)
    stored.curves[SHORT] = CostCurve({1: 0.4, 8: 1.0}, MEASURED)
    costs.save_costs(model, stored)
    found = costs.load_costs(model)
    assert found is not None
    assert list(found.curves) == [1024, 4096]
    for curve, of in ((found.at_length(0), {1: 0.4, 8: 1.0}), (found.at_length(2000), MEASURED)):
        assert (curve.by_rows(), curve.measured) == (of, MEASURED)
    assert costs.load_costs(other) is None
    good = {"1": 1.0}
    curves: list[object] = [{"2": 1.0}, {"1": -1}, {"1": "x"}, {"x": 1}, {"1": None}, 3, {}]
    for bad in (
        3, [], {}, {"x": {"seconds": good, "measured": good}}, {"1024": good},
        {"1024": {"seconds": good}}, {"1024": {"seconds": good, "measured": {"1": 1.0, "2": 2.0}}},
        *({"1024": {"seconds": c, "measured": c}} for c in curves),
        *({"1024": {"seconds": good, "measured": c}} for c in curves[:-1]),
    ):  # fmt: skip
        costs.costs_path(model).write_text(json.dumps(bad))
        assert costs.load_costs(model) is None
    costs.costs_path(model).write_text("")
    assert costs.load_costs(model) is None


def test_a_long_context_has_a_curve_of_its_own() -> None:
    known = Costs({SHORT: CostCurve({1: 1.0, 8: 2.0}), 65536: CostCurve({1: 5.0, 8: 9.0})})
    assert known.at_length(0) is known.at_length(1024)
    assert known.at_length(2000).at(1) == 1.0  # the nearest
    assert known.at_length(17000) is known.at_length(60000)
    assert known.at_length(70000).at(8) == 9.0
    known.at_length(2000).learn(1, 3.0)
    assert known.at_length(100).at(1) == 1.0 < known.at_length(4096).at(1)


def test_a_session_without_calibration_drafts_as_many_nodes_as_are_set() -> None:
    session = Session(Settings(method="auto", calibrate=False))
    assert session._pass_costs() is None
    assert costs.load_costs(load_model("builtin")) is None
