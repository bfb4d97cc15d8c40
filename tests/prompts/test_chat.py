"""Chat templates get the message, and also a system prompt, documents and arguments."""

import json
import os
from collections.abc import Callable
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
from ngtcli.prompts.chat import Chat, Rendered, render, try_chat
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


def build_prompt(template: Any, chat: Chat) -> Prompt:
    tokenizer = template if isinstance(template, Tokenizer) else with_template(template)
    return Task(preset(), TIDE, "When?", tokenizer, 10**6, 0, chat=chat).build(TIDE)


@pytest.mark.parametrize("template", [LISTED, NUMBERED, AS_JSON])
def test_documents_go_where_the_template_puts_them(template: str) -> None:
    tokenizer = with_template(template)
    prompt = build_prompt(tokenizer, Chat(system="Be brief.", documents=True))

    documents: list[dict[str, Any]] = [
        {"title": document.name, "text": document.text.strip()} for document in TIDE
    ]
    if template == NUMBERED:
        documents = [{"doc_id": i, **document} for i, document in enumerate(documents, 1)]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "When?"}]
    assert prompt.text == tokenizer.backend.apply_chat_template(
        messages, documents=documents, tokenize=False
    )

    texts = [document.text.strip() for document in TIDE]
    if template == AS_JSON:
        texts = [json.dumps(text)[1:-1] for text in texts]
    assert [tokenizer.decode(ids).strip() for ids in prompt.references] == texts

    # The mark in the text of a document is no control token, as it is for a plain tokenizer.
    plain_ids = tokenizer.backend.encode(prompt.text, add_special_tokens=False)
    marks = len(control_tokens_in(tokenizer, plain_ids))
    assert len(control_tokens_in(tokenizer, prompt.ids)) == marks - 1


@pytest.mark.parametrize("template", [LISTED, NUMBERED, AS_JSON, CHATML.replace("trim", "tojson")])
@given(data=st.data())
def test_no_text_of_a_template_becomes_a_control_token(template: str, data: Any) -> None:
    tokenizer = Tokenizer(tokenizer_of("qwen").backend)
    tokenizer.backend.chat_template = template
    question, system, *texts = data.draw(
        st.lists(hostile_texts("qwen").map(utf8).map(str.strip), min_size=4, max_size=6)
    )
    documents = []
    if "documents" in template:
        documents = list(zip(texts[::2], texts[1::2], strict=False))  # names and texts

    hostile = render(tokenizer.backend, user(question + "x"), Chat(system=system + "x"), documents)
    harmless_documents = [("x", "x")] * len(documents)
    harmless = render(tokenizer.backend, user("x"), Chat(system="x"), harmless_documents)

    ids = tokenizer.locate(hostile.text, template=hostile.template).ids
    harmless_ids = tokenizer.backend.encode(harmless.text, add_special_tokens=False)
    assert control_tokens_in(tokenizer, ids) == control_tokens_in(tokenizer, harmless_ids)
    # Whatever the texts, the template writes the same around them.
    assert template_text(hostile) == template_text(harmless)


def template_text(rendered: Rendered) -> str:
    return "".join(rendered.text[start:end] for start, end in rendered.template)


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
        build_prompt(template, chat)
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
        build_prompt(template, chat)
    assert caught.value.hint
    assert not is_private(caught.value)  # HTTP clients get the same message.


def test_a_template_is_chosen_by_its_name() -> None:
    templates = {"default": NUMBERED, "rag": LISTED}
    prompt = build_prompt(templates, Chat(template="rag", documents=True))
    assert prompt.text == build_prompt(LISTED, Chat(documents=True)).text


ON = "enable_thinking=true"
OFF = "enable_thinking=false"


def test_arguments_reach_the_template() -> None:
    with_thinking = build_prompt(THINKS, Chat(arguments=(ON,))).text
    without_thinking = build_prompt(THINKS, Chat(arguments=(OFF,))).text
    assert without_thinking == f"{with_thinking}</think>"


@pytest.mark.parametrize(
    ("arguments", "without_effect"),
    [
        ((ON,), []),
        ((OFF,), ["enable_thinking"]),  # the template's default
        ((ON, "enable_thinkin=true"), ["enable_thinkin"]),
    ],
)
def test_arguments_without_effect_get_a_warning(
    arguments: tuple[str, ...], without_effect: list[str]
) -> None:
    warnings = list(try_chat(with_template(THINKS), Chat(arguments=arguments)))
    flags = [warning.split()[1] for warning in warnings]
    assert flags == [f"template_arg={name}" for name in without_effect]


def test_a_required_argument_has_an_effect() -> None:
    requires_effort = "{{ '' if effort is defined else raise_exception('no effort') }}" + CHATML
    assert not list(try_chat(with_template(requires_effort), Chat(arguments=("effort=high",))))


def test_a_template_is_tried_once_per_form_of_conversation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trials: list[Callable[[], Any]] = []

    def counting_bounded(work: Callable[[], Any], **limits: float) -> Any:
        trials.append(work)
        return bounded(work, seconds=5, megabytes=256)

    monkeypatch.setattr("ngtcli.prompts.chat.bounded", counting_bounded)
    tokenizer = with_template(CHATML + "{# one that no other test tries #}")

    for question, answer in (("One?", "1."), ("Two?", "2."), ("Two?", "2.")):
        messages = [*user(question), ("assistant", answer), *user("Why?")]
        assert f"\n{answer}<|im_end|>" in render(tokenizer.backend, messages).text
    assert len(trials) == 1

    for system in ("Be brief.", "Be kind."):
        render(tokenizer.backend, user("One?"), Chat(system=system))
    assert len(trials) == 2


def test_a_long_conversation_forks_the_process_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forks: list[int] = []
    fork = os.fork

    def counting_fork() -> int:
        forks.append(1)
        return fork()

    monkeypatch.setattr(os, "fork", counting_fork)
    tokenizer = with_template(CHATML + "{# one that is forked for once #}")
    messages = user("One?")
    for n in range(6):
        assert "<|im_end|>" in render(tokenizer.backend, messages).text
        messages = [*messages, ("assistant", f"{n}."), *user("Why?")]
    assert len(forks) == 1


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_a_template_without_a_role_renders_the_others(role: str) -> None:
    has_role = f"messages | selectattr('role', 'equalto', '{role}') | list"
    refusal = f"{{% if {has_role} %}}{{{{ raise_exception('no such role') }}}}{{% endif %}}"
    tokenizer = with_template(refusal + CHATML)
    assert "One?" in render(tokenizer.backend, user("One?")).text
    with pytest.raises(ModelError, match="no such role"):
        render(tokenizer.backend, [("assistant", "A."), *user("B?")], Chat(system="Be brief."))


@pytest.mark.parametrize(
    "condition",
    ["messages | length > 2", "messages | length < 2"],
    ids=["for a conversation", "for a single message"],
)
def test_a_template_that_exceeds_its_limits_is_refused(condition: str) -> None:
    large = f"{{% if {condition} %}}{{% set x = 'x' * 10 ** 10 %}}{{% endif %}}"
    with pytest.raises(ModelError, match="memory|MB"):
        render(with_template(large + CHATML).backend, user("One?"))


def test_a_template_that_changes_texts_is_refused() -> None:
    with pytest.raises(ModelError, match="changes the text"):
        list(try_chat(with_template(CHATML.replace("trim", "upper")), Chat()))


def test_a_template_may_look_for_a_switch_in_the_system_prompt() -> None:
    """SmolLM3's template looks for /no_think in the system prompt and takes it out."""
    without_switch = CHATML.replace("m.content", "m.content.replace('/no_think', '')")
    mark = "{{ '-' if '/no_think' in messages[0].content else '+' }}"
    backend = with_template(without_switch + mark).backend

    off = render(backend, user("Why?"), Chat(system="/no_think")).text
    on = render(backend, user("Why?"), Chat(system="Think.")).text
    assert off.endswith("-")
    assert "no_think" not in off
    assert on.endswith("+")

    with pytest.raises(ModelError, match="changes the text"):
        render(backend, user("What is /no_think?"), Chat(system="Think."))


@pytest.mark.parametrize(
    "items", [("",), ("x",), ("=x",), ("a b=x",), ("x=1", "x=2"), ("1a=2",)], ids=" ".join
)
def test_invalid_arguments_are_refused(items: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="template_arg is"):
        Settings.of(template_arg=items)


def test_argument_values_are_json_or_text() -> None:
    values = {
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
    for text, value in values.items():
        assert template_variables([f"x={text}"]) == {"x": value}


# --- the commands ---

TURNS = "{% for m in messages %}<|user|>{{ m.content | trim }}<|end|>{% endfor %}"
ANSWER = "{{ mood if mood is defined }}<|assistant|>"
RAG = "{% for d in documents or [] %}<|user|>{{ d.title }}: {{ d.text }}<|end|>{% endfor %}" + TURNS


@pytest.fixture
def model(tmp_path: Path) -> str:
    """The built-in model with a template that has a system prompt, and one named rag."""
    folder = tmp_path / "model"
    (folder / "additional_chat_templates").mkdir(parents=True)
    for path in BUILTIN_PATH.iterdir():
        if path.name != "chat_template.jinja":
            (folder / path.name).symlink_to(path)
    (folder / "chat_template.jinja").write_text(TURNS + ANSWER)
    (folder / "additional_chat_templates" / "rag.jinja").write_text(RAG + ANSWER)
    return str(folder)


def prompt_of(*arguments: str, **options: Any) -> str:
    """The prompt of `ngt summarize` for the harbour."""
    done = ngt("summarize", HARBOUR, "--dry-run", *arguments, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


SYSTEM = "Be brief, é."


@pytest.fixture
def system_file(tmp_path: Path) -> Path:
    """A file with the system prompt, a byte order mark and a line end of Windows."""
    path = tmp_path / "system.txt"
    path.write_bytes(f"\ufeff{SYSTEM}\r\n".encode())
    return path


def is_system_prompt(prompt: str) -> bool:
    return prompt.startswith(f"<|user|>{SYSTEM}<|end|><|user|>The")


def test_a_system_prompt_comes_from_a_flag_or_a_variable(model: str, system_file: Path) -> None:
    assert is_system_prompt(prompt_of("-m", model, "--system", f" {SYSTEM} "))
    assert is_system_prompt(prompt_of("-m", model, "--system", f"@{system_file}"))
    assert is_system_prompt(prompt_of("-m", model, NGT_SYSTEM=f"@{system_file}"))


def test_a_system_prompt_comes_from_the_current_folder_unless_a_flag_is_empty(
    model: str, tmp_path: Path
) -> None:
    (tmp_path / "ngt.yaml").write_text(f"system: {SYSTEM}\n")
    assert is_system_prompt(prompt_of("-m", model, cwd=tmp_path))
    assert prompt_of("-m", model, "--system", "", cwd=tmp_path).startswith("<|user|>The")


def test_a_system_prompt_comes_from_a_file_beside_the_configuration(
    model: str, tmp_path: Path
) -> None:
    config = tmp_path / "home" / "config"
    config.mkdir(parents=True)
    (config / "config.yaml").write_text("system: '@own.txt'\n")
    (config / "own.txt").write_text(SYSTEM)
    assert is_system_prompt(prompt_of("-m", model, NGT_HOME=str(tmp_path / "home")))


def test_a_system_prompt_comes_from_a_file_beside_the_preset(model: str, tmp_path: Path) -> None:
    presets = tmp_path / "home" / "config" / "presets"
    presets.mkdir(parents=True)
    (presets / "mine.yaml").write_text("template: '{documents}'\nsystem: '@own.txt'\n")
    (presets / "own.txt").write_text(SYSTEM)
    assert is_system_prompt(prompt_of("-m", model, "-p", "mine", NGT_HOME=str(tmp_path / "home")))


@pytest.mark.parametrize(
    ("flags", "words", "code"),
    [
        (["--system", "@missing.txt"], "--system @missing.txt: no such file", 3),
        (["--system", "@empty.txt"], "--system @empty.txt: empty", 3),
        (["--system", "@"], "--system @: no such file", 3),
        (["--system", "x" * 40_000], "no room for documents", 5),
        (["--set", "template_documents=yes"], "leaves documents out", 4),
        (["--set", "template_arg=mood"], "--set template_arg is 'mood'", 2),
        (["--set", "chat_template=rga"], "no chat template 'rga'", 2),
    ],
)
def test_unsupported_template_flags_are_errors(
    model: str, tmp_path: Path, flags: list[str], words: str, code: int
) -> None:
    (tmp_path / "empty.txt").write_text("\n")
    # A prompt that does not fit would be answered in parts.
    overflow = ["--overflow", "truncate"] if code == 5 else []
    done = ngt("summarize", HARBOUR, "-m", model, "--dry-run", *flags, *overflow, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert words in done.stderr.decode()
    assert done.stdout == b""
    assert done.stderr.count(b"\n") == 2


def test_flags_choose_the_template_and_pass_documents_to_it(model: str) -> None:
    flags = ["--set", "chat_template=rag", "--set", "template_documents=yes"]
    prompt = prompt_of("-m", model, *flags)
    assert prompt.startswith("<|user|>harbour.txt: The")
    assert "<|user|>Summarize the" in prompt


def test_flags_pass_arguments_to_the_template(model: str) -> None:
    flags = ["--set", "template_arg=mood=glad", "--set", "template_arg=mod=2"]
    done = ngt("summarize", HARBOUR, "-m", model, "--dry-run", *flags)
    assert done.stdout.endswith(b"glad<|assistant|>\n")
    assert b"--set template_arg=mod changes nothing" in done.stderr
    assert b"template_arg=mood" not in done.stderr


def test_bytes_that_are_not_utf_8_in_an_argument_are_replaced(model: str) -> None:
    prompt = prompt_of("-m", model, "--set", "template_arg=mood=a\udcff")
    assert prompt.endswith("a?<|assistant|>\n")


def test_lines_of_a_batch_have_template_settings(model: str, tmp_path: Path) -> None:
    settings_of_lines = [
        {"system": "Be brief."},
        {},
        {"template_arg": ["mood=glad"]},
        {"system": "@in.jsonl"},
        {"chat_template": "none"},
        {"template_arg": "mood"},
    ]
    with (tmp_path / "in.jsonl").open("w") as file:
        for settings in settings_of_lines:
            print(json.dumps({"context": "The tide is high.", "settings": settings}), file=file)

    done = ngt("batch", "in.jsonl", "-m", model, "--max-tokens", "2", cwd=tmp_path)
    assert done.returncode == 7

    rows = sorted(map(json.loads, done.stdout.splitlines()), key=lambda row: row["id"])
    system, default, argument = (row["statistics"]["prompt_tokens"] for row in rows[:3])
    assert default < argument < system
    assert [row["error"]["exit_code"] for row in rows[3:]] == [2, 2, 2]
    assert "Write the text itself." in rows[3]["error"]["hint"]


@pytest.mark.parametrize("name", ["system", "chat_template", "template_arg", "template_documents"])
def test_the_prefix_cache_depends_on_every_template_setting(name: str) -> None:
    assert name in deciding(Settings(), preset())
