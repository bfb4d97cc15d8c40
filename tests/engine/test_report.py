"""What is reported of an answer besides its text."""

from typing import Any

from ngtcli.config import Settings
from ngtcli.decoding.exactness.numerics import NOT_EXACT
from ngtcli.drafting.steps import Statistics
from ngtcli.engine.events import Ended
from ngtcli.engine.report import details, remarks
from ngtcli.engine.session import ModelFacts


def test_there_is_no_remark_on_a_background_that_is_not_used() -> None:
    unread: Any = None
    model = ModelFacts(tokenizer=unread, context=1, vocabulary=1, dtype="float32")
    background = "Background: english."
    assert list(remarks(Settings(), model, Ended(), NOT_EXACT, background)) == [background]
    assert not list(remarks(Settings(), model, Ended(), NOT_EXACT, ""))


def test_the_rate_of_decoding_stands_beside_the_time_of_decoding() -> None:
    unread: Any = None
    model = ModelFacts(tokenizer=unread, context=1, vocabulary=1, dtype="float32")
    answer = Ended(statistics=Statistics(new_tokens=30, prefill_s=1.0, decode_s=2.0))
    added = list(details(Settings(), model, answer))
    assert "decoding 2.00 s (15.0 tokens/s)" in added
    assert not [words for words in added if words.endswith("tokens/s")]
