"""What a pass costs: measured, stored, read back, refused when it cannot be."""

from conftest import make_target

from ngtcli.config import Settings
from ngtcli.decode import costs
from ngtcli.decode.model import load_model
from ngtcli.draft.costs import CostCurve
from ngtcli.session import Session


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


def test_a_curve_is_stored_by_model_and_dtype_and_a_bad_file_is_passed_over() -> None:
    model, other = make_target("llama"), make_target("qwen2")
    assert costs.load_curve(model) is None
    costs.save_curve(model, CostCurve({1: 0.5, 8: 1.0}))
    found = costs.load_curve(model)
    assert found is not None
    assert found.as_json() == {"1": 0.5, "8": 1.0}
    assert costs.load_curve(other) is None
    for bad in ("", "[]", '{"2": 1.0}', '{"1": -1}', '{"1": "x"}', '{"x": 1}', '{"1": null}'):
        costs.curve_path(model).write_text(bad)
        assert costs.load_curve(model) is None


def test_a_session_without_calibration_drafts_as_many_nodes_as_are_set() -> None:
    session = Session(Settings(method="auto", calibrate=False))
    assert session._curve() is None
    assert costs.load_curve(load_model("builtin")) is None
