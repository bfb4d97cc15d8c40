"""What drafting brought: below an answer, in full with -v, and in --json."""

import json
import re

import pytest

from ngtcli.config import Settings
from ngtcli.drafting.origins import PolicyReport
from ngtcli.drafting.steps import Statistics
from ngtcli.engine.events import Ended
from ngtcli.engine.speed import plain_decoding_s
from tests.support.helpers import HARBOUR, ngt

ASK = ("summarize", HARBOUR, "--max-tokens", "40")


def test_json_and_verbose_say_what_plain_decoding_would_have_taken() -> None:
    answer = json.loads(ngt(*ASK, "--json").stdout)
    figures = answer["statistics"]
    assert figures["drafted_tokens"]
    # One token a forward pass, at the cost of a pass over one token.
    plain_s = answer["policy"]["cost_s"]["1"] * figures["new_tokens"]
    assert answer["plain_decode_s"] == pytest.approx(plain_s, abs=1e-5)
    said = ngt(*ASK, "-v").stderr.decode()
    words = r"Drafting (saved|cost) ([\d.]+) s: .* about ([\d.]+) s .* took ([\d.]+) s"
    found = re.search(words, said.replace("\n", " "))
    assert found is not None
    word, difference, plain, own = found.group(1), *map(float, found.groups()[1:])
    assert (plain - own) * (1 if word == "saved" else -1) == pytest.approx(difference, abs=0.011)
    ratio = re.search(r"([\d.]+)× by drafting", said.replace("\n", " "))
    assert ratio is not None
    assert float(ratio.group(1)) == pytest.approx(plain / own, rel=0.2)


def test_nothing_is_claimed_of_plain_decoding_itself() -> None:
    done = ngt(*ASK, "--method", "none", "--json")
    assert json.loads(done.stdout)["plain_decode_s"] is None
    said = ngt(*ASK, "--method", "none", "-v").stderr
    assert b"by drafting" not in said
    assert b"Drafting" not in said


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
def test_the_time_of_plain_decoding(
    statistics: dict[str, float], costs: dict[int, float] | None, expected: float | None
) -> None:
    figures = Statistics(**statistics)  # type: ignore[arg-type]
    answer = Ended(statistics=figures, policy=None if costs is None else policy(costs))
    found = plain_decoding_s(Settings(), answer)
    assert found == (None if expected is None else pytest.approx(expected))
    assert plain_decoding_s(Settings.of(num_draft=0), answer) is None
