"""A predicted answer: drafts from an old version of the text, found again after every edit."""

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ngtcli.config import Settings
from ngtcli.documents.load import Document, Loaded
from ngtcli.drafting.auto.drafter import Auto
from ngtcli.drafting.drafter import Context, DraftSettings
from ngtcli.drafting.origins import PREDICTED
from ngtcli.drafting.pool import Pool
from ngtcli.drafting.steps import Statistics
from ngtcli.engine.events import Ended
from ngtcli.engine.request import MAX_PREDICTED, Request, check_prediction
from ngtcli.errors import UsageError
from ngtcli.prompts.preset import load_preset
from ngtcli.server import wire
from ngtcli.server.client import _absolute_request
from ngtcli.server.openai_answers import usage
from ngtcli.server.resident import Resident
from tests.support.driven_drafters import DrafterRun
from tests.support.helpers import HARBOUR, ngt
from tests.tools.measuring.replaying import walk

WORDS = random.Random(4).choices(range(10, 400), k=300)
PROMPT = [1, 2, 3, 4, 5, 6, 7, 8]
EDITS = {
    "insertion": [*WORDS[:150], *range(500, 512), *WORDS[150:]],
    "deletion": [*WORDS[:150], *WORDS[180:]],
    "replacement": [*WORDS[:150], *range(500, 504), *WORDS[154:]],
}


# --- the drafter ---


def emitted(answer: Sequence[int], predicted: Sequence[int], pool: Pool | None = None) -> list[int]:
    """How many tokens each step emits, at 16 nodes."""
    drafter, steps, done = Auto(DraftSettings(pool=pool)), [], 0
    followed = DrafterRun(drafter, Context(PROMPT, vocabulary=600, predicted=predicted))
    while done < len(answer):
        tree = followed.propose(16)
        kept = answer[done : done + walk(tree, answer, done) + 1]
        followed.emit(kept)
        steps.append(len(kept))
        done += len(kept)
    followed.close()
    return steps


def test_an_answer_as_predicted_is_drafted_from_its_first_token() -> None:
    steps = emitted(WORDS, WORDS)
    assert steps[0] > 8
    assert sum(steps) / len(steps) > 14
    assert sum(emitted(WORDS, ())) / len(emitted(WORDS, ())) < 1.5


@pytest.mark.parametrize("edit", EDITS)
def test_the_place_is_found_again_after_an_edit(edit: str) -> None:
    """The steps that the tokens of the edit itself take aside, two steps are lost at most."""
    new = len([token for token in EDITS[edit] if token >= 500])
    assert len(emitted(EDITS[edit], WORDS)) <= len(emitted(WORDS, WORDS)) + new + 2


def test_without_a_prediction_nothing_is_drafted_from_the_last_one() -> None:
    drafter = Auto(DraftSettings())
    for predicted in (WORDS, ()):
        tree = DrafterRun(drafter, Context(PROMPT, vocabulary=600, predicted=predicted)).propose(4)
        assert tree.drafts_of(PREDICTED) == (4 if predicted else 0)
        assert (tree.tokens == tuple(WORDS[:4])) == bool(predicted)


def test_predictions_that_fail_are_believed_less_in_later_answers() -> None:
    pool = Pool()
    other = random.Random(5).choices(range(10, 400), k=600)
    drafter = Auto(DraftSettings(pool=pool))
    before = drafter.tallies.escape[0].copy()
    for at in range(0, 600, 100):
        emitted(other[at : at + 100], WORDS, pool)
    assert pool.tally_predicted is not None
    drafter.tallies.restore(pool.tally_predicted, pool.tally_reached)
    assert (drafter.tallies.escape[0, 1] >= before[1] - 1e-9).all()
    assert drafter.tallies.escape[0, 1].sum() > before[1].sum()


# --- answers ---

SETTINGS = Settings.of(
    max_tokens=32, overflow="truncate", calibrate=False, background="none", pool=False
)


def asked(prediction: str = "", **changes: Any) -> Request:
    text = Path(HARBOUR).read_text("utf-8")
    return Request(
        task="summarize",
        settings=SETTINGS.replace(**changes),
        preset=load_preset("summarize"),
        loaded=Loaded((Document("harbour.txt", text),)),
        prediction=prediction,
    )


@pytest.fixture(scope="module")
def resident() -> Iterator[Resident]:
    made = Resident(SETTINGS, persist=False)
    yield made
    made.close()


def ended(resident: Resident, question: Request) -> Ended:
    *_, last = resident.ask(question, owner="test")
    assert isinstance(last, Ended)
    return last


@pytest.mark.search
@pytest.mark.parametrize("changes", [{}, {"temperature": 0.8, "seed": 3, "exact": "on"}])
def test_the_tokens_are_the_same_and_the_counts_add_up(
    resident: Resident, changes: dict[str, Any]
) -> None:
    plain = ended(resident, asked(method="none", **changes))
    edited = plain.text.replace("the", "an entirely other", 1)
    for prediction in (plain.text, edited, "What nobody says.\n" * 20):
        answer = ended(resident, asked(prediction, **changes))
        assert [t.id for t in answer.tokens] == [t.id for t in plain.tokens]
        s = answer.statistics
        accepted, rejected = s.accepted_prediction_tokens, s.rejected_prediction_tokens
        assert accepted is not None
        assert rejected is not None
        assert accepted == sum(token.origin == PREDICTED for token in answer.tokens)
        assert accepted + rejected == sum(step.predicted for step in answer.steps)
        assert rejected >= 0
        assert accepted + rejected <= s.drafted_tokens
        if prediction == plain.text:
            assert accepted > s.new_tokens / 2 > 8
            assert s.mean_acceptance_length > 8
    assert ended(resident, asked(**changes)).statistics.accepted_prediction_tokens is None


@pytest.mark.parametrize("overflow", ["split", "error"])
def test_a_prediction_is_of_the_answer_however_long_texts_are_read(
    resident: Resident, overflow: str
) -> None:
    text = ended(resident, asked(method="none", overflow=overflow)).text
    answer = ended(resident, asked(text, overflow=overflow))
    assert answer.text == text
    assert answer.statistics.accepted_prediction_tokens


@pytest.mark.parametrize("method", ["trie", "llma"])
def test_other_methods_draft_from_it_as_from_a_document(resident: Resident, method: str) -> None:
    text = "Nobody saved the town. " + ended(resident, asked(method="none")).text
    with_it, without = (ended(resident, asked(p, method=method)) for p in (text, ""))
    assert with_it.text == without.text
    assert with_it.statistics.steps <= without.statistics.steps
    assert with_it.statistics.accepted_prediction_tokens is None


def test_it_goes_to_the_resident_process_with_the_question() -> None:
    sent = wire.encode(wire.Ask("1", _absolute_request(asked("as before"))))
    assert wire.decode(sent).request.prediction == "as before"


def test_counts_of_the_http_api() -> None:
    statistics = Statistics()
    assert usage(statistics)["completion_tokens_details"]["accepted_prediction_tokens"] == 0
    statistics.add_predicted(7, 5)
    statistics.add_predicted(4, 0)
    details = usage(statistics)["completion_tokens_details"]
    assert (details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]) == (5, 6)


# --- commands ---


def test_a_file_is_predicted_and_counted(tmp_path: Path) -> None:
    given = ("summarize", HARBOUR, "--json", "--no-serve", "--max-tokens", "20")
    plain = json.loads(ngt(*given, "--method", "none").stdout)
    (tmp_path / "old.txt").write_text(f"An old title\n\n{plain['text']}", "utf-8")
    done = ngt(*given, "--predict", str(tmp_path / "old.txt"))
    answer = json.loads(done.stdout)
    assert answer["text"] == plain["text"]
    assert answer["statistics"]["accepted_prediction_tokens"] > 10
    assert "rejected_prediction_tokens" in answer["statistics"]
    assert "accepted_prediction_tokens" not in plain["statistics"]


def test_a_line_of_a_batch_has_its_own(tmp_path: Path) -> None:
    question = {"context": Path(HARBOUR).read_text("utf-8"), "settings": {"max_tokens": 20}}
    plain = ngt("batch", "-", "--method", "none", stdin=json.dumps(question).encode())
    text = json.loads(plain.stdout)["text"]
    lines = [question, {**question, "predict": text}, {**question, "predict": 3}]
    done = ngt("batch", "-", stdin="\n".join(map(json.dumps, lines)).encode())
    bare, predicted, wrong = sorted(
        map(json.loads, done.stdout.splitlines()), key=lambda o: o["id"]
    )
    assert bare["text"] == predicted["text"] == text
    assert predicted["statistics"]["accepted_prediction_tokens"] > 10
    assert "accepted_prediction_tokens" not in bare["statistics"]
    assert wrong["error"]["message"] == "predict is 3"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "no such file"),
        (b"", "empty"),
        (b" \n", "empty"),
        (b"\x00\x01\x02" * 50, "binary"),
        (b"a" * (MAX_PREDICTED + 1), "more than 1 MB"),
    ],
)
def test_a_file_that_is_no_text_is_an_error(
    tmp_path: Path, content: bytes | None, what: str
) -> None:
    path = tmp_path / "old.txt"
    if content is not None:
        path.write_bytes(content)
    done = ngt("generate", "Go on.", "--predict", str(path))
    first, second, *more = done.stderr.decode().splitlines()
    assert done.returncode == 3
    assert not more
    assert not done.stdout
    assert f"--predict {path}: " in first
    assert what.lower() in first.lower()
    assert second.strip() == "Name a text file of at most 1 MB."


def test_a_prediction_has_a_bound() -> None:
    check_prediction("a" * MAX_PREDICTED, Settings())
    for text, settings in (
        ("a" * (MAX_PREDICTED + 1), Settings()),
        ("a", Settings.of(method="none")),
    ):
        with pytest.raises(UsageError):
            check_prediction(text, settings)
