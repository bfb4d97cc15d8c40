"""What is reported of an answer besides its text."""

from typing import Any

from ngtcli.config import Settings
from ngtcli.decoding.exactness.numerics import NOT_EXACT
from ngtcli.engine.events import Ended
from ngtcli.engine.report import remarks
from ngtcli.engine.session import ModelFacts


def test_there_is_no_remark_on_a_background_that_is_not_used() -> None:
    unread: Any = None
    model = ModelFacts(tokenizer=unread, context=1, vocabulary=1, dtype="float32")
    background = "Background: english."
    assert list(remarks(Settings(), model, Ended(), NOT_EXACT, background)) == [background]
    assert not list(remarks(Settings(), model, Ended(), NOT_EXACT, ""))
