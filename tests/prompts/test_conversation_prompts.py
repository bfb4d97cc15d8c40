"""Prompts of conversations compared with `transformers`, and what a full context leaves out."""

from collections.abc import Sequence
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
MESSAGES = [  # role and text
    ("user", "When is high tide?"),
    ("assistant", "At noon.\n\nAnd so on."),
    ("user", "And low tide?"),
    ("assistant", "At six."),
]


def turns_of(messages: Sequence[tuple[str, str]]) -> list[Turn]:
    return [Turn(role, text) for role, text in messages]


def make_task(
    tokenizer: Tokenizer,
    messages: Sequence[tuple[str, str]],
    question: str = "Why?",
    *,
    documents: Sequence[Document] = TIDE,
    context: int = 10**6,
    chat: Chat | None = None,
) -> Task:
    return Task(
        preset() if documents else without_documents(preset()),
        list(documents),
        question,
        tokenizer,
        context,
        8,
        turns=turns_of(messages),
        chat=chat or Chat(),
    )


def fit(task: Task, **settings: Any) -> Prompt:
    return prompt_for(task, for_task("chat", Settings.of(**settings), preset()))


@pytest.mark.search
@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("documents", [TIDE, []])
@pytest.mark.parametrize("system", ["", "Be brief."])
def test_a_conversation_renders_as_in_transformers(
    name: str, documents: list[Document], system: str
) -> None:
    tokenizer = with_template(TEMPLATES[name])
    task = make_task(tokenizer, MESSAGES, chat=Chat(system=system), documents=documents)
    if system and name == "gemma":
        with pytest.raises(ModelError, match="Roles must alternate"):
            task.build(documents)
        return

    prompt = task.build(documents)

    messages: list[dict[str, Any]] = []
    if system:
        messages.append({"role": "system", "content": system})
    for role, text in [*MESSAGES, ("user", "Why?")]:
        messages.append({"role": role, "content": text})
    if documents:
        first_question = messages[1 if system else 0]
        texts = "tide.txt\nThe tide is high at noon.\n\nb.txt\nBoats lie still.\n\n"
        first_question["content"] = texts + first_question["content"]
    if name == "parts":
        for message in messages:
            message["content"] = [{"text": message["content"]}]
    expected = tokenizer.backend.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    assert prompt.text == expected
    assert prompt.ids == tokenizer.backend.encode(expected, add_special_tokens=False)
    assert reference_texts(prompt, tokenizer) == [document.text for document in documents]


def reference_texts(prompt: Prompt, tokenizer: Tokenizer) -> list[str]:
    """The texts from which the drafter copies."""
    return [tokenizer.decode(ids).strip() for ids in prompt.references]


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name != "mistral"])
def test_the_next_prompt_begins_with_the_last_one(name: str) -> None:
    tokenizer = Tokenizer(tokenizer_of("qwen").backend)
    tokenizer.backend.chat_template = TEMPLATES[name]
    previous_ids: list[int] = []
    for exchange in range(3):
        messages = MESSAGES[: 2 * exchange]
        question = ["When is high tide?", "And low tide?", "Why?"][exchange]
        prompt = make_task(tokenizer, messages, question, chat=Chat(system="")).build(TIDE)
        assert prompt.ids[: len(previous_ids)] == previous_ids
        previous_ids = prompt.ids


def test_without_a_template_turns_follow_one_another() -> None:
    tokenizer = with_template(None)
    prompt = make_task(tokenizer, MESSAGES[:2], chat=Chat(system="Be brief.")).build(TIDE)
    assert prompt.text == (
        "Be brief.\n\ntide.txt\nThe tide is high at noon.\n\nb.txt\nBoats lie still.\n\n"
        "When is high tide?\n\nAt noon.\n\nAnd so on.\n\nWhy?\n\n"
    )
    assert reference_texts(prompt, tokenizer) == [document.text for document in TIDE]


ADJACENT = [("user", "One."), ("user", "Two."), ("assistant", "A."), ("assistant", "B.")]
JOINED = [("user", "One.\n\nTwo."), ("assistant", "A.\n\nB.")]


@pytest.mark.parametrize("name", ["gemma", "mistral"])
def test_adjacent_turns_of_a_role_are_joined_for_templates_that_alternate(name: str) -> None:
    tokenizer = with_template(TEMPLATES[name])
    adjacent = make_task(tokenizer, ADJACENT, documents=[]).build([])
    joined = make_task(tokenizer, JOINED, documents=[]).build([])
    assert adjacent.ids == joined.ids


def test_adjacent_turns_of_a_role_stay_apart_for_other_templates() -> None:
    prompt = make_task(with_template(CHATML), ADJACENT, documents=[]).build([])
    assert prompt.text.count("<|im_start|>user") == 3


def test_reasoning_in_an_earlier_answer_is_left_out_as_the_template_does() -> None:
    messages = list(MESSAGES)
    messages[1] = ("assistant", "Hm.\n</think>\n\nAt noon.")
    prompt = make_task(with_template(TEMPLATES["thinks"]), messages).build(TIDE)
    assert "Hm." not in prompt.text
    assert "assistant\nAt noon.<|im_end|>" in prompt.text


def test_a_template_that_leaves_turns_out_is_an_error() -> None:
    only_last = with_template("<|im_start|>{{ messages[-1].content }}<|im_end|>")
    with pytest.raises(ModelError, match="leaves a turn of the conversation out"):
        make_task(only_last, MESSAGES).build(TIDE)


@pytest.mark.parametrize("name", ["chatml", "trims", "thinks"])
@given(data=st.data())
@settings(max_examples=15)
def test_no_turn_becomes_a_control_token(name: str, data: Any) -> None:
    tokenizer = Tokenizer(tokenizer_of("qwen").backend)
    tokenizer.backend.chat_template = TEMPLATES[name]
    texts = data.draw(st.lists(hostile_texts("qwen").map(utf8), min_size=4, max_size=4))
    messages = [("user", texts[0] + "x"), ("assistant", "x" + texts[1]), ("user", texts[2] + "x")]
    harmless_messages = [(role, "x") for role, _ in messages]

    hostile = make_task(tokenizer, messages, texts[3] + "x").build(TIDE)
    harmless = make_task(tokenizer, harmless_messages, "x").build(TIDE)

    assert control_tokens_in(tokenizer, hostile.ids) == control_tokens_in(tokenizer, harmless.ids)


# --- conversations that do not fit ---


def exchanges(count: int) -> list[tuple[str, str]]:
    return [
        (role, f"{role} {n} speaks of boats and of the tide at some length here.")
        for n in range(count)
        for role in ("user", "assistant")
    ]


def test_the_oldest_turns_are_left_out_and_documents_stay() -> None:
    tokenizer = with_template(CHATML)
    messages = exchanges(30)
    first_turns = []
    left_out = []
    for n in range(31):
        task = make_task(tokenizer, messages[: 2 * n], f"user {n} asks of boats?", context=900)
        reporter = RecordingReporter()
        prompt = reporter.of(lambda task=task: prompt_for(task, Settings.of(overflow="error")))

        assert len(prompt.ids) <= task.room
        assert "The tide is high at noon." in prompt.text
        assert prompt.text.count("<|im_start|>user") == n + 1 - prompt.left_out
        if prompt.left_out:
            (warning,) = reporter.warnings
            assert f"the context is full: the first {prompt.left_out} questions" in warning
        else:
            assert not reporter.warnings
        first_turns.append(prompt.text.partition("<|im_end|>")[0])
        left_out.append(prompt.left_out)

    assert left_out == sorted(left_out)
    assert left_out[-1] > 10
    # Turns leave many at a time, so that most prompts begin as the one before, which is cached.
    assert len(set(left_out)) <= 5
    assert len(set(first_turns)) <= 6


def test_a_question_that_does_not_fit_is_an_error() -> None:
    task = make_task(with_template(CHATML), exchanges(3), "boats " * 300, context=300)
    with pytest.raises(ContextOverflowError):
        prompt_for(task, Settings.of(overflow="error"))


MASONS = ["Abel", "Baker", "Clark", "Dyer", "Eaton", "Fisher", "Glover"]
MILLS = ["Upton", "Weston", "Norton", "Sutton", "Aston", "Milton"]
TOWN = [
    Document(
        "harbour.txt",
        "\n\n".join(
            f"The quay number {n} was built by mason {name} in 18{n:02}. Ships of the {name} line"
            f" tie up there when the tide is high, and the keeper of quay {n} writes down their"
            " names."
            for n, name in enumerate(MASONS)
        ),
    ),
    Document(
        "mill.txt",
        "\n\n".join(
            f"The mill of {name} grinds rye and oats for the bakers of street {n}. Its wheel turns"
            f" in the brook, and the miller of {name} has {n} sons who carry the sacks to market."
            for n, name in enumerate(MILLS)
        ),
    ),
]
ONE_SHORT_PASSAGE = {"passages": 1, "passage_tokens": 40, "overflow": "retrieve"}


def town_task(tokenizer: Tokenizer, turns: list[Turn], question: str, context: int = 900) -> Task:
    return Task(preset(), TOWN, question, tokenizer, context, 8, turns=turns)


def test_passages_precede_their_questions_and_are_read_once() -> None:
    tokenizer = with_template(CHATML)
    turns: list[Turn] = []
    previous_ids: list[int] = []
    for question, new_passages in (
        ("Who built quay number 3, mason Dyer?", 1),
        ("And when was it?", 0),  # which is about the same passage
        ("Really?", 0),
        ("The mill of Norton, does it grind rye?", 1),
    ):
        prompt = fit(town_task(tokenizer, turns, question), **ONE_SHORT_PASSAGE)
        assert prompt.ids[: len(previous_ids)] == previous_ids

        selection = prompt.selection
        assert selection is not None
        assert len(selection.new) == new_passages
        texts = [
            TOWN[excerpt.document].text[excerpt.start : excerpt.end].strip()
            for excerpt in selection.excerpts
        ]
        assert len(texts) == len(set(texts))
        assert [document.text.strip() for document in prompt.documents] == texts
        assert reference_texts(prompt, tokenizer) == texts

        turns += [Turn("user", question, selection.new), Turn("assistant", "Yes.")]
        previous_ids = prompt.ids


def test_the_last_two_questions_count_for_retrieval() -> None:
    turns = turns_of([("user", "One?"), *MESSAGES])
    assert earlier_questions(turns) == ["When is high tide?", "And low tide?"]


def test_earlier_questions_add_a_share_of_their_scores() -> None:
    index = index_of(TOWN, Cutting(40))
    earlier_scores = index.scores("Abel") + index.scores("Glover")
    expected = index.scores("miller") + EARLIER * earlier_scores

    ranked = index.rank("miller", earlier=["Abel", "Glover"])

    descending = sorted(expected[expected > 0], reverse=True)
    assert [score for _, score in ranked] == pytest.approx(descending)


def test_turns_with_passages_are_left_out_if_the_context_is_full() -> None:
    tokenizer = with_template(CHATML)
    turns: list[Turn] = []
    left_out = []
    for n, name in enumerate(MASONS):
        question = f"Did {name} build number {n} for the {name} line, or was it not {name}?"
        task = town_task(tokenizer, turns, question, 700)
        prompt = fit(task, **ONE_SHORT_PASSAGE)
        assert len(prompt.ids) <= task.room
        assert f"mason {name}" in prompt.text
        assert prompt.selection is not None
        turns += [Turn("user", question, prompt.selection.new), Turn("assistant", "A mason.")]
        left_out.append(prompt.left_out)

    assert left_out[0] == 0
    assert left_out == sorted(left_out)
    assert 2 < left_out[-1] < 7


def test_documents_that_fit_precede_all_turns() -> None:
    tokenizer = with_template(CHATML)
    turns = [Turn("user", "One?", (Excerpt(0, 0, 9),)), Turn("assistant", "A.")]
    prompt = fit(town_task(tokenizer, turns, "Two?", 10_000))
    assert prompt.selection is None
    assert prompt.documents == tuple(TOWN)
    assert prompt.text.startswith("<|im_start|>user\nharbour.txt\nThe quay")
    assert prompt.text.endswith("user\nTwo?<|im_end|>\n<|im_start|>assistant\n")


def test_documents_are_not_cut_in_a_conversation() -> None:
    with pytest.raises(UsageError, match="no room for the conversation"):
        for_task("chat", Settings.of(overflow="truncate"), preset())
