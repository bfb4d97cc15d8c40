"""Answers to many prompts together."""

from ngtcli.batch.answers import answers
from ngtcli.config import Settings
from ngtcli.errors import InputError
from ngtcli.prompt.build import Prompt
from ngtcli.session import Session


def test_an_error_in_place_of_a_prompt_is_that_keys_answer() -> None:
    session = Session(Settings(max_tokens=8, method="none"), persist=False)
    ids = session.model.tokenizer.encode("The harbour was built in")
    lost = InputError("no.txt: no such file")
    given = [(7, lost), (3, Prompt("", ids, (), ())), (5, Prompt("", [], (), ()))]
    found = {a.key: a for a in answers(session, given, 4)}
    assert found[7].error is lost and not found[7].steps
    assert found[3].error is None and found[3].text
    assert found[3].statistics.new_tokens == sum(len(s.tokens) for s in found[3].steps)
    assert found[5].error is not None and "empty" in str(found[5].error)
