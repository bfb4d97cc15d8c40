"""The time that drafting saves, as it is reported with -v and in --json."""

import json
import re
from typing import Any

import pytest

from ngtcli.config import Settings
from ngtcli.drafting.origins import PolicyReport
from ngtcli.drafting.steps import Statistics
from ngtcli.engine.events import Ended
from ngtcli.engine.speed import plain_decoding_s
from tests.support.helpers import HARBOUR, ngt

ASK = ("summarize", HARBOUR, "--max-tokens", "40")


def test_json_has_the_time_that_plain_decoding_would_have_taken() -> None:
    answer = json.loads(ngt(*ASK, "--json").stdout)
    assert answer["statistics"]["drafted_tokens"]
    # Plain decoding takes a forward pass over one token for each token.
    expected = answer["policy"]["cost_s"]["1"] * answer["statistics"]["new_tokens"]
    assert answer["plain_decode_s"] == pytest.approx(expected, abs=1e-5)


def test_verbose_reports_the_time_that_drafting_saved() -> None:
    stderr = ngt(*ASK, "-v").stderr.decode().replace("\n", " ")

    saving = re.search(
        r"Drafting (saved|cost) ([\d.]+) s: .* about ([\d.]+) s .* took ([\d.]+) s", stderr
    )
    assert saving is not None
    plain_s = float(saving[3])
    decode_s = float(saving[4])
    saved_s = plain_s - decode_s if saving[1] == "saved" else decode_s - plain_s
    assert float(saving[2]) == pytest.approx(saved_s, abs=0.011)

    ratio = re.search(r"([\d.]+)× by drafting", stderr)
    assert ratio is not None
    assert float(ratio[1]) == pytest.approx(plain_s / decode_s, rel=0.2)


def test_plain_decoding_has_no_time_saved_by_drafting() -> None:
    answer = json.loads(ngt(*ASK, "--method", "none", "--json").stdout)
    assert answer["plain_decode_s"] is None
    stderr = ngt(*ASK, "--method", "none", "-v").stderr
    assert b"by drafting" not in stderr
    assert b"Drafting" not in stderr


def policy(costs: dict[int, float]) -> PolicyReport:
    return PolicyReport(
        budgets={}, stand_downs=0, came_true=1.0, trust=(), drafting_s=0.0, cost_s=costs
    )


@pytest.mark.parametrize(
    ("statistics", "costs", "expected"),
    [
        ({"new_tokens": 10}, {1: 0.2, 4: 0.5}, 2.0),
        ({"new_tokens": 10, "plain_steps": 4, "plain_s": 2.0}, None, 5.0),
        ({"new_tokens": 10, "plain_steps": 3, "plain_s": 2.0}, None, None),
        ({"new_tokens": 10, "shared_steps": 1}, {1: 0.2}, None),
        ({"new_tokens": 10}, {4: 0.5}, None),
    ],
)
def test_the_time_of_plain_decoding_is_estimated_by_the_cost_of_a_forward_pass(
    statistics: dict[str, Any], costs: dict[int, float] | None, expected: float | None
) -> None:
    answer = Ended(statistics=Statistics(**statistics), policy=policy(costs) if costs else None)
    seconds = plain_decoding_s(Settings(), answer)
    if expected is None:
        assert seconds is None
    else:
        assert seconds == pytest.approx(expected)


def test_the_time_of_plain_decoding_is_unknown_if_nothing_is_drafted() -> None:
    answer = Ended(statistics=Statistics(new_tokens=10), policy=policy({1: 0.2}))
    assert plain_decoding_s(Settings(), answer) is not None
    assert plain_decoding_s(Settings.of(num_draft=0), answer) is None
