"""Prompts of conversations against `transformers`, and what is left out where not all fits."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngtcli.config import Settings
from ngtcli.documents.load import Document
from ngtcli.documents.passages import Cutting
from ngtcli.documents.selection import Excerpt
from ngtcli.errors import ContextOverflowError, ModelError, UsageError
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.prompts.build import Prompt, Task
from ngtcli.prompts.chat import Chat
from ngtcli.prompts.preset import for_task, without_documents
from ngtcli.prompts.selecting import prompt_for
from ngtcli.prompts.turns import Turn, earlier_questions
from ngtcli.retrieval.index import EARLIER, index_of
from tests.support.control_texts import (
    control_tokens_in,
    hostile_texts,
    preset,
    tokenizer_of,
    utf8,
    with_template,
)
from tests.support.helpers import template
from tests.support.recording_reporter import RecordingReporter

NAMES = ("chatml", "trims", "gemma", "mistral", "thinks", "parts")  # of templates
TEMPLATES = {name: template(name) for name in NAMES}
CHATML = TEMPLATES["chatml"]
TIDE = [Document("tide.txt", "The tide is high at noon."), Document("b.txt", "Boats lie still.")]
SAID = [
    ("user", "When is high tide?"),
    ("assistant", "At noon.\n\nAnd so on."),
    ("user", "And low tide?"),
    ("assistant", "At six."),
]


def turns(said: Sequence[tuple[str, str]]) -> list[Turn]:
    return [Turn(role, text) for role, text in said]


def task(tokenizer: Tokenizer, said: Any, question: str = "Why?", **more: Any) -> Task:
    context, documents = more.pop("context", 10**6), more.pop("documents", TIDE)
    own = preset() if documents else without_documents(preset())
    return Task(own, documents, question, tokenizer, context, 8, turns=turns(said), **more)


def fitted(whole: Task, **more: Any) -> Prompt:
    return prompt_for(whole, for_task("chat", Settings.of(**more), preset()))


@pytest.mark.search
@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("documents", [TIDE, []])
@pytest.mark.parametrize("system", ["", "Be brief."])
def test_a_conversation_renders_as_in_transformers(
    name: str, documents: list[Document], system: str
) -> None:
    tokenizer = with_template(TEMPLATES[name])
    texts = "tide.txt\nThe tide is high at noon.\n\nb.txt\nBoats lie still.\n\n"
    messages = [{"role": "system", "content": system}] * bool(system)
    messages += [{"role": role, "content": text} for role, text in [*SAID, ("user", "Why?")]]
    if documents:
        first = messages[bool(system)]
        messages[bool(system)] = first | {"content": texts + first["content"]}
    if name == "parts":
        messages = [m | {"content": [{"text": m["content"]}]} for m in messages]
    whole = task(tokenizer, SAID, chat=Chat(system=system), documents=documents)
    if system and name == "gemma":
        with pytest.raises(ModelError, match="Roles must alternate"):
            whole.build(documents)
        return
    prompt = whole.build(documents)
    shown = tokenizer.backend.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    assert prompt.text == shown
    assert prompt.ids == tokenizer.backend.encode(shown, add_special_tokens=False)
    assert [tokenizer.decode(ids).strip() for ids in prompt.references] == [
        d.text for d in documents
    ]


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name != "mistral"])
def test_the_next_prompt_begins_with_the_last_one(name: str) -> None:
    tokenizer = Tokenizer(tokenizer_of("qwen").backend)
    tokenizer.backend.chat_template = TEMPLATES[name]
    before: list[int] = []
    for n in (0, 2, 4):
        question = [*SAID, ("user", "Why?")][n][1]
        prompt = task(tokenizer, SAID[:n], question, chat=Chat(system="")).build(TIDE)
        assert prompt.ids[: len(before)] == before
        before = prompt.ids


def test_without_a_template_turns_follow_one_another() -> None:
    tokenizer = with_template(None)
    prompt = task(tokenizer, SAID[:2], chat=Chat(system="Be brief.")).build(TIDE)
    assert prompt.text == (
        "Be brief.\n\ntide.txt\nThe tide is high at noon.\n\nb.txt\nBoats lie still.\n\n"
        "When is high tide?\n\nAt noon.\n\nAnd so on.\n\nWhy?\n\n"
    )
    assert [tokenizer.decode(ids).strip() for ids in prompt.references] == [d.text for d in TIDE]


@pytest.mark.parametrize("name", ["gemma", "mistral"])
def test_adjacent_turns_of_a_role_are_joined_if_needed(name: str) -> None:
    said = [("user", "One."), ("user", "Two."), ("assistant", "A."), ("assistant", "B.")]
    tokenizer = with_template(TEMPLATES[name])
    joined = [("user", "One.\n\nTwo."), ("assistant", "A.\n\nB.")]
    prompts = [task(tokenizer, own, documents=[]).build([]) for own in (said, joined)]
    assert prompts[0].ids == prompts[1].ids
    apart = task(with_template(CHATML), said, documents=[]).build([])
    assert apart.text.count("<|im_start|>user") == 3


def test_a_thought_in_an_earlier_answer_is_left_out_as_the_template_does() -> None:
    said = [*SAID[:1], ("assistant", "Hm.\n</think>\n\nAt noon."), *SAID[2:3]]
    prompt = task(with_template(TEMPLATES["thinks"]), [*said, ("assistant", "At six.")]).build(TIDE)
    assert "Hm." not in prompt.text
    assert "assistant\nAt noon.<|im_end|>" in prompt.text


def test_a_template_that_leaves_turns_out_is_an_error() -> None:
    only_last = with_template("<|im_start|>{{ messages[-1].content }}<|im_end|>")
    with pytest.raises(ModelError, match="leaves a turn of the conversation out"):
        task(only_last, SAID).build(TIDE)


@pytest.mark.parametrize("name", ["chatml", "trims", "thinks"])
@given(data=st.data())
@settings(max_examples=15)
def test_no_turn_becomes_a_control_token(name: str, data: Any) -> None:
    tokenizer = Tokenizer(tokenizer_of("qwen").backend)
    tokenizer.backend.chat_template = TEMPLATES[name]
    texts = data.draw(st.lists(hostile_texts("qwen").map(utf8), min_size=4, max_size=4))
    own = [("user", texts[0] + "x"), ("assistant", "x" + texts[1]), ("user", texts[2] + "x")]
    plain = task(tokenizer, [(role, "x") for role, _ in own], "x").build(TIDE)
    whole = task(tokenizer, own, texts[3] + "x").build(TIDE)
    assert control_tokens_in(tokenizer, whole.ids) == control_tokens_in(tokenizer, plain.ids)


# --- what does not fit ---


def exchanges(count: int) -> list[tuple[str, str]]:
    return [
        (role, f"{role} {n} speaks of boats and of the tide at some length here.")
        for n in range(count)
        for role in ("user", "assistant")
    ]


def test_the_oldest_turns_are_left_out_and_documents_stay() -> None:
    tokenizer, said, heads, left = with_template(CHATML), exchanges(30), [], []
    for n in range(31):
        reported = RecordingReporter()
        whole = task(tokenizer, said[: 2 * n], f"user {n} asks of boats?", context=900)
        prompt = reported.of(partial(prompt_for, whole, Settings.of(overflow="error")))
        assert "The tide is high at noon." in prompt.text
        assert len(prompt.ids) <= whole.room
        assert prompt.text.count("<|im_start|>user") == n - prompt.left_out + 1
        words = f"the context is full: the first {prompt.left_out} questions"
        assert [words in line for line in reported.warnings] == [True] * bool(prompt.left_out)
        heads.append(prompt.text.partition("<|im_end|>")[0])
        left.append(prompt.left_out)
    assert left == sorted(left)
    assert left[-1] > 10
    # They go many at a time: the next prompts begin as this one does.
    assert len(set(left)) <= 5
    assert len(set(heads)) <= 6


def test_a_question_that_does_not_fit_is_an_error() -> None:
    whole = task(with_template(CHATML), exchanges(3), "boats " * 300, context=300)
    with pytest.raises(ContextOverflowError):
        prompt_for(whole, Settings.of(overflow="error"))


TOWN = [
    Document(
        "harbour.txt",
        "\n\n".join(
            f"The quay number {n} was built by mason {name} in 18{n:02}. Ships of the {name} line"
            f" tie up there when the tide is high, and the keeper of quay {n} writes down their"
            " names."
            for n, name in enumerate(
                ["Abel", "Baker", "Clark", "Dyer", "Eaton", "Fisher", "Glover"]
            )
        ),
    ),
    Document(
        "mill.txt",
        "\n\n".join(
            f"The mill of {name} grinds rye and oats for the bakers of street {n}. Its wheel turns"
            f" in the brook, and the miller of {name} has {n} sons who carry the sacks to market."
            for n, name in enumerate(["Upton", "Weston", "Norton", "Sutton", "Aston", "Milton"])
        ),
    ),
]
FEW = {"passages": 1, "passage_tokens": 40, "overflow": "retrieve"}


def town(tokenizer: Tokenizer, said: list[Turn], question: str, context: int = 900) -> Task:
    return Task(preset(), TOWN, question, tokenizer, context, 8, turns=said)


def test_passages_precede_their_questions_and_are_read_once() -> None:
    tokenizer, said, before = with_template(CHATML), [], []
    asked = ["Who built quay number 3, mason Dyer?", "And when was it?", "Really?"]
    for question in [*asked, "The mill of Norton, does it grind rye?"]:
        prompt = fitted(town(tokenizer, said, question), **FEW)
        chosen = prompt.selection
        assert chosen is not None
        assert prompt.ids[: len(before)] == before
        texts = [TOWN[e.document].text[e.start : e.end].strip() for e in chosen.excerpts]
        assert [d.text.strip() for d in prompt.documents] == texts
        assert [tokenizer.decode(ids).strip() for ids in prompt.references] == texts
        assert len(texts) == len(set(texts))
        said += [Turn("user", question, chosen.new), Turn("assistant", "Yes.")]
        before = prompt.ids
    read = [len(turn.passages) for turn in said[::2]]
    assert read == [1, 0, 0, 1]  # the second question is about the passage of the first


def test_retrieval_uses_the_last_questions() -> None:
    said = turns([("user", "One?"), *SAID])
    assert earlier_questions(said) == ["When is high tide?", "And low tide?"]
    index = index_of(TOWN, Cutting(40))
    scores = [index.scores(text) for text in ("miller", "Abel", "Glover")]
    found = index.rank("miller", earlier=["Abel", "Glover"])
    wanted = scores[0] + EARLIER * (scores[1] + scores[2])
    assert [score for _, score in found] == pytest.approx(sorted(wanted[wanted > 0])[::-1])


def test_turns_with_passages_are_left_out_if_the_room_is_full() -> None:
    tokenizer, said, left = with_template(CHATML), [], []
    names = ["Abel", "Baker", "Clark", "Dyer", "Eaton", "Fisher", "Glover"]
    for n, name in enumerate(names):
        question = f"Did {name} build number {n} for the {name} line, or was it not {name}?"
        whole = town(tokenizer, said, question, 700)
        prompt = fitted(whole, **FEW)
        assert len(prompt.ids) <= whole.room
        assert f"mason {name}" in prompt.text
        left.append(prompt.left_out)
        assert prompt.selection is not None
        said += [Turn("user", question, prompt.selection.new), Turn("assistant", "A mason.")]
    assert left[0] == 0
    assert left == sorted(left)
    assert 2 < left[-1] < 7


def test_documents_that_fit_precede_all_turns() -> None:
    tokenizer = with_template(CHATML)
    said = [Turn("user", "One?", (Excerpt(0, 0, 9),)), Turn("assistant", "A.")]
    prompt = fitted(town(tokenizer, said, "Two?", 10_000))
    assert prompt.selection is None
    assert prompt.documents == tuple(TOWN)
    assert prompt.text.startswith("<|im_start|>user\nharbour.txt\nThe quay")
    assert prompt.text.endswith("user\nTwo?<|im_end|>\n<|im_start|>assistant\n")


def test_documents_are_not_cut_in_a_conversation() -> None:
    with pytest.raises(UsageError, match="no room for the conversation"):
        for_task("chat", Settings.of(overflow="truncate"), preset())
