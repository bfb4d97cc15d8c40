"""Presets, settings and their origins, and prompts that fit or are cut."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngtcli.config import Layer, environment_and_file_layers, merge
from ngtcli.documents.load import Document
from ngtcli.errors import ContextOverflowError
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.prompts import fitting
from ngtcli.prompts.build import Prompt, Task
from ngtcli.prompts.fitting import cut_words, fit_prompt, level
from ngtcli.prompts.preset import Preset, load_preset, preset_files
from ngtcli.prompts.reports import Cut
from ngtcli.system.reporting import reporting_to
from tests.support.helpers import FakeBackend
from tests.support.recording_reporter import RecordingReporter

TOKENIZER = Tokenizer(FakeBackend())
ROOM = {"context": 400, "answer": 40, "overflow": "truncate"}


def user_preset(home: Path, name: str, text: str) -> None:
    (home / "config" / "presets").mkdir(parents=True, exist_ok=True)
    (home / "config" / "presets" / f"{name}.yaml").write_text(text)


def test_shipped_presets_are_those_of_the_training() -> None:
    from tests.tools.training.tasks import ASK, SUMMARIZE

    assert set(preset_files()) >= {"summarize", "ask"}
    assert load_preset("summarize").template == f"{{documents}}\n\n{SUMMARIZE}"
    trained, told = ASK.split("\n"), "If the text does not tell, say so."
    assert load_preset("ask").template == f"{{documents}}\n\n{trained[0]} {told}\n{trained[1]}"


@pytest.mark.parametrize("name", ["ask", "chat", "summarize"])
def test_shipped_presets_name_their_command_and_figures(name: str) -> None:
    origin = load_preset(name).provenance
    assert origin["command"].startswith("ngt tune --replay")
    assert len(origin["data_sha256"]) == 64
    assert {"odd ids", "even ids"} == {name.split(",")[0] for name in origin["figures"]}


def test_a_users_preset_hides_a_shipped_one(own_home: Path) -> None:
    user_preset(own_home, "summarize", "template: 'Short: {documents}'\nnum_draft: 8\n")
    assert load_preset("summarize").template == "Short: {documents}"
    assert load_preset("summarize").settings.values == {"num_draft": 8}


def test_every_layer_overrides_the_next(own_home, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (own_home / "config").mkdir(parents=True)
    preset = Layer("preset", {"n": 9, "lp": 2, "num_draft": 4, "seed": 1, "top_k": 1})
    (own_home / "config" / "config.yaml").write_text("n: 10\nlp: 4\nnum_draft: 5\nseed: 2\n")
    (tmp_path / "ngt.yaml").write_text("n: 11\nlp: 5\nnum_draft: 6\n")
    monkeypatch.setenv("NGT_N", "12")
    monkeypatch.setenv("NGT_LP", "6")
    merged = merge([Layer("flag", {"n": 14}), *environment_and_file_layers(), preset])
    s = merged.settings
    assert (
        s.drafting.n,
        s.drafting.lp,
        s.drafting.num_draft,
        s.answer.seed,
        s.answer.top_k,
        s.answer.min_p,
    ) == (14, 6, 6, 2, 1, 0.0)
    origins = [merged.origins[k] for k in ("n", "lp", "num_draft", "seed", "top_k", "min_p")]
    assert origins == [
        "flag",
        "environment",
        "ngt.yaml",
        str(own_home / "config" / "config.yaml"),
        "preset",
        "default",
    ]


def built(documents: list[Document], question: str, tokenizer: Tokenizer = TOKENIZER) -> Prompt:
    return Task(load_preset("ask"), documents, question, tokenizer, 400, 40).build(documents)


def test_braces_in_a_document_are_text() -> None:
    text = "Use {question} and {documents} with {0} %s."
    prompt = built([Document("a", text)], "Why {text}?")
    assert text in prompt.text
    assert "Why {text}?" in prompt.text


def test_documents_precede_the_question_and_have_names() -> None:
    documents = [Document("one.txt", "First."), Document("two.txt", "Second.")]
    text = built(documents, "Which?").text
    assert text.startswith("one.txt\nFirst.\n\ntwo.txt\nSecond.\n\n")
    assert "Which?" in text
    assert "one.txt" not in built(documents[:1], "Which?").text


def fitted(
    preset: Preset,
    documents: list[Document],
    question: str,
    tokenizer: Tokenizer,
    *,
    context: int,
    answer: int,
    overflow: str = "auto",
) -> Prompt:
    task = Task(preset, documents, question, tokenizer, context, answer)
    return fit_prompt(task, overflow)


def test_a_prompt_that_does_not_fit_is_an_error_with_both_numbers() -> None:
    preset = load_preset("summarize")
    with pytest.raises(ContextOverflowError) as caught:
        fitted(preset, [Document("a", "word " * 100)], "", TOKENIZER, context=200, answer=50)
    assert "200" not in str(caught.value)
    assert "199" in str(caught.value)
    assert "--overflow truncate" in caught.value.hint
    assert caught.value.exit_code == 5


def test_truncation_cuts_the_longest_documents_and_never_the_question() -> None:
    preset = load_preset("ask")
    documents = [Document("long", "word " * 200), Document("short", "Tiny text.")]
    prompt = fitted(preset, documents, "Which one?", TOKENIZER, **ROOM)
    assert "Which one?" in prompt.text
    assert "Tiny text." in prompt.text
    assert len(prompt.ids) <= 400 - 40
    assert [(c.name, c.tokens) for c in prompt.cuts] == [("long", 999)]
    assert prompt.cuts[0].kept > 200


@given(st.lists(st.integers(0, 60), min_size=1, max_size=6), st.integers(0, 200))
def test_level_cuts_to_one_length(lengths: list[int], total: int) -> None:
    kept = level(lengths, total)
    assert all(k <= length for k, length in zip(kept, lengths, strict=True))
    assert sum(kept) <= max(total, 0) or sum(lengths) <= total
    if sum(lengths) <= total:
        assert kept == lengths
    else:
        assert total - sum(kept) < len(lengths)
        height = max(kept)
        assert all(k == min(length, height) for k, length in zip(kept, lengths, strict=True))


def test_stop_strings_in_the_environment_are_text_or_a_list(monkeypatch) -> None:
    for text, stop in (("###", ("###",)), ("---", ("---",)), ("[a, b]", ("a", "b")), ("7", ("7",))):
        monkeypatch.setenv("NGT_STOP", text)
        assert merge(environment_and_file_layers()).settings.answer.stop == stop
    monkeypatch.setenv("NGT_TEMPERATURE", "1e-1")
    monkeypatch.setenv("NGT_LEARN_OUTPUT", "true")
    settings = merge(environment_and_file_layers()).settings
    assert settings.answer.temperature == 0.1
    assert settings.drafting.learn_output


class Counting(FakeBackend):
    """Counts the letters that it is given."""

    letters = 0

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        self.letters += len(text)
        return super().encode(text, add_special_tokens)


LONG_DOCUMENT = Document("long", "word " * 600_000)


def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded() -> None:
    backend = Counting()
    with pytest.raises(
        ContextOverflowError, match=r"more than \d+ tokens, the model takes at most 399"
    ):
        tokenizer = Tokenizer(backend)
        fitted(load_preset("summarize"), [LONG_DOCUMENT], "", tokenizer, context=400, answer=40)
    assert backend.letters < 200_000


def test_cutting_encodes_only_the_beginning() -> None:
    backend = Counting()
    documents = [LONG_DOCUMENT, Document("short", "Tiny text."), LONG_DOCUMENT]
    room = {"context": 4000, "answer": 100, "overflow": "truncate"}
    prompt = fitted(load_preset("ask"), documents, "Which?", Tokenizer(backend), **room)
    assert 3890 < len(prompt.ids) <= 3900
    assert backend.letters < 11 * 3900
    assert [(c.name, c.tokens, c.characters) for c in prompt.cuts] == [
        ("long", None, 2_999_999)
    ] * 2
    words = list(cut_words(prompt.cuts))
    kept = f"{prompt.cuts[0].kept} tokens, 0.06% of its text,"
    assert words[0] == f"long: cut to its first {kept} to fit"
    assert prompt.documents[0].text == LONG_DOCUMENT.text[: len(prompt.documents[0].text)]


def test_counting_long_texts_shows_progress_and_can_be_interrupted(monkeypatch) -> None:
    monkeypatch.setattr(fitting, "_INTERVAL_S", 0.0)
    told: list[str] = []

    def stop(words: str) -> None:
        told.append(words)
        if len(told) == 2:
            raise KeyboardInterrupt

    reported = RecordingReporter()
    monkeypatch.setattr(reported, "status", stop)
    with pytest.raises(KeyboardInterrupt), reporting_to(reported):
        fitted(load_preset("summarize"), [LONG_DOCUMENT], "", TOKENIZER, context=500_000, answer=40)
    assert told == ["Reading 65k of 3.0M tokens …", "Reading 131k of 3.0M tokens …"]


def test_counting_stops_at_the_limit(monkeypatch) -> None:
    many = [Document(f"{i}.txt", f"Text {i} of a hundred thousand.") for i in range(20_000)]
    counted: list[str] = []

    class Counting(Tokenizer):
        def locate(self, text: str, *more: Any) -> Any:
            counted.append(text)
            return super().locate(text, *more)

    with pytest.raises(ContextOverflowError, match="more than 36864 tokens"):
        fitted(
            load_preset("summarize"), many, "", Counting(TOKENIZER.backend), context=500, answer=40
        )
    assert 0 < len(counted) < len(many) // 2
    assert counted[0] == many[0].text


def test_many_cuts_are_summarized() -> None:
    cuts = [Cut(f"{i}.txt", 50, 10, 200, 40) for i in range(25)]
    words = list(cut_words(cuts))
    assert words[0] == "0.txt: cut to its first 10 of 50 tokens to fit"
    assert len(words) == 21
    assert words[-1] == "cut to fit: 5 more documents"


@pytest.mark.parametrize(
    ("documents", "question", "template"),
    [
        (1, "Why? " * 90, "{documents}{question}"),
        (90, "", "{documents}{question}"),
        (150, "", "{documents}"),
        (1, "", "x" * 400 + "{documents}"),
    ],
)
def test_no_room_for_documents_is_an_error(documents: int, question: str, template: str) -> None:
    preset = Preset("mine", Path("mine.yaml"), template)
    texts = [Document(f"{i:03}.txt", "Some text here.") for i in range(documents)]
    with pytest.raises(ContextOverflowError, match="of 400 tokens the answer leaves 360") as caught:
        fitted(preset, texts, question, TOKENIZER, **ROOM)
    assert (f"{documents} names" in str(caught.value)) == (documents > 1)
