"""Reasoning is separated from the answer in every format, drafted too, and shown only on demand."""

import json
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LogitsProcessor

from ngtcli.config import Settings
from ngtcli.decoding.limits import Limits
from ngtcli.decoding.reasoning import FORMATS, StreamPart, TextStream, Thinking
from ngtcli.documents.load import Document
from ngtcli.drafting.drafter import Context, DraftSettings
from ngtcli.drafting.steps import Token
from ngtcli.models.tokenizer import Detokenizer, Tokenizer
from ngtcli.prompts.build import Task
from ngtcli.prompts.chat import Chat, render
from ngtcli.prompts.preset import Preset
from ngtcli.prompts.thinking import switched, thinking_of
from tests.support.batches import auto_drafts, decode_batch, separate_drafts
from tests.support.helpers import END, FakeBackend, examples, in_terminal, ngt
from tests.support.runs import Run
from tests.support.thinking_models import CONTEXT, TEMPLATES, tokenizer, write_model
from tests.support.tiny_models import GREEDY, make_drafter, make_target, prompts
from tests.support.warm import Warm

SENTENCE = "The ferry leaves the harbour at nine."
PRESET = Preset("message", Path(), "{documents}")
REASONING = f"{SENTENCE} So it is nine."


# --- the stream, compared with a search of the complete text ---


class FixedTokens:
    """A tokenizer whose token i decodes to the i-th text; control tokens decode to nothing."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.texts[i] for i in ids)

    decode_complete = decode


def stream_of(
    texts: Sequence[str], thinking: Thinking, max_reasoning: int, stop: Sequence[str] = ()
) -> TextStream:
    detokenizer = Detokenizer(FixedTokens(texts))  # type: ignore[arg-type]
    return TextStream(detokenizer, stop, thinking, max_reasoning)


def thinking_with(
    part: StreamPart,
    *,
    tokens: Mapping[int, StreamPart] | None = None,
    texts: Mapping[str, StreamPart] | None = None,
) -> Thinking:
    """Marks after a prompt that ends in `part`; what closes reasoning plays no role."""
    return Thinking(tokens or {}, texts or {}, (0,), part, is_closed=False, max_tokens=9)


def split(texts: Sequence[str], thinking: Thinking, stop: Sequence[str] = ()) -> tuple[str, str]:
    """Push tokens with these texts through a stream; return reasoning and answer."""
    stream = stream_of(texts, thinking, 10**6, stop)
    tokens = []
    for i in range(len(texts)):
        reasoning, answer = stream.push(i)
        tokens.append(Token(i, answer, thought=reasoning))
        if stream.stopped:
            break
    last_reasoning, last_answer = stream.flush()

    reasoning_tokens = [token for token in tokens if token.thought is not None]
    with_answer = [token for token in reasoning_tokens if token.text]
    assert stream.reasoning_tokens == len(reasoning_tokens) - len(with_answer)
    assert stream.reasoning_tokens + stream.answer_tokens == len(tokens)

    reasoning = "".join(token.thought or "" for token in tokens) + (last_reasoning or "")
    answer = "".join(token.text for token in tokens) + last_answer
    return reasoning.strip(), answer


def cut(text: str, positions: Sequence[int], marks: Sequence[str] = ()) -> list[str]:
    """Cut a text at positions and at both ends of each mark, but never inside a mark."""
    ends = {position % (len(text) + 1) for position in positions}
    for mark in marks:
        for match in re.finditer(re.escape(mark), text):
            ends -= set(range(match.start() + 1, match.end()))
            ends |= {match.start(), match.end()}

    borders = sorted(ends | {0, len(text)})
    return [text[start:end] for start, end in pairwise(borders)]


def mark_tokens(
    texts: Sequence[str], marks: Mapping[str, StreamPart]
) -> tuple[dict[int, StreamPart], list[str]]:
    """Make each mark a control token: its part by token id, and texts in which marks are empty."""
    tokens = {i: marks[text] for i, text in enumerate(texts) if text in marks}
    return tokens, ["" if text in marks else text for text in texts]


WORDS = st.text("a< \n/think>", max_size=12).filter(lambda text: "think>" not in text)
BORDERS = st.lists(st.integers(0, 200), max_size=40)
# Who writes the mark that opens the reasoning; "none": there is no reasoning.
OPENED_BY = st.sampled_from(["model", "prompt", "none"])
THINK_TAGS = {"<think>": StreamPart.REASONING, "</think>": StreamPart.ANSWER}


@given(WORDS, WORDS, OPENED_BY, BORDERS, st.booleans(), st.sampled_from(["", "a<", " \n"]))
def test_tags_split_a_stream_as_a_search_of_the_complete_text(
    reasoning: str, answer: str, opened_by: str, borders: list[int], are_tokens: bool, stop: str
) -> None:
    opening = "\n<think>" if opened_by == "model" else ""
    text = answer if opened_by == "none" else f"{opening}{reasoning}</think>{answer}"
    part = StreamPart.REASONING if opened_by == "prompt" else StreamPart.ANSWER
    if are_tokens:
        tokens, texts = mark_tokens(cut(text, borders, list(THINK_TAGS)), THINK_TAGS)
        thinking = thinking_with(part, tokens=tokens)
    else:
        texts = cut(text, borders)
        thinking = thinking_with(part, texts=THINK_TAGS)

    shown = split(texts, thinking, stop=[stop])

    def until_stop(text: str) -> str:
        return text.partition(stop)[0] if stop else text

    match = re.fullmatch(r"\s*(?:<think>)?(.*?)</think>(.*)", text, re.DOTALL)
    if match:
        assert shown == (match[1].strip(), until_stop(match[2].lstrip()))
    elif until_stop(answer).strip():
        assert shown == ("", until_stop(answer))
    else:
        assert shown == ("", "")


MESSAGES = st.lists(
    st.tuples(st.sampled_from(["analysis", "commentary", "final"]), st.text("ab \n", max_size=8)),
    min_size=1,
    max_size=4,
)


@given(MESSAGES, BORDERS)
def test_channels_split_a_stream_as_a_search_of_the_complete_text(
    messages: list[tuple[str, str]], borders: list[int]
) -> None:
    harmony_marks = FORMATS[0].marks
    text = "<|end|><|start|>assistant".join(
        f"<|channel|>{channel}<|message|>{message}" for channel, message in messages
    )
    tokens, texts = mark_tokens(cut(text, borders, list(harmony_marks)), harmony_marks)

    reasoning, answer = split(texts, thinking_with(StreamPart.HEADER, tokens=tokens))

    matches = re.findall(r"<\|channel\|>(\w+)<\|message\|>([^<]*)", text)
    thoughts = [message for channel, message in matches if channel != "final"]
    answers = [message for channel, message in matches if channel == "final"]
    assert reasoning.split() == " ".join(thoughts).split()
    assert answer.split() == "".join(answers).split()


def test_reasoning_may_quote_a_mark() -> None:
    texts = ["", "the tag ", "</think>", " ends it"]
    closed_by_first_token = thinking_with(StreamPart.REASONING, tokens={0: StreamPart.ANSWER})
    stream = stream_of(texts, closed_by_first_token, max_reasoning=9)

    reasoning = [stream.push(token)[0] for token in (1, 2, 3, 0)]

    assert reasoning == ["the tag", " </think>", " ends it", "\n\n"]


def test_a_model_that_breaks_its_format_still_answers() -> None:
    thinking = thinking_with(StreamPart.HEADER, tokens={9: StreamPart.HEADER})
    assert split(["Nine", " o'clock"], thinking) == ("", "Nine o'clock")


def test_an_answer_without_tags_is_shown_at_once() -> None:
    stream = stream_of(
        ["Nine"], thinking_with(StreamPart.ANSWER, texts=THINK_TAGS), max_reasoning=9
    )
    assert stream.push(0) == (None, "Nine")


# --- the formats of templates ---


@pytest.mark.parametrize(
    ("kind", "part", "closing"),
    [
        ("qwen", StreamPart.ANSWER, "\n</think>\n\n"),
        ("deepseek", StreamPart.REASONING, "\n</think>\n\n"),
        ("harmony", StreamPart.HEADER, "<|end|><|start|>assistant<|channel|>final<|message|>"),
        ("granite", StreamPart.ANSWER, "\nHere is my response:\n\n"),
    ],
)
def test_the_template_names_the_format(kind: str, part: str, closing: str) -> None:
    backend = tokenizer(TEMPLATES[kind])
    thinking = thinking_of(Settings.of(max_thinking=7), Tokenizer(backend))
    assert thinking is not None
    assert thinking.part == part
    assert not thinking.is_closed
    assert thinking.max_tokens == 7
    assert backend.decode(thinking.closing) == closing
    assert thinking.extra_tokens == 7 + 2 * len(thinking.closing)

    token_marks = backend.convert_ids_to_tokens(sorted(thinking.tokens))
    known_marks = {mark for format_ in FORMATS for mark in format_.marks}
    assert {*token_marks, *thinking.texts} <= known_marks


def test_models_without_reasoning_are_unchanged() -> None:
    for template in (None, "{% for m in messages %}{{ m.content }}{% endfor %}"):
        assert thinking_of(Settings(), Tokenizer(tokenizer(template))) is None
    assert thinking_of(Settings(), Tokenizer(FakeBackend())) is None


OPENED = "<think>\n"
EMPTY = "<think>\n\n</think>\n\n"
FINAL_CHANNEL = "<|end|><|start|>assistant<|channel|>final<|message|>"
# The variable of a template that switches reasoning on and off, where there is one.
SWITCHES = {"qwen": "enable_thinking", "v3.1": "thinking", "granite": "thinking"}


@pytest.mark.parametrize(
    ("kind", "think", "end", "part"),
    [
        ("qwen", "auto", "<|im_start|>assistant\n", StreamPart.ANSWER),
        ("qwen", "on", "<|im_start|>assistant\n", StreamPart.ANSWER),
        ("qwen", "off", f"<|im_start|>assistant\n{EMPTY}", StreamPart.ANSWER),
        ("deepseek", "on", f"<|im_end|>{OPENED}", StreamPart.REASONING),
        ("deepseek", "off", f"<|im_end|>{EMPTY}", StreamPart.ANSWER),
        ("v3.1", "on", f"<|im_end|>{OPENED.strip()}", StreamPart.REASONING),
        ("v3.1", "off", "<|im_end|></think>", StreamPart.ANSWER),
        ("old r1", "on", f"<|im_end|>{OPENED}", StreamPart.REASONING),
        ("old r1", "off", f"<|im_end|>{EMPTY}", StreamPart.ANSWER),
        ("harmony", "auto", "<|start|>assistant", StreamPart.HEADER),
        ("harmony", "on", "assistant<|channel|>analysis<|message|>", StreamPart.REASONING),
        (
            "harmony",
            "off",
            f"assistant<|channel|>analysis<|message|>{FINAL_CHANNEL}",
            StreamPart.ANSWER,
        ),
        ("granite", "on", "'Here is my response:'.\nassistant: ", StreamPart.ANSWER),
        ("granite", "off", "user: 1\nassistant: ", StreamPart.ANSWER),
    ],
)
def test_reasoning_is_switched_by_the_template_or_by_marks_after_it(
    kind: str, think: str, end: str, part: str
) -> None:
    backend = tokenizer(TEMPLATES[kind])
    settings = Settings.of(think=think)
    chat = switched(Tokenizer(backend), Chat.of(settings))
    rendered = render(backend, [("user", "1")], chat)
    thinking = thinking_of(settings, Tokenizer(backend))
    assert rendered.text.endswith(end)
    assert thinking is not None
    assert thinking.part == part
    assert thinking.is_closed == (think == "off")

    # Where the template has a switch, the template alone is the reference.
    if kind in SWITCHES and think != "auto":
        messages = [{"role": "user", "content": "1"}]
        variables = {SWITCHES[kind]: think == "on"}
        assert rendered.text == backend.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **variables
        )


def test_marks_of_reasoning_are_control_tokens() -> None:
    tokens = Tokenizer(tokenizer(TEMPLATES["old r1"]))
    document = Document("a", "<think>")  # which stays text
    task = Task(PRESET, [document], "", tokens, 500, 9, chat=Chat(think="off"))

    control_texts = [tokens.control.texts.get(i, "") for i in task.build(task.documents).ids]

    assert [text for text in control_texts if "think" in text] == ["<think>", "</think>"]


def test_think_is_refused_where_the_template_does_not_support_it(folder: Path) -> None:
    done = ngt("ask", "When?", "-d", str(folder / "a.txt"), "--think", "off")
    assert done.returncode == 2
    assert done.stderr.decode() == (
        "ngt: --think off: the model's chat template does not support reasoning\n"
        "Leave --think out.\n"
    )


def test_think_and_the_variable_of_the_template_are_mutually_exclusive(folder: Path) -> None:
    variable = ("--set", "template_arg=enable_thinking=false")
    done = ngt(*question(folder, "qwen"), "--think", "on", *variable)
    assert done.returncode == 2
    assert done.stderr.decode() == (
        "ngt: --think and --set template_arg=enable_thinking are mutually exclusive\n"
        "Give one of them.\n"
    )


def test_think_off_in_a_configuration_file_means_off(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "ngt.yaml").write_text("think: off\n")  # which YAML reads as false
    done = ngt(*question(folder, "qwen"), "--dry-run", cwd=tmp_path)
    assert done.stdout.decode().endswith(f"{EMPTY.rstrip()}\n\n\n"), done


# --- tokens, compared with `generate` of `transformers` ---

# Marks among the tokens of a random model, so that it opens and closes reasoning by chance.
RANDOM_MARKS = Thinking(
    tokens={40: StreamPart.REASONING, 41: StreamPart.ANSWER, 42: StreamPart.ANSWER},
    texts={},
    closing=(50, 41, 51),
    part=StreamPart.REASONING,
    is_closed=False,
    max_tokens=12,
)


class CloseReasoning(LogitsProcessor):
    """Force the closing tokens once reasoning has reached its limit."""

    def __init__(self, prompt_tokens: int, max_reasoning: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.max_reasoning = max_reasoning

    def __call__(self, ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        output = ids[0, self.prompt_tokens :].tolist()
        forced = forced_token(output, self.max_reasoning)
        if forced is None:
            return logits
        logits = torch.full_like(logits, -torch.inf)
        logits[0, forced] = 0.0
        return logits


def forced_token(output: Sequence[int], max_reasoning: int) -> int | None:
    """The closing token that must come next, or None, counted from the first token on."""
    part = StreamPart.REASONING
    reasoning_tokens = 0
    closing_tokens = 0  # how many of the closing tokens have been written
    answer_begun = False
    for token in output:
        if closing_tokens or (part == StreamPart.REASONING and reasoning_tokens >= max_reasoning):
            closing_tokens += 1
        is_mark = token in RANDOM_MARKS.tokens and not answer_begun
        if is_mark:
            part = RANDOM_MARKS.tokens[token]
        if part == StreamPart.REASONING or is_mark or closing_tokens:
            reasoning_tokens += 1
        if part == StreamPart.ANSWER and not is_mark:
            answer_begun = True
        if closing_tokens == len(RANDOM_MARKS.closing):
            closing_tokens = 0
            part = StreamPart.ANSWER

    if closing_tokens or (part == StreamPart.REASONING and reasoning_tokens >= max_reasoning):
        return RANDOM_MARKS.closing[closing_tokens]
    return None


@pytest.mark.search
@pytest.mark.parametrize("max_reasoning", [0, 1, 5, 12])
def test_reasoning_is_closed_at_the_token_of_generate(max_reasoning: int) -> None:
    model = make_target("llama")
    limits = Limits(20, 24, thinking=replace(RANDOM_MARKS, max_tokens=max_reasoning))
    for prompt in prompts(examples(6), seed=1):
        ids = torch.tensor([prompt])
        with torch.no_grad():
            generated = model.hf.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=60,
                pad_token_id=0,
                logits_processor=[CloseReasoning(len(prompt), max_reasoning)],
            )
        expected = generated[0, len(prompt) :].tolist()

        for method in ("none", "trie", "prompt-lookup", "auto", "recycling"):
            run = Run(model, drafter(method), context(prompt), GREEDY, limits).finish()
            assert run.output == expected[: len(run.output)]
            assert run.finish_reason in ("stop", "length")
            if END not in run.output:
                assert (answer_tokens(run) == 20) == (run.finish_reason == "length")


def drafter(method: str) -> Any:
    return make_drafter(method, DraftSettings(learn_output=True))


def context(prompt: Sequence[int]) -> Context:
    return Context(list(prompt), outside=((*prompt, *RANDOM_MARKS.closing),), vocabulary=97)


def answer_tokens(run: Run) -> int:
    return run.statistics.new_tokens - (run.statistics.thought_tokens or 0)


@pytest.mark.search
@pytest.mark.parametrize("sampling", [GREEDY, Settings.of(temperature=0.9, seed=3)])
def test_batched_reasoning_equals_single_reasoning(sampling: Settings) -> None:
    model = make_target("qwen3")
    sequences = prompts(6, seed=5)
    limits = Limits(18, 8, thinking=RANDOM_MARKS)
    single = [
        Run(model, drafter("none"), context(sequence), sampling, limits).finish()
        for sequence in sequences
    ]

    for drafts in (separate_drafts("trie"), separate_drafts("prompt-lookup"), auto_drafts()):
        batched = decode_batch(model, sequences, drafts, 3, sampling, lambda i: limits)
        assert [answer.token_ids for answer in batched] == [run.output for run in single]
        assert [answer.finish_reason for answer in batched] == [run.finish_reason for run in single]

    # Without a sequence whose reasoning was closed, the test would prove little.
    assert any(RANDOM_MARKS.closing[0] in run.output for run in single)


def test_a_full_context_leaves_room_for_an_answer() -> None:
    model = make_target("llama")
    prompt = [*range(10, 60)] * 2  # 100 of the 160 tokens of the context
    limits = Limits(40, 8, thinking=replace(RANDOM_MARKS, max_tokens=10**6))
    run = Run(model, drafter("trie"), context(prompt), GREEDY, limits).finish()
    assert answer_tokens(run) >= 30 or run.finish_reason == "stop"


# --- the commands ---

OUTPUTS = {
    "qwen": f"<think>\n{REASONING}\n</think>\n\n{SENTENCE}",
    "deepseek": f"{REASONING}\n</think>\n\n{SENTENCE}",
    "harmony": f"<|channel|>analysis<|message|>{REASONING}<|end|><|start|>assistant<|channel|>final"
    f"<|message|>{SENTENCE}",
}
QUOTES = "The tag <think> opens a thought, and </think> ends it. <think> again: nothing is lost."
ENDLESS = "So it is nine, or it is not. " * 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models by name, which answer `question`, and of the document it is about."""
    folder = tmp_path_factory.mktemp("thinking")
    (folder / "a.txt").write_text(f"{SENTENCE} The harbour is small.")
    outputs = [(kind, kind, output) for kind, output in OUTPUTS.items()]
    outputs += [
        ("quotes", "qwen", QUOTES),
        ("both", "qwen", f"{OUTPUTS['qwen']} {QUOTES}"),
        ("endless", "qwen", f"<think>\n{ENDLESS}"),
        ("on channels", "harmony", f"<|channel|>analysis<|message|>{ENDLESS}"),
    ]
    for name, kind, output in outputs:
        write_model(folder / name, kind, output, *question(folder))
    return folder


@pytest.fixture(autouse=True)
def skip_measurements(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not measure costs or make background counts for each of these models."""
    monkeypatch.setenv("NGT_CALIBRATE", "no")
    monkeypatch.setenv("NGT_BACKGROUND", "none")


def question(folder: Path, model: str = "") -> tuple[str, ...]:
    """The words of `ngt ask`, to which the models of `folder` have been made to answer."""
    command = ("ask", "When?", "-d", str(folder / "a.txt"))
    return (*command, "-m", str(folder / model)) if model else command


@pytest.mark.parametrize("kind", OUTPUTS)
def test_a_pipe_gets_the_answer_alone(folder: Path, kind: str) -> None:
    done = ngt(*question(folder, kind))
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode() == f"{SENTENCE}\n"

    done = ngt(*question(folder, kind), "--show-thinking")
    assert done.stdout.decode() == f"{REASONING}\n\n{SENTENCE}\n"


@pytest.mark.parametrize("kind", OUTPUTS)
def test_json_separates_reasoning_and_answer(folder: Path, kind: str) -> None:
    body = json.loads(ngt(*question(folder, kind), "--json-tokens").stdout)

    assert body["text"] == SENTENCE
    assert body["thought"] == REASONING
    assert [(span["start"], span["end"]) for span in body["sources"]["spans"]] == [
        (0, len(SENTENCE))
    ]

    reasoning_tokens = [token for token in body["tokens"] if "thought" in token]
    assert body["statistics"]["new_tokens"] == len(body["tokens"])
    assert body["statistics"]["thought_tokens"] == len(reasoning_tokens)
    assert any(token["origin"] != "model" for token in reasoning_tokens)


@pytest.mark.parametrize(("kind", "environ"), [("qwen", {}), ("harmony", {"NO_COLOR": "1"})])
def test_a_terminal_counts_reasoning_tokens_before_the_answer(
    folder: Path, kind: str, environ: dict[str, str]
) -> None:
    screen, code = in_terminal(*question(folder, kind), columns=60, **environ)
    assert code == 0

    lines = re.split(r"\r\x1b\[K|\r\n", screen)
    statuses = [line for line in lines if line.startswith("Thinking")]
    assert all(len(without_colours(status)) < 60 for status in statuses)
    assert re.fullmatch(r"Thinking, \d+ tokens … .*\w.*", without_colours(statuses[-1]))
    assert "\x1b[2m" in statuses[-1]
    assert statuses[-1].endswith("\x1b[0m")

    answer = without_colours(after_status(screen))
    assert answer.startswith(f"{SENTENCE}\r\n")
    assert re.search(r"\d+ tokens, \d+ of reasoning", answer)


def without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def after_status(screen: str) -> str:
    """The part of a terminal's output that follows the last status line."""
    return screen.rpartition("\r\x1b[K")[2]


def test_shown_reasoning_is_dim(folder: Path) -> None:
    screen, _ = in_terminal(*question(folder, "qwen"), "--show-thinking", columns=60)
    paragraph = after_status(screen).partition("\r\n\r\n")[0]
    dim = "".join(re.findall(r"\x1b\[2m([^\x1b]*)\x1b", paragraph))
    assert dim.replace("\r\n", " ") == REASONING

    plain, _ = in_terminal(*question(folder, "qwen"), "--show-thinking", TERM="dumb")
    assert f"{REASONING}\r\n\r\n{SENTENCE}\r\n" in plain


def test_an_answer_may_quote_tags(folder: Path) -> None:
    body = json.loads(ngt(*question(folder, "quotes"), "--json").stdout)
    assert body["text"] == QUOTES
    assert "thought" not in body

    body = json.loads(ngt(*question(folder, "both"), "--json").stdout)
    assert body["text"] == f"{SENTENCE} {QUOTES}"
    assert body["thought"] == REASONING


def test_files_and_pages_separate_answer_and_reasoning(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    file = tmp_path / "answer.txt"

    ngt(*question(folder, "harmony"), "-o", str(file), "--html", str(page))
    assert file.read_text() == f"{SENTENCE}\n"
    html = re.sub(r"</?u>", "", page.read_text())
    details = re.search(r'<details class="thought">.*?<div[^>]*>(.*?)</div>', html, re.DOTALL)
    assert details is not None
    assert details[1].strip() == REASONING
    assert "The ferry" not in html.partition('class="answer"')[0]

    ngt(*question(folder, "harmony"), "-o", str(file), "--show-thinking", "--cite")
    assert file.read_text().startswith(f"{REASONING}\n\n{SENTENCE} [1]\n\n[1] a.txt")


def test_endless_reasoning_is_closed(folder: Path) -> None:
    command = (*question(folder, "endless"), "--set", "max_thinking=30", "--max-tokens", "9")
    closing_tokens = len(tokenizer(TEMPLATES["qwen"]).encode("\n</think>\n\n"))
    token_ids = {}
    for method in ("auto", "none"):
        body = json.loads(ngt(*command, "--json-tokens", "--method", method).stdout)
        assert body["finish_reason"] == "length"
        assert body["text"].strip()
        assert body["statistics"]["thought_tokens"] == 30 + closing_tokens
        assert "or it is not." in body["thought"]
        token_ids[method] = [token["id"] for token in body["tokens"]]

    assert token_ids["auto"] == token_ids["none"]


@pytest.mark.parametrize("model", ["endless", "on channels"])
def test_opening_marks_count_as_reasoning(folder: Path, model: str) -> None:
    flags = ("--set", "max_thinking=0", "--max-tokens", "9", "--json")
    statistics = json.loads(ngt(*question(folder, model), *flags).stdout)["statistics"]
    assert statistics["new_tokens"] - statistics["thought_tokens"] == 9


def test_reasoning_without_an_answer_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(SENTENCE)
    write_model(tmp_path / "mute", "qwen", f"<think>\n{REASONING}", *question(tmp_path))
    done = ngt(*question(tmp_path, "mute"))
    assert done.returncode == 0
    assert done.stdout.strip() == b""
    assert (
        done.stderr.decode()
        == "ngt: the model was still reasoning when it ended: there is no answer\n"
    )


# Report each token, and stop for a minute at the fourth.
SLOW_NGT = """
import sys, time
from ngtcli.decoding.sequence import DecodedSequence

emit = DecodedSequence.emit
calls = 0

def slow_emit(*arguments):
    global calls
    calls += 1
    print('step', file=sys.stderr, flush=True)
    if calls == 4:
        time.sleep(60)
    return emit(*arguments)

DecodedSequence.emit = slow_emit
sys.argv = {argv!r}
from ngtcli.__main__ import main
main()
"""


def test_ctrl_c_during_reasoning_prints_nothing(folder: Path) -> None:
    argv = ["ngt", *question(folder, "endless")]
    process = Warm(code=SLOW_NGT.format(argv=argv))
    for _ in range(4):
        while process.stderr.readline() != b"step\n":
            pass

    process.send_signal(signal.SIGINT)

    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stdout == b""
    assert stderr.decode().endswith("ngt: interrupted; the answer is incomplete\n")


def test_stop_strings_apply_to_the_answer(folder: Path) -> None:
    body = json.loads(ngt(*question(folder, "qwen"), "--stop", "leaves", "--json").stdout)
    assert body["text"] == "The ferry "
    assert body["thought"] == REASONING
    assert body["finish_reason"] == "stop"


def test_repeats_in_reasoning_do_not_end_it(folder: Path) -> None:
    flags = ("--set", "max_thinking=300", "--set", "max_repeats=2", "--json")
    body = json.loads(ngt(*question(folder, "endless"), *flags).stdout)
    assert body["statistics"]["thought_tokens"] > 128


def test_a_dry_run_leaves_the_room_of_the_run(folder: Path, tmp_path: Path) -> None:
    text = tmp_path / "long.txt"
    text.write_text(" ".join(f"{SENTENCE} {i}." for i in range(90)))
    command = ["ask", "When?", "-d", str(text), "-m", str(folder / "qwen"), "--json"]
    command += ["--overflow", "truncate", "--max-tokens", "20", "--set", "max_thinking=60"]

    run = json.loads(ngt(*command).stdout)
    dry_run = json.loads(ngt(*command, "--dry-run").stdout)
    without_reasoning = json.loads(ngt(*command, "--dry-run", "--think", "off").stdout)

    assert dry_run["prompt_tokens"] == run["statistics"]["prompt_tokens"]
    assert CONTEXT - 100 <= dry_run["prompt_tokens"] <= CONTEXT - 80
    assert without_reasoning["prompt_tokens"] > dry_run["prompt_tokens"]


def test_show_thinking_writes_a_folder_of_answers_again(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("The ferry leaves at nine.")
    command = ("summarize", str(text), "-o", f"{tmp_path / 'out'}/", "--max-tokens", "4")
    for flags in ([], ["--show-thinking"]):
        done = ngt(*command, *flags)
        assert done.returncode == 0
        assert b"already done" not in done.stderr
