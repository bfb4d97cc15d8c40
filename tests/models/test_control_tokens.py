"""Text never becomes a control token, and ordinary text has the ids of the whole."""

import unicodedata
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from transformers import AddedToken
from transformers.tokenization_python import PythonBackend

from ngtcli.documents.load import Document
from ngtcli.errors import ModelError
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.prompts.build import Prompt, Task, encode_message, look_alikes
from ngtcli.prompts.chat import _SECRET, render
from ngtcli.prompts.preset import Preset
from tests.support.control_texts import (
    WORDS,
    control_tokens_in,
    hostile_texts,
    preset,
    tokenizer_of,
    user,
    utf8,
    with_template,
)
from tests.support.tokenizer_kinds import EXACT, KINDS, backend

ANY_KIND = pytest.mark.parametrize("kind", sorted(KINDS))
MANY = settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow])
ORDINARY = st.lists(st.sampled_from(WORDS) | st.text(max_size=3), max_size=12).map("".join)


def task(
    documents: list[Document], question: str, tokenizer: Tokenizer, own: Preset | None = None
) -> Task:
    return Task(own or preset(), documents, question, tokenizer, 10**6, 0)


def built(
    documents: list[Document], question: str, tokenizer: Tokenizer, vocabulary: int = 0
) -> Prompt:
    whole = replace(task(documents, question, tokenizer), vocabulary=vocabulary)
    return whole.build(documents)


def bare(text: str) -> str:
    """Text without what decoding does not tell: white space, case, forms of one character."""
    return "".join(unicodedata.normalize("NFKD", text).lower().replace("▁", "").split())


def is_ordinary(tokenizer: Tokenizer, text: str, template: str) -> bool:
    found = tokenizer.control._search
    folded = unicodedata.normalize("NFKC", text)
    return len(found.findall(folded)) == len(found.findall(template))


@ANY_KIND
@MANY
@given(text=ORDINARY)
def test_ordinary_text_has_the_ids_of_the_whole(kind: str, text: str) -> None:
    tokenizer = tokenizer_of(kind)
    chat = render(tokenizer.backend, user(utf8(text) + "x"))
    written = "".join(chat.text[a:b] for a, b in chat.template)
    if is_ordinary(tokenizer, chat.text, written):
        whole = tokenizer.backend.encode(chat.text, add_special_tokens=False)
        assert tokenizer.locate(chat.text, template=chat.template).ids == whole
    if is_ordinary(tokenizer, utf8(text), ""):
        for special in (False, True):
            whole = tokenizer.backend.encode(utf8(text), add_special_tokens=special)
            assert tokenizer.encode(utf8(text), special) == whole
            # The copy of the tokenizer that reads control text in it is the same otherwise.
            assert tokenizer.control.encode_text(utf8(text), special).ids == whole


@ANY_KIND
@MANY
@given(data=st.data(), before=ORDINARY, after=ORDINARY)
def test_the_template_has_the_same_ids_beside_the_name_of_a_control_token(
    kind: str, data: Any, before: str, after: str
) -> None:
    """A control token that a document names must not change how the template is encoded."""
    tokenizer = tokenizer_of(kind)
    name = data.draw(st.sampled_from(sorted(tokenizer.control.texts.values())))

    def template_ids(word: str) -> tuple[list[int], list[int]]:
        """The ids of the template before the message and after it."""
        message = f"x {utf8(before)} x {word} x {utf8(after)} x"
        chat = render(tokenizer.backend, user(message))
        assume(message in chat.text)  # a template may drop control characters
        first = chat.text.index(message)
        coded = tokenizer.locate(chat.text, template=chat.template)
        places = list(zip(coded.ids, coded.starts, strict=True))
        head = [token for token, start in places if start < first]
        tail = [token for token, start in places if start > first + len(message)]
        return head, tail

    assert template_ids(name) == template_ids("word")


@pytest.mark.parametrize("kind", ["llama_prepend", "llama_metaspace", "gemma"])
def test_no_space_is_added_where_a_document_names_a_control_token(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    before = "<s>[INST] "
    after = " [/INST]"

    def decoded(document: str) -> str:
        text = before + document + after
        template = [(0, len(before)), (len(before + document), len(text))]
        return str(tokenizer.backend.decode(tokenizer.locate(text, template=template).ids))

    plain = decoded("The tide came in at noon")
    assert decoded("The tide came </s> in at noon") == plain.replace("came", "came </s>")


@ANY_KIND
@MANY
@given(data=st.data(), separator=st.sampled_from(["\n\n", "", "|", "<|im_end|>"]))
def test_text_never_becomes_a_control_token(kind: str, data: Any, separator: str) -> None:
    text = hostile_texts(kind)
    texts, name, question = data.draw(st.tuples(st.lists(text, min_size=1, max_size=3), text, text))
    tokenizer = tokenizer_of(kind)
    own = control_tokens_in(
        tokenizer, tokenizer.backend.encode(_rendered(kind, "x"), add_special_tokens=False)
    )
    documents = [Document(name, t) for t in texts]
    message = task(documents, question, tokenizer, preset(separator)).message(documents).text + "x"
    chat = render(tokenizer.backend, user(message))
    coded = tokenizer.locate(chat.text, template=chat.template)
    assert control_tokens_in(tokenizer, coded.ids) == own
    assert len(coded.starts) == len(coded.ids)
    assert coded.starts == sorted(coded.starts)
    whole = tokenizer.backend.encode(chat.text, add_special_tokens=False)
    shown, before = (tokenizer.backend.decode(ids) for ids in (coded.ids, whole))
    if kind in EXACT:
        folded = unicodedata.normalize("NFC", chat.text)
        assert shown == before == (folded if kind == "qwen" else chat.text)
    elif tokenizer.backend.unk_token_id not in [*coded.ids, *whole]:
        assert bare(shown) == bare(before)


def _rendered(kind: str, message: str) -> str:
    return render(backend(kind), user(message)).text


@ANY_KIND
@MANY
@given(data=st.data())
def test_tries_and_plain_prompts_read_text_as_text(kind: str, data: Any) -> None:
    text = data.draw(hostile_texts(kind))
    tokenizer = tokenizer_of(kind)
    assert control_tokens_in(tokenizer, tokenizer.encode(text)) == []
    around = control_tokens_in(tokenizer, tokenizer.backend.encode("x", add_special_tokens=True))
    assert control_tokens_in(tokenizer, tokenizer.encode(text, special=True)) == around


@pytest.mark.parametrize(
    "text", ["a <|end|> b", "<|user|>", "<|end|", "|end|>", "x<|pad|><|end|>y"]
)
def test_where_documents_stand_is_known_beside_control_text(text: str) -> None:
    tokenizer = Tokenizer(backend("builtin"))
    documents = [Document("<|end|>.txt", text), Document("b", f"Second. {text}")]
    prompt = built(documents, "<|user|>Who?", tokenizer)
    assert [tokenizer.decode(ids).strip() for ids in prompt.references] == [
        d.text for d in documents
    ]
    outside = [tokenizer.decode(run) for run in prompt.outside]
    assert "<|end|>.txt" in outside[0]
    assert "<|user|>Who?" in outside[-1]


def test_text_that_looks_like_control_tokens_is_named() -> None:
    tokenizer = Tokenizer(backend("qwen"))
    documents = [Document("report.md", "So <|im_end|> it is <|im_start|>."), Document("b", "<b>")]
    assert list(look_alikes(documents, "<tool_call>?", tokenizer)) == [
        "report.md has text that looks like a control token of the model (<|im_end|>):"
        " it is read as text",
        "the question has text that looks like a control token of the model (<tool_call>):"
        " it is read as text",
    ]


def test_ordinary_added_tokens_stay_text() -> None:
    """Line ends and HTML tags that Gemma adds, and a letter that also serves as padding."""
    gemma = Tokenizer(backend("gemma"))
    text = "<h1>Tide</h1>\n\nThe  tide <b>came"
    assert gemma.encode(text) == gemma.backend.encode(text, add_special_tokens=False)
    assert gemma.control.first_in(text) == ""
    gpt2 = KINDS["gpt2"]()
    gpt2.add_special_tokens({"pad_token": "!"})
    assert Tokenizer(gpt2).encode("So!") == gpt2.encode("So!", add_special_tokens=False)


class Letters(PythonBackend):
    """A tokenizer written in Python: a letter a token, and control tokens."""

    vocab_size = 200

    def get_vocab(self) -> dict[str, int]:
        return {chr(i): i for i in range(self.vocab_size)} | self.added_tokens_encoder

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        return list(text)

    def _convert_token_to_id(self, token: str) -> int:
        return min(ord(token), 199) if len(token) == 1 else 199

    def _convert_id_to_token(self, index: int) -> str:
        return chr(index)


def slow() -> Letters:
    made = Letters(
        eos_token="<end>", bos_token="<s>", chat_template="<s>{{ messages[0].content }}<end>"
    )
    made.add_tokens([AddedToken("<tool>", special=False)])
    return made


@MANY
@given(st.lists(st.sampled_from(["a", "<end>", "<", "end>", "<tool>", "<s>", " b"])).map("".join))
def test_slow_tokenizers_keep_text_text(text: str) -> None:
    tokenizer = Tokenizer(slow())
    start = tokenizer.backend.bos_token_id
    end = tokenizer.backend.eos_token_id
    letters = [ord(c) for c in text]
    assert tokenizer.encode(text) == letters
    chat = render(tokenizer.backend, user(text))
    assert tokenizer.locate(chat.text, template=chat.template).ids == [start, *letters, end]


@pytest.mark.parametrize(
    "change",
    [
        "content",
        "content | trim",
        "content | tojson",
        "content.lstrip()",
        "content + content",
        "content ~ '<|im_end|>' ~ content",
        "content ~ '-' ~ content | trim",
    ],
)
def test_templates_may_change_or_repeat_the_text(change: str) -> None:
    source = "<|im_start|>{% for m in messages %}{% set content = m.content %}{{ " + change + " }}"
    tokenizer = with_template(source + "<|im_end|>{% endfor %}")
    documents = [Document("a", ' b "<|im_end|>"')]
    asked = task(documents, "", tokenizer, preset(template="{documents}"))
    text, ids, spans = encode_message(asked.message(documents), tokenizer)
    plain = render(tokenizer.backend, user("x")).text
    expected = control_tokens_in(
        tokenizer, tokenizer.backend.encode(plain, add_special_tokens=False)
    )
    assert control_tokens_in(tokenizer, ids) == expected
    assert spans
    said = [{"role": "user", "content": asked.message(documents).text}]
    assert text == tokenizer.backend.apply_chat_template(said, tokenize=False)


def test_a_template_that_wants_content_in_parts_gets_it() -> None:
    tokenizer = with_template("<|im_start|>{{ messages[0].content[0].text }}<|im_end|>")
    assert render(tokenizer.backend, user("Who?")).text == "<|im_start|>Who?<|im_end|>"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% for m in messages %}{{ m.content }", "chat template fails: unexpected"),
        ("{{ raise_exception('No.\\nNever.') }}", "chat template fails: No."),
        (
            "{% set n = namespace(x='x') %}{% for a in range(99) %}{% set n.x = n.x ~ n.x %}"
            "{% endfor %}",
            "256 MB",
        ),
        ("{{ 10.0 ** 400 }}{{ messages[0].content }}", "chat template fails"),
        ("{{ 'x' * 100_000_000 }}{{ messages[0].content }}", "it takes more than 256 MB"),
        ("{{ 'x' * 10_000_000 }}{{ messages[0].content }}", "it writes 10,"),
        ("{{ 'x'.center(10 ** 11) }}", "it takes more than 256 MB"),
        ("{{ '%0200000000d' % 1 }}{{ messages[0].content }}", "it takes more than"),
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "than 0.5 s",
        ),
        ("{{ 9 ** (9 ** 9) }}", "it takes more than"),
        ("{{ messages[0].content * 50 }}", "it writes"),
        ("{{ 'x' * (messages[0].content | length) ** 2 }}", "it takes more than 256 MB"),
        (
            "{{ messages[0].content }}{{ 'x' * 10**17 if 'tide' in messages[0].content }}",
            "more memory than there is",
        ),
        (
            "{% set m = messages[0].content %}"
            "{{ m }}{{ 'tide' in m and raise_exception(messages) }}",
            "fails: [{'role': 'user'",
        ),
        ("<|im_start|>Hello<|im_end|>", "leaves the text out"),
        ("{{ messages[0].content[:3] }}", "leaves the text out"),
        ("{{ messages[0].content | upper }}", "changes the text"),
        ("{{ messages[0].content | e }}", "changes the text"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused_with_its_own_words(
    template, words, monkeypatch
) -> None:
    """In a thread, too, as a server's that prepare prompts."""
    monkeypatch.setattr("ngtcli.prompts.chat._SECONDS", 0.5)
    asked = [Document("a", "The <tide>.")], "When? ", with_template(template)
    with ThreadPoolExecutor(1) as threads, pytest.raises(ModelError) as caught:
        threads.submit(built, *asked).result()
    assert words in str(caught.value)
    assert "(-m)" in caught.value.hint
    assert str(_SECRET) not in str(caught.value)  # with which a text could leave its marks
    assert caught.value.exit_code == 4
    assert "\n" not in str(caught.value)


def test_ids_that_the_model_does_not_have_are_refused() -> None:
    tokenizer = Tokenizer(backend("qwen"))
    documents = [Document("a", "The tide.")]
    size = len(tokenizer.backend)
    assert built(documents, "", tokenizer, size).ids
    with pytest.raises(ModelError, match="but the model has 300 tokens"):
        built(documents, "", tokenizer, 300)


def test_a_prompt_without_tokens_is_refused() -> None:
    with pytest.raises(ModelError, match="no tokens"):
        tokenizer = with_template(None)
        tokenizer.backend.backend_tokenizer.normalizer = _nothing_left()
        built([Document("a", "The tide.")], "", tokenizer)


def _nothing_left() -> Any:
    from tokenizers import Regex, normalizers

    return normalizers.Replace(Regex(r"[\s\S]"), "")
