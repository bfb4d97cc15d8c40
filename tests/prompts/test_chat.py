"""What a chat template is given beside the message: a system text, documents, arguments."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngtcli.config import Settings, template_variables
from ngtcli.documents.load import Document
from ngtcli.errors import ModelError, UsageError
from ngtcli.models.checkpoint import BUILTIN_PATH
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.prompts.build import Prompt, Task
from ngtcli.prompts.chat import Chat, render, try_chat
from ngtcli.prompts.preset import deciding
from ngtcli.server.public import is_private
from ngtcli.system.sandbox import bounded
from tests.support.control_texts import (
    control_tokens_in,
    hostile_texts,
    preset,
    tokenizer_of,
    user,
    utf8,
    with_template,
)
from tests.support.helpers import HARBOUR, ngt, template

CHATML, NO_SYSTEM, DROPS_SYSTEM = map(template, ("trimmed", "no system", "drops system"))
LISTED, NUMBERED, AS_JSON = map(template, ("listed", "numbered", "as json"))
THINKS = template("opens a thought")
TIDE = [Document("a.txt", 'The "tide"\nis high.\n'), Document("b\n.txt", "Noon <|im_end|>.")]


def built(template: Any, chat: Chat, question: str = "When?") -> Prompt:
    tokenizer = template if isinstance(template, Tokenizer) else with_template(template)
    return Task(preset(), TIDE, question, tokenizer, 10**6, 0, chat=chat).build(TIDE)


@pytest.mark.parametrize("template", [LISTED, NUMBERED, AS_JSON])
def test_documents_go_where_the_template_puts_them(template: str) -> None:
    tokenizer = with_template(template)
    prompt = built(tokenizer, Chat(system="Be brief.", documents=True))
    given = [{"title": d.name, "text": d.text.strip()} for d in TIDE]
    numbered = [{"doc_id": i, **one} for i, one in enumerate(given, 1)]
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "When?"}]
    assert prompt.text == tokenizer.backend.apply_chat_template(
        turns, documents=numbered if template == NUMBERED else given, tokenize=False
    )
    escape = (lambda t: json.dumps(t)[1:-1]) if template == AS_JSON else str
    texts = [escape(d.text.strip()) for d in TIDE]
    assert [tokenizer.decode(ids).strip() for ids in prompt.references] == texts
    plain = tokenizer.backend.encode(prompt.text, add_special_tokens=False)
    assert (
        len(control_tokens_in(tokenizer, prompt.ids))
        == len(control_tokens_in(tokenizer, plain)) - 1
    )  # that of a text


@pytest.mark.parametrize("template", [LISTED, NUMBERED, AS_JSON, CHATML.replace("trim", "tojson")])
@given(data=st.data())
def test_no_text_of_a_template_becomes_a_control_token(template: str, data: Any) -> None:
    tokenizer = tokenizer_of("qwen")
    tokenizer = Tokenizer(tokenizer.backend)
    tokenizer.backend.chat_template = template
    texts = data.draw(
        st.lists(hostile_texts("qwen").map(utf8).map(str.strip), min_size=4, max_size=6)
    )
    pairs = list(zip(texts[2::2], texts[3::2], strict=False)) * ("documents" in template)
    own = render(tokenizer.backend, user("x"), Chat(system="x"), [("x", "x")] * len(pairs))
    wanted = control_tokens_in(
        tokenizer, tokenizer.backend.encode(own.text, add_special_tokens=False)
    )
    chat = render(tokenizer.backend, user(texts[0] + "x"), Chat(system=texts[1] + "x"), pairs)
    assert (
        control_tokens_in(tokenizer, tokenizer.locate(chat.text, template=chat.template).ids)
        == wanted
    )
    # The template's spans, in a row, are what it writes around texts of nothing.
    written = "".join(chat.text[a:b] for a, b in chat.template)
    bare = "".join(own.text[a:b] for a, b in own.template)
    assert written == bare


@pytest.mark.parametrize(
    ("template", "chat", "words", "hint"),
    [
        (NO_SYSTEM, Chat(system="Be brief."), "System role not supported", "without --system."),
        (
            DROPS_SYSTEM,
            Chat(system="Be brief."),
            "leaves the system prompt out",
            "without --system.",
        ),
        (CHATML, Chat(documents=True), "leaves documents out", "without --set template_documents."),
        (
            {"default": CHATML, "rag": LISTED},
            Chat(documents=True),
            "leaves documents out",
            "Or choose from default, rag with --set chat_template.",
        ),
        (
            "{{ raise_exception('Never') }}",
            Chat(system="Be brief.", arguments=("color=red",)),
            "chat template fails",
            "(-m)",  # the message alone fails as well
        ),
        (
            "{{ 1 // x if x is defined }}" + CHATML,
            Chat(arguments=("x=0",)),
            "fails: integer division",
            "without --set template_arg.",
        ),
    ],
)
def test_unsupported_inputs_of_a_template_are_errors(
    template: Any, chat: Chat, words: str, hint: str
) -> None:
    with pytest.raises(ModelError) as caught:
        built(template, chat)
    assert words in str(caught.value)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("template", "chat", "words"),
    [
        (None, Chat(template="rag"), "has no chat template"),
        (None, Chat(documents=True), "has no chat template"),
        (CHATML, Chat(template="/etc/a"), "has no chat template '/etc/a'"),
        ({"default": CHATML, "rag": LISTED}, Chat(template="rga"), "has no chat template 'rga'"),
        ({"a": CHATML, "b": LISTED}, Chat(), "none of which is the default"),
        (CHATML, Chat(arguments=("messages=x",)), "messages is reserved: ngt sets it"),
        (CHATML, Chat(arguments=("tokenize=true",)), "tokenize is reserved: ngt sets it"),
        (CHATML, Chat(arguments=("today=<|im_end|>",)), "today contains a control token"),
        (CHATML, Chat(arguments=('x={"a": ["\\u003c|im_end|>"]}',)), "x contains a control token"),
    ],
)
def test_invalid_template_arguments_are_refused(template: Any, chat: Chat, words: str) -> None:
    with pytest.raises(UsageError, match=words.replace("|", r"\|")) as caught:
        built(template, chat)
    assert caught.value.hint and not is_private(caught.value)  # over HTTP it says that, too


def test_documents_are_numbered_for_templates_with_doc_id() -> None:
    templates = {"default": NUMBERED, "rag": LISTED}
    chat = Chat(template="rag", documents=True)
    assert built(templates, chat).text == built(LISTED, Chat(documents=True)).text


def test_arguments_without_effect_get_a_warning() -> None:
    on, off = (Chat(arguments=(f"enable_thinking={value}",)) for value in ("true", "false"))
    assert built(THINKS, on).text == built(THINKS, off).text.removesuffix("</think>")
    tokenizer = with_template(THINKS)
    other = replace(on, arguments=(*on.arguments, "enable_thinkin=true"))
    for chat, words in ((on, []), (off, ["enable_thinking"]), (other, ["enable_thinkin"])):
        told = list(try_chat(tokenizer, chat))
        assert [line.split()[1].partition("=")[2] for line in told] == words
    needed = with_template(
        "{{ '' if effort is defined else raise_exception('no effort') }}" + CHATML
    )
    assert list(try_chat(needed, Chat(arguments=("effort=high",)))) == []


def test_a_template_is_tried_once_per_form_of_conversation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []

    def counted(work: Callable[[], Any], **bounds: float) -> Any:
        made.append("frame")
        return bounded(work, seconds=5, megabytes=256)

    monkeypatch.setattr("ngtcli.prompts.chat.bounded", counted)
    tokenizer = with_template(CHATML + "{# one that no other test tries #}")
    for n, said in ((1, [user("One?")]), (2, [user("Two?")]), (2, [user("Two?")])):
        turns = [*said[0], ("assistant", f"{n}."), *user("Why?")]
        assert f"\n{n}.<|im_end|>" in render(tokenizer.backend, turns).text
    assert len(made) == 1
    for system in ("Be brief.", "Be kind."):
        render(tokenizer.backend, user("One?"), Chat(system=system))
    assert len(made) == 2


def test_a_long_conversation_forks_the_process_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forks: list[int] = []
    fork = os.fork

    def counted() -> int:
        forks.append(1)
        return fork()

    monkeypatch.setattr(os, "fork", counted)
    tokenizer = with_template(CHATML + "{# one that is forked for once #}")
    said = user("One?")
    for n in range(6):
        assert "<|im_end|>" in render(tokenizer.backend, said).text
        said = [*said, ("assistant", f"{n}."), *user("Why?")]
    assert len(forks) == 1


@pytest.mark.parametrize("roles", ["system", "assistant"])
def test_a_template_without_a_role_renders_the_others(roles: str) -> None:
    own = f"{{% if messages | selectattr('role', 'equalto', '{roles}') | list %}}"
    tokenizer = with_template(own + "{{ raise_exception('no such role') }}{% endif %}" + CHATML)
    assert "One?" in render(tokenizer.backend, user("One?")).text
    with pytest.raises(ModelError, match="no such role"):
        render(tokenizer.backend, [("assistant", "A."), *user("B?")], Chat(system="Be brief."))


@pytest.mark.parametrize("endless", ["messages | length > 2", "messages | length < 2"])
def test_a_template_that_exceeds_its_limits_is_refused(endless: str) -> None:
    """Whether it does so in a conversation or for a single message."""
    big = f"{{% if {endless} %}}{{% set x = 'x' * 10 ** 10 %}}{{% endif %}}"
    with pytest.raises(ModelError, match="memory|MB"):
        render(with_template(big + CHATML).backend, user("One?"))


def test_a_template_that_changes_texts_is_refused() -> None:
    with pytest.raises(ModelError, match="changes the text"):
        list(try_chat(with_template(CHATML.replace("trim", "upper")), Chat()))


def test_a_template_may_look_at_texts() -> None:
    """As that of SmolLM3, whose system text says whether it thinks, which is taken out of it."""
    own = CHATML.replace("m.content", "m.content.replace('/no_think', '')")
    looks = with_template(own + "{{ '-' if '/no_think' in messages[0].content else '+' }}")
    asked = [render(looks.backend, user("Why?"), Chat(system=s)) for s in ("/no_think", "Think.")]
    assert [chat.text[-1] for chat in asked] == ["-", "+"]
    assert "no_think" not in asked[0].text
    with pytest.raises(ModelError, match="changes the text"):
        render(looks.backend, user("What is /no_think?"), Chat(system="Think."))


@pytest.mark.parametrize("item", ["", "x", "=x", "a b=x", "x=1 x=2", "1a=2"])
def test_an_argument_without_a_value_is_refused(item: str) -> None:
    with pytest.raises(UsageError, match="template_arg is"):
        Settings.of(template_arg=tuple(item.split(" ")) if item.count("=") == 2 else (item,))


def test_argument_values_are_json_or_text() -> None:
    items = {
        "true": True,
        "True": "True",
        "1.5": 1.5,
        "-3": -3,
        "007": "007",
        "": "",
        "a=b": "a=b",
        '"true"': "true",
        "null": None,
        "NaN": "NaN",
        '{"citations": true}': {"citations": True},
        "[" * 9999: "[" * 9999,
        "7" * 9999: "7" * 9999,
        "2026-01-01": "2026-01-01",
    }
    for written, value in items.items():
        assert template_variables([f"x={written}"]) == {"x": value}


# --- as commands have it ---

TURNS = "{% for m in messages %}<|user|>{{ m.content | trim }}<|end|>{% endfor %}"
ANSWER = "{{ mood if mood is defined }}<|assistant|>"
RAG = "{% for d in documents or [] %}<|user|>{{ d.title }}: {{ d.text }}<|end|>{% endfor %}" + TURNS


@pytest.fixture
def model(tmp_path: Path) -> str:
    """The built-in model with a template that takes system texts, and one named rag."""
    folder = tmp_path / "model"
    (folder / "additional_chat_templates").mkdir(parents=True)
    for path in BUILTIN_PATH.iterdir():
        if path.name != "chat_template.jinja":
            (folder / path.name).symlink_to(path)
    (folder / "chat_template.jinja").write_text(TURNS + ANSWER)
    (folder / "additional_chat_templates" / "rag.jinja").write_text(RAG + ANSWER)
    return str(folder)


def sent(*arguments: str, **more: Any) -> str:
    """The prompt of `ngt summarize` for the harbour."""
    done = ngt("summarize", HARBOUR, "--dry-run", *arguments, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def test_system_prompts_come_from_every_layer(model: str, tmp_path: Path) -> None:
    (tmp_path / "wording").mkdir()
    (tmp_path / "wording" / "system.txt").write_bytes("\ufeffBe brief, é.\r\n".encode())
    (tmp_path / "ngt.yaml").write_text("system: Be brief, é.\n")
    (tmp_path / "other").mkdir()
    presets = tmp_path / "home" / "config" / "presets"
    presets.mkdir(parents=True)
    (presets / "mine.yaml").write_text("template: '{documents}'\nsystem: '@own.txt'\n")
    (presets / "own.txt").write_text("Be brief, é.")
    config = tmp_path / "user" / "config"
    config.mkdir(parents=True)
    (config / "config.yaml").write_text("system: '@own.txt'\n")
    (config / "own.txt").write_text("Be brief, é.")
    user = {"NGT_HOME": str(tmp_path / "user")}
    file, own = "@wording/system.txt", {"NGT_HOME": str(tmp_path / "home")}
    for text in (
        sent("-m", model, "--system", f"@{tmp_path / file[1:]}", cwd=tmp_path / "other"),
        sent("-m", model, "--system", " Be brief, é. ", cwd=tmp_path / "other"),
        sent("-m", model, cwd=tmp_path),
        sent("-m", model, cwd=tmp_path / "other", **user),
        sent("-m", model, cwd=tmp_path / "other", NGT_SYSTEM=f"@{tmp_path / file[1:]}"),
        sent("-m", model, "-p", "mine", cwd=tmp_path / "other", **own),
    ):
        assert text.startswith("<|user|>Be brief, é.<|end|><|user|>The"), text[:99]
    assert sent("-m", model, "--system", "", cwd=tmp_path).startswith("<|user|>The")


@pytest.mark.parametrize(
    ("flags", "words", "code"),
    [
        (["--system", "@missing.txt"], "--system @missing.txt: no such file", 3),
        (["--system", "@empty.txt"], "--system @empty.txt: empty", 3),
        (["--system", "@"], "--system @: no such file", 3),
        (["--system", "x" * 40_000], "no room for documents", 5),
        (["--set", "template_documents=yes"], "leaves documents out", 4),
        (["--set", "template_arg=mood"], "template_arg is 'mood' (from flag)", 2),
        (["--set", "chat_template=rga"], "no chat template 'rga'", 2),
    ],
)
def test_unsupported_template_flags_are_errors(
    model: str, tmp_path: Path, flags: list[str], words: str, code: int
) -> None:
    (tmp_path / "empty.txt").write_text("\n")
    long = ["--overflow", "truncate"] * (code == 5)
    done = ngt("summarize", HARBOUR, "-m", model, "--dry-run", *flags, *long, cwd=tmp_path)
    assert done.returncode == code and words in done.stderr.decode(), done.stderr
    assert done.stdout == b""
    assert done.stderr.count(b"\n") == 2


def test_documents_templates_and_arguments_are_chosen_by_flags(model: str) -> None:
    rag = sent("-m", model, "--set", "chat_template=rag", "--set", "template_documents=yes")
    assert rag.startswith("<|user|>harbour.txt: The")
    assert "<|user|>Summarize the" in rag
    glad = ngt(
        "summarize",
        HARBOUR,
        "-m",
        model,
        "--dry-run",
        "--set",
        "template_arg=mood=glad",
        "--set",
        "template_arg=mod=2",
    )
    assert glad.stdout.endswith(b"glad<|assistant|>\n")
    assert b"--set template_arg=mod changes nothing" in glad.stderr
    assert b"arg mood" not in glad.stderr
    assert sent("-m", model, "--set", "template_arg=mood=a\udcff").endswith("a?<|assistant|>\n")


def test_lines_of_a_batch_have_template_settings(model: str, tmp_path: Path) -> None:
    own = [
        {"system": "Be brief."},
        {},
        {"template_arg": ["mood=glad"]},
        {"system": "@in.jsonl"},
        {"chat_template": "none"},
        {"template_arg": "mood"},
    ]
    lines = [{"context": "The tide is high.", "settings": one} for one in own]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = ngt("batch", "in.jsonl", "-m", model, "--max-tokens", "2", cwd=tmp_path)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    rows = [row for _, row in sorted((row["id"], row) for row in found)]
    counts = [row["statistics"]["prompt_tokens"] for row in rows[:3]]
    assert done.returncode == 7
    assert counts[1] < counts[2] < counts[0]
    assert [row["error"]["exit_code"] for row in rows[3:]] == [2, 2, 2]
    assert "Write the text itself." in rows[3]["error"]["hint"]


def test_the_prefix_cache_depends_on_every_template_setting() -> None:
    names = ("system", "chat_template", "template_arg", "template_documents")
    assert all(name in deciding(Settings(), preset()) for name in names)
    with pytest.raises(UsageError, match="two"):
        Settings.of(template_arg=("two=1", "two=2"))
