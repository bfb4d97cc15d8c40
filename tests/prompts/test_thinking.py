"""Thoughts are split from answers in every format, drafted like answers, and shown nowhere else."""

import json
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LogitsProcessor

from ngtcli.config import Settings
from ngtcli.decoding.limits import Limits
from ngtcli.decoding.reasoning import FORMATS, Part, TextStream, Thinking
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
THOUGHTS = f"{SENTENCE} So it is nine."


# --- the stream, against a search of the whole text ---


class Pieces:
    """A tokenizer whose tokens are texts; those of control tokens decode to nothing."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.texts[i] for i in ids)

    decode_complete = decode


def split(
    texts: Sequence[str], thinking: Thinking, most: int = 10**6, stop: Sequence[str] = ()
) -> tuple[str, str]:
    """The thought and the answer of tokens with these texts, as a stream shows them."""
    stream = TextStream(Detokenizer(Pieces(texts)), stop, thinking, most)  # type: ignore[arg-type]
    tokens = []
    for i in range(len(texts)):
        thought, text = stream.push(i)
        tokens.append(Token(i, text, thought=thought))
        if stream.stopped:
            break
    thought, text = stream.flush()
    both = sum(bool(token.text) for token in tokens if token.thought is not None)
    assert stream.reasoning_tokens == sum(token.thought is not None for token in tokens) - both
    assert stream.reasoning_tokens + stream.answer_tokens == len(tokens)
    thoughts = "".join(token.thought or "" for token in tokens) + (thought or "")
    return thoughts.strip(), "".join(token.text for token in tokens) + text


def cut(text: str, places: Sequence[int], whole: Sequence[str] = ()) -> list[str]:
    """Text in pieces that end at places, and at both ends of the marks that are `whole`."""
    ends = {p % (len(text) + 1) for p in places} | {len(text)}
    for mark in whole:
        inner = [range(m.start() + 1, m.end()) for m in re.finditer(re.escape(mark), text)]
        ends -= {p for span in inner for p in span}
        ends |= {p for m in re.finditer(re.escape(mark), text) for p in m.span()}
    borders = sorted(ends | {0})
    return [text[a:b] for a, b in zip(borders, borders[1:], strict=False)]


WORDS = st.text("a< \n/think>", max_size=12).filter(lambda t: "think>" not in t)
BORDERS = st.lists(st.integers(0, 200), max_size=40)
STARTS = st.sampled_from(["model", "prompt", "none"])


@given(WORDS, WORDS, STARTS, BORDERS, st.booleans(), st.sampled_from(["", "a<", " \n"]))
def test_tags_split_a_stream_as_a_search_of_the_complete_text(
    thought: str, answer: str, start: str, borders: list[int], are_tokens: bool, stop: str
) -> None:
    def kept(text: str) -> str:
        return text.partition(stop)[0] if stop else text

    begins = {"model": "\n<think>", "prompt": "", "none": ""}[start]
    text = answer if start == "none" else f"{begins}{thought}</think>{answer}"
    found = re.fullmatch(r"\s*(?:<think>)?(.*?)</think>(.*)", text, re.DOTALL)
    marks = {"<think>": Part.REASONING, "</think>": Part.ANSWER}
    texts = cut(text, borders, list(marks) if are_tokens else [])
    ids = {i: marks[t] for i, t in enumerate(texts) if t in marks} if are_tokens else {}
    part = Part.REASONING if start == "prompt" else Part.ANSWER
    thinking = Thinking(ids, {} if are_tokens else marks, (0,), part, False, 9)
    shown = split(["" if i in ids else t for i, t in enumerate(texts)], thinking, stop=[stop])
    if found is None:
        assert shown == ("", kept(answer) if kept(answer).strip() else "")
    else:
        assert shown == (found[1].strip(), kept(found[2].lstrip()))


CHANNELS = st.lists(
    st.tuples(st.sampled_from(["analysis", "commentary", "final"]), st.text("ab \n", max_size=8)),
    min_size=1,
    max_size=4,
)


@given(CHANNELS, BORDERS)
def test_channels_split_a_stream_as_a_search_of_the_complete_text(
    messages: list[tuple[str, str]], borders: list[int]
) -> None:
    marks = dict(FORMATS[0].marks)
    parts = [f"<|channel|>{channel}<|message|>{said}" for channel, said in messages]
    text = "<|end|><|start|>assistant".join(parts)
    texts = cut(text, borders, list(marks))
    ids = {i: marks[t] for i, t in enumerate(texts) if t in marks}
    thinking = Thinking(ids, {}, (0,), Part.HEADER, False, 9)
    thought, answer = split(["" if i in ids else t for i, t in enumerate(texts)], thinking)
    found = re.findall(r"<\|channel\|>(\w+)<\|message\|>([^<]*)", text)
    assert thought.split() == [w for c, said in found if c != "final" for w in said.split()]
    assert answer.split() == "".join(said for c, said in found if c == "final").split()


def test_reasoning_may_quote_a_mark() -> None:
    thinking = Thinking({0: Part.ANSWER}, {}, (0,), Part.REASONING, False, 9)
    texts = ["", "the tag ", "</think>", " ends it"]
    stream = TextStream(Detokenizer(Pieces(texts)), (), thinking, 9)  # type: ignore[arg-type]
    found = [stream.push(i)[0] for i in (1, 2, 3, 0)]
    assert found == ["the tag", " </think>", " ends it", "\n\n"]


def test_a_model_that_breaks_its_format_still_answers() -> None:
    thinking = Thinking({9: Part.HEADER}, {}, (9,), Part.HEADER, False, 9)
    assert split(["Nine", " o'clock"], thinking) == ("", "Nine o'clock")


# --- the formats of templates ---


@pytest.mark.parametrize(
    ("kind", "part", "closing"),
    [
        ("qwen", Part.ANSWER, "\n</think>\n\n"),
        ("deepseek", Part.REASONING, "\n</think>\n\n"),
        ("harmony", Part.HEADER, "<|end|><|start|>assistant<|channel|>final<|message|>"),
        ("granite", Part.ANSWER, "\nHere is my response:\n\n"),
    ],
)
def test_the_template_names_the_format(kind: str, part: str, closing: str) -> None:
    backend = tokenizer(TEMPLATES[kind])
    found = thinking_of(Settings.of(max_thinking=7), Tokenizer(backend))
    assert found is not None
    assert (found.part, found.settled, found.max_tokens) == (part, False, 7)
    assert backend.decode(found.closing) == closing
    assert found.extra_tokens == 7 + 2 * len(found.closing)
    names = [] if kind == "granite" else backend.convert_ids_to_tokens(sorted(found.tokens))
    assert {*names, *found.texts} <= {mark for one in FORMATS for mark in one.marks}


def test_models_without_reasoning_are_unchanged() -> None:
    for template in (None, "{% for m in messages %}{{ m.content }}{% endfor %}"):
        assert thinking_of(Settings(), Tokenizer(tokenizer(template))) is None
    assert thinking_of(Settings(), Tokenizer(FakeBackend())) is None


OPENED, EMPTY = "<think>\n", "<think>\n\n</think>\n\n"
SILENT = "<|end|><|start|>assistant<|channel|>final<|message|>"


@pytest.mark.parametrize(
    ("kind", "think", "end", "part"),
    [
        ("qwen", "auto", "<|im_start|>assistant\n", Part.ANSWER),
        ("qwen", "on", "<|im_start|>assistant\n", Part.ANSWER),
        ("qwen", "off", f"<|im_start|>assistant\n{EMPTY}", Part.ANSWER),
        ("deepseek", "on", f"<|im_end|>{OPENED}", Part.REASONING),
        ("deepseek", "off", f"<|im_end|>{EMPTY}", Part.ANSWER),
        ("v3.1", "on", f"<|im_end|>{OPENED.strip()}", Part.REASONING),
        ("v3.1", "off", "<|im_end|></think>", Part.ANSWER),
        ("old r1", "on", f"<|im_end|>{OPENED}", Part.REASONING),
        ("old r1", "off", f"<|im_end|>{EMPTY}", Part.ANSWER),
        ("harmony", "auto", "<|start|>assistant", Part.HEADER),
        ("harmony", "on", "assistant<|channel|>analysis<|message|>", Part.REASONING),
        ("harmony", "off", f"assistant<|channel|>analysis<|message|>{SILENT}", Part.ANSWER),
        ("granite", "on", "'Here is my response:'.\nassistant: ", Part.ANSWER),
        ("granite", "off", "user: 1\nassistant: ", Part.ANSWER),
    ],
)
def test_reasoning_is_switched_by_the_template_or_by_marks_after_it(
    kind: str, think: str, end: str, part: str
) -> None:
    backend = tokenizer(TEMPLATES[kind])
    settings = Settings.of(think=think)
    chat = switched(Tokenizer(backend), Chat.of(settings))
    rendered = render(backend, [("user", "1")], chat)
    assert rendered.text.endswith(end)
    found = thinking_of(settings, Tokenizer(backend))
    assert found is not None
    assert found.part == part
    assert found.settled == (think == "off")
    # The template alone is the reference where it has a switch.
    switch = {"qwen": "enable_thinking", "v3.1": "thinking", "granite": "thinking"}.get(kind)
    if switch and think != "auto":
        turns = [{"role": "user", "content": "1"}]
        assert rendered.text == backend.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=True, **{switch: think == "on"}
        )


def test_marks_of_reasoning_are_control_tokens() -> None:
    tokens = Tokenizer(tokenizer(TEMPLATES["old r1"]))
    task = Task(PRESET, [Document("a", "<think>")], "", tokens, 500, 9, chat=Chat(think="off"))
    ids = task.build(task.documents).ids
    names = [tokens.control.texts.get(i) for i in ids]
    assert [n for n in names if n and "think" in n] == ["<think>", "</think>"]


def test_think_without_reasoning_is_an_error(folder: Path, tmp_path: Path) -> None:
    found = [
        ngt("ask", "When?", "-d", str(folder / "a.txt"), "--think", "off"),
        ngt(*asked(folder, "qwen"), "--think", "on", "--set", "template_arg=enable_thinking=false"),
    ]
    assert [done.returncode for done in found] == [2, 2]
    assert [done.stderr.decode() for done in found] == [
        "ngt: --think off: the model's chat template does not support reasoning\n"
        "Leave --think out.\n",
        "ngt: --think and --set template_arg=enable_thinking are mutually exclusive\n"
        "Give one of them.\n",
    ]
    (tmp_path / "ngt.yaml").write_text("think: off\n")  # which YAML reads as false
    done = ngt(*asked(folder, "qwen"), "--dry-run", cwd=tmp_path)
    assert done.stdout.decode().endswith(f"{EMPTY.rstrip()}\n\n\n"), done


# --- tokens, against `transformers` ---

# Of a random model: some of its tokens end and begin thoughts.
RANDOM = Thinking(
    {40: Part.REASONING, 41: Part.ANSWER, 42: Part.ANSWER},
    {},
    (50, 41, 51),
    Part.REASONING,
    False,
    12,
)


class Closing(LogitsProcessor):
    """Closes a thought of `most` tokens, said over all tokens so far."""

    def __init__(self, prompt: int, most: int) -> None:
        self.prompt, self.most = prompt, most

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        wanted = forced(ids[0, self.prompt :].tolist(), self.most)
        if wanted is not None:
            scores = torch.full_like(scores, -torch.inf)
            scores[0, wanted] = 0.0
        return scores


def forced(output: Sequence[int], most: int) -> int | None:
    """The token that must follow, or None; counted anew from the first token on."""
    part, thought, closed, begun = Part.REASONING, 0, 0, False
    for token in output:
        if closed or (part == Part.REASONING and thought >= most):
            closed += 1
        is_mark = token in RANDOM.tokens and not begun
        part = RANDOM.tokens[token] if is_mark else part
        thought += part == Part.REASONING or is_mark or bool(closed)
        begun |= part == Part.ANSWER and not is_mark
        if closed == len(RANDOM.closing):
            closed, part = 0, Part.ANSWER
    if closed or (part == Part.REASONING and thought >= most):
        return RANDOM.closing[closed]
    return None


@pytest.mark.search
@pytest.mark.parametrize("most", [0, 1, 5, 12])
def test_reasoning_is_closed_at_the_token_of_generate(most: int) -> None:
    model = make_target("llama")
    limits = Limits(20, 24, thinking=Thinking(**{**as_dict(RANDOM), "max_tokens": most}))
    for prompt in prompts(examples(6), seed=1):
        ids = torch.tensor([prompt])
        with torch.no_grad():
            out = model.hf.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=60,
                pad_token_id=0,
                logits_processor=[Closing(len(prompt), most)],
            )[0, len(prompt) :].tolist()
        for method in ("none", "trie", "prompt-lookup", "auto", "recycling"):
            run = Run(model, drafter(method), context(prompt), GREEDY, limits).finish()
            assert run.output == out[: len(run.output)]
            assert run.finish_reason in ("stop", "length")
            answered = run.statistics.new_tokens - (run.statistics.thought_tokens or 0)
            assert (answered == 20) == (run.finish_reason == "length") or END in run.output


def as_dict(thinking: Thinking) -> dict[str, Any]:
    return {name: getattr(thinking, name) for name in Thinking.__slots__}


def drafter(method: str) -> Any:
    return make_drafter(method, DraftSettings(learn_output=True))


def context(prompt: Sequence[int]) -> Context:
    return Context(list(prompt), outside=((*prompt, *RANDOM.closing),), vocabulary=97)


@pytest.mark.search
@pytest.mark.parametrize("sampling", [GREEDY, Settings.of(temperature=0.9, seed=3)])
def test_batched_reasoning_equals_single_reasoning(sampling: Settings) -> None:
    model, texts = make_target("qwen3"), prompts(6, seed=5)
    limits = Limits(18, 8, thinking=RANDOM)
    alone = [Run(model, drafter("none"), context(t), sampling, limits).finish() for t in texts]
    for drafts in (separate_drafts("trie"), separate_drafts("prompt-lookup"), auto_drafts()):
        found = decode_batch(model, texts, drafts, 3, sampling, lambda i: limits)
        assert [m.token_ids for m in found] == [run.output for run in alone]
        assert [m.finish_reason for m in found] == [run.finish_reason for run in alone]
    assert {RANDOM.closing[0]} <= {token for run in alone for token in run.output}


def test_a_full_context_leaves_room_for_an_answer() -> None:
    model = make_target("llama")
    prompt = [*range(10, 60)] * 2  # of 160 places
    limits = Limits(40, 8, thinking=Thinking(**{**as_dict(RANDOM), "max_tokens": 10**6}))
    run = Run(model, drafter("trie"), context(prompt), GREEDY, limits).finish()
    answered = run.statistics.new_tokens - (run.statistics.thought_tokens or 0)
    assert answered >= 30 or run.finish_reason == "stop"


# --- the commands ---

SAYS = {
    "qwen": f"<think>\n{THOUGHTS}\n</think>\n\n{SENTENCE}",
    "deepseek": f"{THOUGHTS}\n</think>\n\n{SENTENCE}",
    "harmony": f"<|channel|>analysis<|message|>{THOUGHTS}<|end|><|start|>assistant<|channel|>final"
    f"<|message|>{SENTENCE}",
}
QUOTES = "The tag <think> opens a thought, and </think> ends it. <think> again: nothing is lost."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of each kind by name, and a document; they answer what `asked` asks."""
    made = tmp_path_factory.mktemp("thinking")
    (made / "a.txt").write_text(f"{SENTENCE} The harbour is small.")
    for kind, says in SAYS.items():
        write_model(made / kind, kind, says, *asked(made))
    write_model(made / "quotes", "qwen", QUOTES, *asked(made))
    write_model(made / "both", "qwen", f"{SAYS['qwen']} {QUOTES}", *asked(made))
    endless = "So it is nine, or it is not. " * 40
    write_model(made / "endless", "qwen", f"<think>\n{endless}", *asked(made))
    channels = f"<|channel|>analysis<|message|>{endless}"
    write_model(made / "on channels", "harmony", channels, *asked(made))
    return made


@pytest.fixture(autouse=True)
def unmeasured(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each of these models costs would be measured, and a background be made."""
    monkeypatch.setenv("NGT_CALIBRATE", "no")
    monkeypatch.setenv("NGT_BACKGROUND", "none")


def asked(folder: Path, kind: str = "") -> tuple[str, ...]:
    model = ("-m", str(folder / kind)) if kind else ()
    return "ask", "When?", "-d", str(folder / "a.txt"), *model


@pytest.mark.parametrize("kind", SAYS)
def test_a_pipe_gets_the_answer_and_json_the_reasoning(folder: Path, kind: str) -> None:
    done = ngt(*asked(folder, kind))
    assert (done.returncode, done.stdout.decode()) == (0, f"{SENTENCE}\n"), done.stderr
    shown = ngt(*asked(folder, kind), "--show-thinking")
    assert shown.stdout.decode() == f"{THOUGHTS}\n\n{SENTENCE}\n"
    done = ngt(*asked(folder, kind), "--json-tokens")
    found = json.loads(done.stdout)
    assert (found["text"], found["thought"]) == (SENTENCE, THOUGHTS)
    counts, tokens = found["statistics"], found["tokens"]
    assert counts["new_tokens"] == len(tokens)
    assert counts["thought_tokens"] == sum("thought" in token for token in tokens)
    assert any(token["origin"] != "model" for token in tokens if "thought" in token)
    spans = found["sources"]["spans"]
    assert [(s["start"], s["end"]) for s in spans] == [(0, len(SENTENCE))]


@pytest.mark.parametrize(("kind", "environ"), [("qwen", {}), ("harmony", {"NO_COLOR": "1"})])
def test_a_terminal_counts_reasoning_tokens_before_the_answer(
    folder: Path, kind: str, environ: dict[str, str]
) -> None:
    screen, code = in_terminal(*asked(folder, kind), columns=60, **environ)
    lines = [line for line in re.split(r"\r\x1b\[K|\r\n", screen) if line.startswith("Thinking")]
    assert code == 0
    assert lines
    bare = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
    assert all(len(line) < 60 for line in bare)
    assert re.fullmatch(r"Thinking, \d+ tokens … .*\w.*", bare[-1])
    assert lines[-1].endswith("\x1b[0m")
    assert "\x1b[2m" in lines[-1]
    answer = re.sub(r"\x1b\[[0-9;]*m", "", screen.rpartition("\r\x1b[K")[2])
    assert answer.startswith(f"{SENTENCE}\r\n")
    assert re.search(r"\d+ tokens, \d+ of reasoning", answer)


def test_shown_reasoning_is_dim(folder: Path) -> None:
    screen, _ = in_terminal(*asked(folder, "qwen"), "--show-thinking", columns=60)
    answer = screen.rpartition("\r\x1b[K")[2]
    dim = "".join(re.findall(r"\x1b\[2m([^\x1b]*)\x1b", answer.partition("\r\n\r\n")[0]))
    assert dim.replace("\r\n", " ") == THOUGHTS
    plain, _ = in_terminal(*asked(folder, "qwen"), "--show-thinking", TERM="dumb")
    assert f"{THOUGHTS}\r\n\r\n{SENTENCE}\r\n" in plain


def test_an_answer_may_quote_tags(folder: Path) -> None:
    for kind, thought, answer in (
        ("quotes", None, QUOTES),
        ("both", THOUGHTS, f"{SENTENCE} {QUOTES}"),
    ):
        found = json.loads(ngt(*asked(folder, kind), "--json").stdout)
        assert (found["text"], found.get("thought")) == (answer, thought)
    tags = Thinking(
        {}, {"<think>": Part.REASONING, "</think>": Part.ANSWER}, (0,), Part.ANSWER, False, 9
    )
    stream = TextStream(Detokenizer(Pieces(["Nine"])), (), tags, 9)  # type: ignore[arg-type]
    assert stream.push(0) == (None, "Nine")


def test_files_and_pages_separate_answer_and_reasoning(folder: Path, tmp_path: Path) -> None:
    page, file = tmp_path / "page.html", tmp_path / "answer.txt"
    ngt(*asked(folder, "harmony"), "-o", str(file), "--html", str(page))
    assert file.read_text() == f"{SENTENCE}\n"
    shown = re.sub(r"</?u>", "", page.read_text())
    thought = re.search(r'<details class="thought">.*?<div[^>]*>(.*?)</div>', shown, re.DOTALL)
    assert thought is not None
    assert thought[1].strip() == THOUGHTS
    assert "The ferry" not in shown[: shown.index('class="answer"')]
    ngt(*asked(folder, "harmony"), "-o", str(file), "--show-thinking", "--cite")
    assert file.read_text().startswith(f"{THOUGHTS}\n\n{SENTENCE} [1]\n\n[1] a.txt")


def test_endless_reasoning_is_closed(folder: Path) -> None:
    arguments = (*asked(folder, "endless"), "--set", "max_thinking=30", "--max-tokens", "9")
    made = {}
    for method in ("auto", "none"):
        found = json.loads(ngt(*arguments, "--json-tokens", "--method", method).stdout)
        made[method] = [token["id"] for token in found["tokens"]]
        assert found["finish_reason"] == "length"
        assert found["text"].strip()
        closing = len(tokenizer(TEMPLATES["qwen"]).encode("\n</think>\n\n"))
        assert found["statistics"]["thought_tokens"] == 30 + closing
        assert "or it is not." in found["thought"]
    assert made["auto"] == made["none"]


@pytest.mark.parametrize("kind", ["endless", "on channels"])
def test_opening_marks_count_as_reasoning(folder: Path, kind: str) -> None:
    given = "--set", "max_thinking=0", "--max-tokens", "9", "--json"
    counts = json.loads(ngt(*asked(folder, kind), *given).stdout)["statistics"]
    assert counts["new_tokens"] - counts["thought_tokens"] == 9


def test_reasoning_without_an_answer_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(SENTENCE)
    write_model(tmp_path / "mute", "qwen", f"<think>\n{THOUGHTS}", *asked(tmp_path))
    done = ngt(*asked(tmp_path, "mute"))
    assert (done.returncode, done.stdout.strip()) == (0, b"")
    assert (
        done.stderr.decode()
        == "ngt: the model was still reasoning when it ended: there is no answer\n"
    )


def test_ctrl_c_during_reasoning_prints_nothing(folder: Path) -> None:
    code = (
        "import sys, time\nfrom ngtcli.decoding.sequence import DecodedSequence\n"
        "emit = DecodedSequence.emit\n"
        "steps = []\ndef slow(*a):\n    print('step', file=sys.stderr, flush=True)\n"
        "    steps.append(time.sleep(60 * (len(steps) == 3)))\n    return emit(*a)\n"
        "DecodedSequence.emit = slow\n"
        f"sys.argv = ['ngt', *{asked(folder, 'endless')!r}]\n"
        "from ngtcli.__main__ import main\nmain()\n"
    )
    process = Warm(code=code)
    for _ in range(4):
        while process.stderr.readline() != b"step\n":
            pass
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"")
    assert errors.decode().endswith("ngt: interrupted; the answer is incomplete\n")


def test_stop_strings_and_repeats_apply_to_the_answer(folder: Path) -> None:
    done = ngt(*asked(folder, "qwen"), "--stop", "leaves", "--json")
    found = json.loads(done.stdout)
    assert (found["text"], found["thought"]) == ("The ferry ", THOUGHTS)
    assert found["finish_reason"] == "stop"
    long = ngt(
        *asked(folder, "endless"), "--set", "max_thinking=300", "--set", "max_repeats=2", "--json"
    )
    assert json.loads(long.stdout)["statistics"]["thought_tokens"] > 128


def test_a_dry_run_leaves_the_room_of_the_run(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text(" ".join(f"{SENTENCE} {i}." for i in range(90)))
    given = (
        "ask",
        "When?",
        "-d",
        str(tmp_path / "long.txt"),
        "-m",
        str(folder / "qwen"),
        "--json",
        "--overflow",
        "truncate",
        "--max-tokens",
        "20",
        "--set",
        "max_thinking=60",
    )
    dry, run = (json.loads(ngt(*given, *more).stdout) for more in (("--dry-run",), ()))
    assert dry["prompt_tokens"] == run["statistics"]["prompt_tokens"]
    assert CONTEXT - 100 <= dry["prompt_tokens"] <= CONTEXT - 80
    off = json.loads(ngt(*given, "--dry-run", "--think", "off").stdout)
    assert off["prompt_tokens"] > dry["prompt_tokens"]


def test_show_thinking_makes_a_folder_again(tmp_path: Path) -> None:
    text, out = tmp_path / "a.txt", tmp_path / "out"
    text.write_text("The ferry leaves at nine.")
    command = ("summarize", str(text), "-o", f"{out}/", "--max-tokens", "4")
    for more, is_made in ((), True), (("--show-thinking",), True):
        done = ngt(*command, *more)
        assert done.returncode == 0
        assert (b"already done" not in done.stderr) == is_made
