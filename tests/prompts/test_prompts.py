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

TOKENIZER = Tokenizer(FakeBackend())  # one token per letter


def user_preset(home: Path, name: str, text: str) -> None:
    (home / "config" / "presets").mkdir(parents=True, exist_ok=True)
    (home / "config" / "presets" / f"{name}.yaml").write_text(text)


def test_shipped_presets_are_those_of_the_training() -> None:
    from tests.tools.training.tasks import ASK, SUMMARIZE

    assert set(preset_files()) >= {"summarize", "ask"}
    assert load_preset("summarize").template == f"{{documents}}\n\n{SUMMARIZE}"
    instruction, question = ASK.split("\n")
    assert load_preset("ask").template == (
        f"{{documents}}\n\n{instruction} If the text does not tell, say so.\n{question}"
    )


@pytest.mark.parametrize("name", ["ask", "chat", "summarize"])
def test_shipped_presets_name_their_command_and_figures(name: str) -> None:
    provenance = load_preset(name).provenance
    assert provenance["command"].startswith("ngt tune --replay")
    assert len(provenance["data_sha256"]) == 64
    splits = {figure.split(",")[0] for figure in provenance["figures"]}
    assert splits == {"odd ids", "even ids"}


def test_a_users_preset_hides_a_shipped_one(own_home: Path) -> None:
    user_preset(own_home, "summarize", "template: 'Short: {documents}'\nnum_draft: 8\n")
    preset = load_preset("summarize")
    assert preset.template == "Short: {documents}"
    assert preset.settings.values == {"num_draft": 8}


def test_every_layer_overrides_the_next(
    own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = Layer("flag", {"n": 14})
    monkeypatch.setenv("NGT_N", "12")
    monkeypatch.setenv("NGT_LP", "6")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ngt.yaml").write_text("n: 11\nlp: 5\nnum_draft: 6\n")
    user_config = own_home / "config" / "config.yaml"
    user_config.parent.mkdir(parents=True)
    user_config.write_text("n: 10\nlp: 4\nnum_draft: 5\nseed: 2\n")
    preset = Layer("preset", {"n": 9, "lp": 2, "num_draft": 4, "seed": 1, "top_k": 1})

    merged = merge([flags, *environment_and_file_layers(), preset])

    settings = merged.settings
    assert settings.drafting.n == 14
    assert settings.drafting.lp == 6
    assert settings.drafting.num_draft == 6
    assert settings.answer.seed == 2
    assert settings.answer.top_k == 1
    assert settings.answer.min_p == 0.0
    assert merged.origins["n"] == "flag"
    assert merged.origins["lp"] == "environment"
    assert merged.origins["num_draft"] == "ngt.yaml"
    assert merged.origins["seed"] == str(user_config)
    assert merged.origins["top_k"] == "preset"
    assert merged.origins["min_p"] == "default"


def build_prompt(documents: list[Document], question: str) -> Prompt:
    return Task(load_preset("ask"), documents, question, TOKENIZER, 400, 40).build(documents)


def test_braces_in_a_document_are_text() -> None:
    text = "Use {question} and {documents} with {0} %s."
    prompt = build_prompt([Document("a", text)], "Why {text}?")
    assert text in prompt.text
    assert "Why {text}?" in prompt.text


def test_documents_precede_the_question_and_have_names() -> None:
    documents = [Document("one.txt", "First."), Document("two.txt", "Second.")]
    text = build_prompt(documents, "Which?").text
    assert text.startswith("one.txt\nFirst.\n\ntwo.txt\nSecond.\n\n")
    assert "Which?" in text
    assert "one.txt" not in build_prompt(documents[:1], "Which?").text


def fit(
    preset: Preset | str,
    documents: list[Document],
    question: str = "",
    tokenizer: Tokenizer = TOKENIZER,
    *,
    context: int = 400,
    max_tokens: int = 40,
    overflow: str = "auto",
) -> Prompt:
    """Fit the prompt of a preset, which may be named, to a context."""
    if isinstance(preset, str):
        preset = load_preset(preset)
    task = Task(preset, documents, question, tokenizer, context, max_tokens)
    return fit_prompt(task, overflow)


def test_a_prompt_that_does_not_fit_is_an_error_with_both_numbers() -> None:
    with pytest.raises(ContextOverflowError) as caught:
        fit("summarize", [Document("a", "word " * 100)], context=200, max_tokens=50)
    assert "200" not in str(caught.value)
    assert "199" in str(caught.value)
    assert "--overflow truncate" in caught.value.hint
    assert caught.value.exit_code == 5


def test_truncation_cuts_the_longest_documents_and_never_the_question() -> None:
    documents = [Document("long", "word " * 200), Document("short", "Tiny text.")]
    prompt = fit("ask", documents, "Which one?", overflow="truncate")
    assert "Which one?" in prompt.text
    assert "Tiny text." in prompt.text
    assert len(prompt.ids) <= 400 - 40
    (cut,) = prompt.cuts
    assert cut.name == "long"
    assert cut.tokens == 999
    assert cut.kept > 200


@given(st.lists(st.integers(0, 60), min_size=1, max_size=6), st.integers(0, 200))
def test_level_cuts_to_one_length(lengths: list[int], total: int) -> None:
    cut_lengths = level(lengths, total)
    if sum(lengths) <= total:
        assert cut_lengths == lengths
    else:
        max_length = max(cut_lengths)
        assert cut_lengths == [min(length, max_length) for length in lengths]
        assert total - len(lengths) < sum(cut_lengths) <= total


@pytest.mark.parametrize(
    ("text", "stop"),
    [
        ("###", ("###",)),
        ("---", ("---",)),
        ("[a, b]", ("a", "b")),
        ("7", ("7",)),
    ],
)
def test_stop_strings_in_the_environment_are_text_or_a_list(
    text: str, stop: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NGT_STOP", text)
    assert merge(environment_and_file_layers()).settings.answer.stop == stop


def test_environment_variables_have_the_type_of_their_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NGT_TEMPERATURE", "1e-1")
    monkeypatch.setenv("NGT_LEARN_OUTPUT", "true")
    settings = merge(environment_and_file_layers()).settings
    assert settings.answer.temperature == 0.1
    assert settings.drafting.learn_output is True


class CountingBackend(FakeBackend):
    """Counts the letters that it encodes."""

    letters = 0

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        self.letters += len(text)
        return super().encode(text, add_special_tokens)


LONG_DOCUMENT = Document("long", "word " * 600_000)


def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded() -> None:
    backend = CountingBackend()
    message = r"more than \d+ tokens, the model takes at most 399"
    with pytest.raises(ContextOverflowError, match=message):
        fit("summarize", [LONG_DOCUMENT], tokenizer=Tokenizer(backend))
    assert backend.letters < 200_000


def test_cutting_encodes_only_the_beginning() -> None:
    backend = CountingBackend()
    prompt = fit(
        "ask",
        [LONG_DOCUMENT, Document("short", "Tiny text."), LONG_DOCUMENT],
        "Which?",
        Tokenizer(backend),
        context=4000,
        max_tokens=100,
        overflow="truncate",
    )
    assert 3890 < len(prompt.ids) <= 3900
    assert backend.letters < 11 * 3900
    assert LONG_DOCUMENT.text.startswith(prompt.documents[0].text)

    assert len(prompt.cuts) == 2
    for cut in prompt.cuts:
        assert cut.name == "long"
        assert cut.tokens is None  # which were not counted
        assert cut.characters == 2_999_999
    message = next(iter(cut_words(prompt.cuts)))
    first = f"{prompt.cuts[0].kept} tokens, 0.06% of its text,"
    assert message == f"long: cut to its first {first} to fit"


def test_counting_long_texts_shows_progress_and_can_be_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fitting, "_INTERVAL_S", 0.0)
    statuses: list[str] = []

    def interrupt_at_the_second(status: str) -> None:
        statuses.append(status)
        if len(statuses) == 2:
            raise KeyboardInterrupt

    reporter = RecordingReporter()
    monkeypatch.setattr(reporter, "status", interrupt_at_the_second)
    with pytest.raises(KeyboardInterrupt), reporting_to(reporter):
        fit("summarize", [LONG_DOCUMENT], context=500_000)
    assert statuses == ["Reading 65k of 3.0M tokens …", "Reading 131k of 3.0M tokens …"]


class RecordingTokenizer(Tokenizer):
    """Records the texts that it encodes."""

    def __init__(self, backend: Any) -> None:
        super().__init__(backend)
        self.encoded: list[str] = []

    def locate(self, text: str, *arguments: Any) -> Any:
        self.encoded.append(text)
        return super().locate(text, *arguments)


def test_counting_stops_at_the_limit() -> None:
    documents = [Document(f"{i}.txt", f"Text {i} of a hundred thousand.") for i in range(20_000)]
    tokenizer = RecordingTokenizer(TOKENIZER.backend)
    with pytest.raises(ContextOverflowError, match="more than 36864 tokens"):
        fit("summarize", documents, tokenizer=tokenizer, context=500)
    assert tokenizer.encoded[0] == documents[0].text
    assert len(tokenizer.encoded) < len(documents) // 2


def test_many_cuts_are_summarized() -> None:
    cuts = [Cut(f"{i}.txt", 50, 10, 200, 40) for i in range(25)]
    messages = list(cut_words(cuts))
    assert messages[0] == "0.txt: cut to its first 10 of 50 tokens to fit"
    assert len(messages) == 21
    assert messages[-1] == "cut to fit: 5 more documents"


@pytest.mark.parametrize(
    ("count", "question", "template"),
    [
        (1, "Why? " * 90, "{documents}{question}"),
        (90, "", "{documents}{question}"),
        (150, "", "{documents}"),
        (1, "", "x" * 400 + "{documents}"),
    ],
)
def test_no_room_for_documents_is_an_error(count: int, question: str, template: str) -> None:
    preset = Preset("mine", Path("mine.yaml"), template)
    documents = [Document(f"{i:03}.txt", "Some text here.") for i in range(count)]
    with pytest.raises(ContextOverflowError, match="of 400 tokens the answer leaves 360") as caught:
        fit(preset, documents, question, overflow="truncate")
    assert (f"{count} names" in str(caught.value)) == (count > 1)
