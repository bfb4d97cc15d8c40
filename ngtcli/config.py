"""The settings: each declared once; flag > NGT_* > ./ngt.yaml > user config > preset > default.

Flags, help pages, checks, the JSON Schema, completion and the journals of batches are made from the
fields of `Settings`; see `Setting` for what a declaration can say. A settings file (`ngt.yaml`, the
user's `config.yaml`, a preset) is a flat YAML mapping. Unknown keys and values of the wrong type
are errors that name the file and the nearest key.
"""

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from enum import Flag, auto
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

from ngtcli import removed
from ngtcli.errors import UsageError
from ngtcli.system.files import home
from ngtcli.system.json_form import Schema, dump_json, schema_of
from ngtcli.system.machine import MAX_THREADS
from ngtcli.system.yaml_file import parse_yaml, read_mapping, shown
from ngtcli.words import nearest, plain_number

PROJECT_FILE = "ngt.yaml"
FORM_TOKENS = 2048  # default `max_tokens` of structured output (guess: ten texts of 300 characters)
_PREFIX = "NGT_"
# What a value must be, by its type in Python.
KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    tuple: "a list of strings",
}
_SCHEMA_FILES = (".json", ".txt")  # suffixes of file names, which no name of a field ends in
SWITCH = ("auto", "on", "off")  # the choices of a setting that has the flags --NAME and --no-NAME
_ONE_DEVICE = "device_map spreads the model over several devices: leave one of them out."
_LONGEST_WARM_S = 30 * 86_400  # the maximum of keep_warm (guess)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}  # seconds of each unit of a duration


class SettingError(UsageError):
    """The value of the setting `name` is out of range, or contradicts another setting."""

    def __init__(self, name: str, message: str, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.name = name


def template_variables(items: Sequence[str]) -> dict[str, Any]:
    """Parse variables of a chat template, KEY=VALUE with JSON or plain text. Raises SettingError.

    >>> template_variables(["thinking=false", "budget=2e3", "date=2026-01-01"])
    {'thinking': False, 'budget': 2000.0, 'date': '2026-01-01'}
    """
    variables: dict[str, Any] = {}
    for item in items:
        key, separator, value = item.partition("=")
        is_repeated = key in variables
        if not separator or not key.isidentifier() or is_repeated:
            what = f"template_arg is {shown(item)}{' again' if is_repeated else ''}"
            hint = "Give each variable of the chat template once, as KEY=VALUE."
            raise SettingError("template_arg", what, hint)
        try:
            variables[key] = json.loads(value, parse_constant=str)
        except (ValueError, RecursionError):
            variables[key] = value
    return variables


def seconds_of(keep_warm: str) -> float:
    """Return the seconds of a duration such as keep_warm; 0.0 for "off". Raises SettingError.

    >>> seconds_of("10m"), seconds_of("1.5h"), seconds_of("off")
    (600.0, 5400.0, 0.0)
    """
    if keep_warm == "off":
        return 0.0
    with suppress(ValueError):
        seconds = float(keep_warm[:-1]) * _SECONDS.get(keep_warm[-1:], 0)
        if 0 < seconds <= _LONGEST_WARM_S:
            return seconds
    what = f"keep_warm is {shown(keep_warm)}"
    hint = "Give a number with a unit, such as 90s, 10m or 1h (at most 30d); or off."
    raise SettingError("keep_warm", what, hint)


class Use(Flag):
    """Properties of a setting."""

    NONE = 0
    TEXT = auto()  # changes answers: an unfinished run is not resumed with another value
    CARD = auto()  # a model may set it, by the header of the README.md in its folder (its card)
    FILE = auto()  # @FILE is replaced by the text of the file
    CHOICES = auto()  # a list that may be written with commas or in JSON
    SCHEMA = auto()  # may be written as a mapping in YAML
    SECRET = auto()  # never shown
    COMMON = auto()  # among the few that -h lists
    SET = auto()  # has no flag of its own: --set NAME=VALUE gives it
    # ./ngt.yaml may not set it: a file in the current folder may be someone else's, and only the
    # user decides what is loaded, fetched, kept, run and shown.
    USER_ONLY = auto()
    # When a setting has an effect; otherwise its flag causes a warning.
    SAMPLES = auto()  # only if tokens are sampled
    NGT = auto()  # only with engine=ngt
    VLLM = auto()  # only with engine=vllm
    AUTO = auto()  # only with method=auto; settings of heads also with the heads' methods
    TRIE = auto()  # only with method=trie
    DRAFT_MODEL = auto()  # only with method=draft-model
    RETRIEVE = auto()  # only with overflow=retrieve


def _value_needed(values: Mapping[Use, str]) -> property:
    """Return a property of `Setting`: the value of another setting that it needs.

    With any other value of that setting it has no effect. "" if it always has one.

    Args:
        values: The value that is needed, by the use that says so.
    """

    def value(self: "Setting") -> str:
        return next((value for use, value in values.items() if use in self.uses), "")

    return property(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The declaration of a setting.

    Attributes:
        name: Its name in files; its flag has dashes instead of underscores.
        default: Its default, which has the type of its values.
        panel: The panel of its flag on help pages.
        help: Its description on help pages.
        uses: Its properties.
        within: Its minimum and maximum.
        choices: The allowed values; empty: all.
        complete: What shell completion offers: "methods", "models", or "" for nothing.
        instead: A hint for values that earlier versions allowed.
    """

    name: str = ""
    default: Any = None
    panel: str
    help: str
    uses: Use = Use.NONE
    within: tuple[float, float] = (-math.inf, math.inf)
    choices: tuple[str, ...] = ()
    complete: str = ""
    instead: str = ""

    engine = _value_needed({Use.NGT: "ngt", Use.VLLM: "vllm"})
    method = _value_needed({Use.AUTO: "auto", Use.TRIE: "trie", Use.DRAFT_MODEL: "draft-model"})
    overflow = _value_needed({Use.RETRIEVE: "retrieve"})

    @property
    def kind(self) -> type:
        """The type of its values."""
        return type(self.default)

    @property
    def flag(self) -> str:
        """The flag as it is written on a command line."""
        if Use.SET in self.uses:
            return f"--set {self.name}"
        return f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return f"{_PREFIX}{self.name.upper()}"

    @property
    def is_switch(self) -> bool:
        """Whether its flags are --NAME and --no-NAME."""
        return self.kind is bool or self.choices == SWITCH

    def check(self, value: Any, where: str = "") -> None:
        """Check a value of the right type.

        Raises SettingError, whose message begins with `where`, for a value that is not allowed.
        """
        hint = ""
        if self.choices and value not in self.choices:
            hint = self._hint
        elif self.kind in (int, float):
            low, high = self.within
            if not low <= value <= high:
                hint = f"Give a value from {plain_number(low)} to {plain_number(high)}."
        if hint:
            raise SettingError(self.name, f"{where}{self.name} is {shown(value)}", hint)

    def typed(self, value: Any, where: object) -> Any:
        """Return `value` in the setting's type.

        An int is accepted as a float, and a string as a list of one string.

        Raises UsageError, whose message begins with `where`, for a value of another type.
        """
        kind = self.kind
        is_off = "off" in (self.default, *self.choices)
        if is_off and isinstance(value, bool):  # YAML reads on and off as booleans
            return "on" if value else "off"
        if Use.SCHEMA in self.uses and isinstance(value, dict):
            return dump_json(value, None)
        if kind is tuple:
            if isinstance(value, str):
                value = choices_of(value, where) if Use.CHOICES in self.uses else [value]
            items = value
            if isinstance(items, list | tuple) and all(isinstance(i, str) for i in items):
                return tuple(items)
        elif kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            try:
                return float(value)
            except OverflowError:
                return math.inf if value > 0 else -math.inf  # which `check` refuses
        elif isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
        raise UsageError(f"{where}: {self.name} is {shown(value)}", hint=self._hint)

    def from_text(self, text: str, where: str) -> Any:
        """Parse the text of an environment variable or of `--set`.

        The text of a list is a YAML list, or a single item.

        Raises UsageError, whose message begins with `where`.
        """
        value: Any = text
        if self.kind in (int, float):
            with suppress(ValueError):  # `typed` raises an error instead
                value = self.kind(text)
        elif self.is_switch or (self.kind is tuple and text.lstrip().startswith("[")):
            value = parse_yaml(text, where)
        return self.typed(value, where)

    @property
    def _hint(self) -> str:
        if self.choices:
            return f"Choose from {', '.join(self.choices)}. {self.instead}".strip()
        return f"It must be {KINDS[self.kind]}."


def setting(
    panel: str, base: Use, default: Any, help: str, uses: Use = Use.NONE, **declared: Any
) -> Any:
    """Return a field of a part of `Settings`.

    Args:
        panel: The panel of its flag on help pages.
        base: The properties that it shares with similar settings.
        default: Its default.
        help: Its description on help pages.
        uses: Its further properties.
        declared: Other attributes of `Setting`.
    """
    declaration = Setting(default=default, panel=panel, help=help, uses=base | uses, **declared)
    return field(default=default, metadata={"setting": declaration})


_drafting = partial(setting, "Drafting", Use.TEXT)
_auto = partial(setting, "Drafting", Use.AUTO)
_heads = partial(setting, "Drafting", Use.AUTO | Use.USER_ONLY)
_draft_model = partial(setting, "Drafting", Use.TEXT | Use.USER_ONLY | Use.NGT | Use.DRAFT_MODEL)
_trie = partial(setting, "Drafting", Use.TEXT | Use.NGT | Use.TRIE)
_model = partial(setting, "Model", Use.TEXT | Use.USER_ONLY)
_loads = partial(setting, "Model", Use.TEXT | Use.USER_ONLY | Use.NGT)
_compute = partial(setting, "Model", Use.USER_ONLY)
_answer = partial(setting, "Answer", Use.TEXT)
_sampling = partial(setting, "Sampling", Use.TEXT)
_sampled = partial(setting, "Sampling", Use.TEXT | Use.SAMPLES)
_passages = partial(setting, "Passages", Use.TEXT | Use.RETRIEVE)
_for_passages = partial(setting, "Passages", Use.TEXT | Use.CARD | Use.RETRIEVE)
_reading = partial(setting, "Reading", Use.NONE)
_cache = partial(setting, "Reading", Use.USER_ONLY)
_output = partial(setting, "Answer", Use.USER_ONLY)
_engine = partial(setting, "Engine", Use.USER_ONLY)
_vllm = partial(setting, "Engine", Use.USER_ONLY | Use.VLLM)


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the settings. Its values are checked on creation."""

    def __post_init__(self) -> None:
        for attribute in fields(self):
            SETTINGS[attribute.name].check(getattr(self, attribute.name))
        self._check()

    def _check(self) -> None:
        """Raise SettingError for invalid values that no range or choice rules out."""


@dataclass(frozen=True, slots=True)
class ModelSettings(_Part):
    """What is loaded. Requests with equal `ModelSettings` can share a model."""

    model: str = _model(
        "builtin",
        "Model: a transformers folder, a GGUF file, a Hugging Face id, or builtin.",
        Use.COMMON,
        complete="models",
    )
    draft_model: str = _draft_model(
        "",
        "Model that drafts for --method draft-model; same tokenizer, smaller.",
        Use.SET,
        complete="models",
    )
    heads: tuple[str, ...] = _heads(
        (),
        "Folder or Hugging Face id of learned heads, or mtp for the model's own layers; auto and"
        " the heads' own methods draft from them. May be repeated.",
        Use.NGT,
        complete="models",
    )
    device: str = _loads(
        "auto", "Device: auto, cuda, mps or cpu.", choices=("auto", "cuda", "mps", "cpu")
    )
    device_map: str = _loads(
        "none",
        "none, or auto: spread the layers over all GPUs, then the host's memory, then the disk;"
        " needs the extra accelerate.",
        Use.SET,
        choices=("none", "auto"),
    )
    dtype: str = _model(
        "auto",
        "Number format: auto, float32, bfloat16 or float16. auto: the one that the model is stored"
        " in; on a CPU float32, unless the CPU computes in the stored 16-bit format exactly.",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    quantize: str = _loads(
        "none",
        "none, or int8: run linear layers and experts in 8 bits on a CPU. It takes half"
        " of the memory of 16-bit weights and is usually faster; the text may differ slightly.",
        Use.COMMON,
        choices=("none", "int8"),
    )
    threads: int = _compute(
        0,
        "Number of CPU threads; 0: one for each core that ngt may use.",
        Use.NGT | Use.SET,
        within=(0, MAX_THREADS),
    )
    packed: bool = _compute(
        True,
        "On a CPU, pack the weights if that speeds up forward passes over several tokens.",
        Use.NGT | Use.SET,
    )
    capture: bool = _compute(
        True, "Capture forward passes as CUDA graphs, on a GPU that has them.", Use.SET
    )

    def _check(self) -> None:
        if self.device_map != "auto":
            return
        for name, value in (("device", self.device), ("quantize", self.quantize)):
            if value != SETTINGS[name].default:
                what = f"device_map is auto and {name} is {shown(value)}"
                raise SettingError("device_map", what, _ONE_DEVICE)


@dataclass(frozen=True, slots=True)
class EngineSettings(_Part):
    """What runs the model: this process, a server, or vLLM."""

    engine: str = _engine(
        "ngt",
        "Engine that runs the model: ngt, or vllm with drafts from ngt.",
        choices=("ngt", "vllm"),
    )
    serve: bool = _engine(True, "Use a running ngt serve that has this model loaded.", Use.NGT)
    keep_warm: str = _engine(
        "off",
        "Keep the model loaded in the background for this long after the last question: 90s, 10m,"
        " 1h; or off.",
        Use.NGT,
    )
    tensor_parallel: int = _vllm(
        1, "For vLLM: devices that share each layer.", Use.SET, within=(1, 10_000)
    )
    pipeline_parallel: int = _vllm(
        1, "For vLLM: groups of layers, each on devices of its own.", Use.SET, within=(1, 10_000)
    )
    data_parallel: int = _vllm(1, "For vLLM: copies of the model.", Use.SET, within=(1, 10_000))
    ray: bool = _vllm(False, "For vLLM: spread over the machines of a Ray cluster.", Use.SET)

    def _check(self) -> None:
        seconds_of(self.keep_warm)


@dataclass(frozen=True, slots=True)
class DraftingSettings(_Part):
    """How drafts are made and verified."""

    method: str = _drafting(
        "auto",
        "How drafts are made: auto, none (plain decoding), trie, prompt-lookup, llma, akunu,"
        " trtllm, rest, suffix, lookahead, recycling, space, draft-model, or by learned heads:"
        " medusa, hydra, eagle, eagle3, dflash, mtp; options as NAME:KEY=VALUE.",
        Use.COMMON,
        complete="methods",
    )
    n: int = _trie(13, "Window of the n-gram trie, in tokens.", Use.SET, within=(2, 64))
    lp: int = _trie(3, "Longest prefix matched in the trie, in tokens.", Use.SET, within=(1, 63))
    num_draft: int = _drafting(
        32,
        "Maximum number of draft nodes (tokens) per step.",
        Use.NONE,
        within=(0, 1024),
    )
    learn_output: bool = _trie(False, "Draft from the generated text as well.", Use.SET)
    pool: bool = _auto(
        True,
        "For auto: also draft from earlier answers of the model, and keep this one.",
        Use.SET | Use.USER_ONLY,
    )
    pool_documents: bool = _auto(
        False,
        "For auto: also keep quotations of documents in the pool.",
        Use.NGT | Use.SET | Use.USER_ONLY,
    )
    background: str = _auto(
        "english",
        "For auto: also draft from counts of words and phrases in general English; or none.",
        Use.SET,
        choices=("english", "none"),
        instead=removed.OWN_BACKGROUNDS,
    )
    calibrate: bool = _auto(
        True,
        "For auto: measure at first use what a forward pass costs on this device.",
        Use.NGT | Use.SET,
    )
    exact: str = _drafting(
        "auto",
        "Guarantee the tokens of plain decoding also in bfloat16 and float16; may be slower."
        " Without this flag (auto): only where that costs no speed.",
        Use.NGT | Use.COMMON,
        choices=SWITCH,
    )

    @property
    def effective(self) -> "DraftingSettings":
        """These settings, with defaults for those that the method does not use."""
        method = self.method.partition(":")[0]
        declared = [SETTINGS[attribute.name] for attribute in fields(self)]
        defaults = {
            about.name: about.default for about in declared if about.method not in ("", method)
        }
        return replace(self, **defaults)

    def _check(self) -> None:
        if self.lp >= self.n:
            hint = "The prefix lp must be shorter than the window n."
            raise SettingError("lp", f"lp is {self.lp}, but n is {self.n}", hint)


@dataclass(frozen=True, slots=True)
class AnswerSettings(_Part):
    """How an answer is made; a line of a batch may have its own."""

    max_tokens: int = _answer(
        256,
        f"Maximum length of an answer in tokens; {FORM_TOKENS} with --schema, --regex, --choices or"
        " --quote unless set.",
        Use.COMMON,
        within=(1, 10**6),
    )
    think: str = _answer(
        "auto",
        "on, off or auto: whether a reasoning model thinks before the answer. auto: as the model"
        " itself does.",
        Use.COMMON,
        choices=("on", "off", "auto"),
    )
    max_thinking: int = _answer(
        4096,
        "Reasoning models: maximum length of the reasoning in tokens; then the answer begins.",
        Use.NGT | Use.SET,
        within=(0, 10**6),
    )
    temperature: float = _sampling(
        0.0,
        "Sampling temperature; 0 always takes the likeliest token.",
        Use.COMMON,
        within=(0.0, 100.0),
    )
    top_p: float = _sampled(
        1.0,
        "Sample from the likeliest tokens whose probabilities add up to this.",
        Use.SET,
        within=(1e-6, 1.0),
    )
    top_k: int = _sampled(
        0, "Sample from this many of the likeliest tokens; 0: from all.", Use.SET, within=(0, 10**7)
    )
    min_p: float = _sampled(
        0.0,
        "Drop tokens less likely than the likeliest token times this.",
        Use.SET,
        within=(0.0, 1.0),
    )
    seed: int = _sampled(0, "Random seed for sampling.", within=(0, 2**63 - 1))
    repetition_penalty: float = _sampling(
        1.0,
        "Divide the logits of tokens in the prompt or the output by this; 1 is off.",
        Use.SET,
        within=(1e-3, 100.0),
    )
    presence_penalty: float = _sampling(
        0.0,
        "Subtract this from the logits of tokens in the output.",
        Use.SET,
        within=(-100.0, 100.0),
    )
    frequency_penalty: float = _sampling(
        0.0,
        "Subtract this from a logit for each time its token is in the output.",
        Use.SET,
        within=(-100.0, 100.0),
    )
    system: str = _answer(
        "",
        "System prompt, or @FILE with one.",
        Use.FILE | Use.COMMON,
    )
    chat_template: str = _answer(
        "", "Name of the chat template, for a model that has several.", Use.SET
    )
    template_arg: tuple[str, ...] = _answer(
        (),
        "Variable of the chat template as KEY=VALUE, in JSON or as text; may be repeated.",
        Use.SET,
    )
    template_documents: bool = _answer(
        False,
        "Put documents where the chat template has a place for them, not into the message.",
        Use.SET,
    )
    stop: tuple[str, ...] = _answer((), "Stop at this text; may be repeated.")
    schema: str = _answer(
        "",
        "The answer is JSON that follows this: fields such as 'name, age int, born date?, state"
        " paid|open, tags str[], proof quote, bio: a text', a JSON Schema, or a file with either.",
        Use.FILE | Use.NGT | Use.SCHEMA,
    )
    schema_multi: str = _answer(
        "",
        'The answer is {"items": [...]}, a list of objects that follow this schema.',
        Use.FILE | Use.NGT | Use.SCHEMA,
    )
    regex: str = _answer("", "The whole answer matches this regular expression.", Use.NGT)
    choices: tuple[str, ...] = _answer(
        (),
        "The answer is one of these, separated by commas; or a JSON list if some contain commas.",
        Use.CHOICES | Use.NGT,
    )
    quote: bool = _answer(False, "The answer quotes the documents word for word.", Use.NGT)
    ask_fields: bool = _answer(
        False,
        "For extract: ask for each field by itself, first for its sentence, then for the value in"
        " that sentence. The built-in model sets this.",
        Use.CARD | Use.NGT | Use.SET,
    )
    max_repeats: int = _answer(
        6,
        "End an answer that repeats its last words this many times in a row, over 128 tokens or"
        " more; 0: never.",
        Use.SET,
        within=(0, 10**6),
    )

    @property
    def has_form(self) -> bool:
        """Whether answers have a form that their tokens obey."""
        return any(getattr(self, name) for name in FORMS)

    def _check(self) -> None:
        template_variables(self.template_arg)


@dataclass(frozen=True, slots=True)
class RetrievalSettings(_Part):
    """Which parts of documents the model reads if they exceed its context."""

    overflow: str = _answer(
        "auto",
        "When documents do not fit the context: retrieve reads the passages nearest to the"
        " question, split summarizes part by part, truncate cuts, error stops. auto: retrieve for"
        " ask and chat, split for summarize, else error.",
        Use.COMMON,
        choices=("auto", "error", "truncate", "retrieve", "split"),
    )
    passages: int = _for_passages(
        -1,
        "Maximum number of passages to read; 0: as many as fit; -1: as many as fit into a quarter"
        " of the model's context, but at most 4,000 tokens. The built-in model reads 1.",
        within=(-1, 10**6),
    )
    passage_tokens: int = _for_passages(
        200, "Approximate length of a passage in tokens.", Use.SET, within=(16, 100_000)
    )
    passage_overlap: int = _for_passages(
        0,
        "Approximate number of tokens that a passage repeats of the one before it.",
        Use.SET,
        within=(0, 50_000),
    )
    whole_tokens: int = _for_passages(
        0,
        "Read passages of documents with more tokens than this, even if everything fits; 0: never."
        " The built-in model sets 240.",
        Use.SET,
        within=(0, 10**9),
    )
    embedder: str = _passages(
        "",
        "Embedding model (folder or Hugging Face id) that finds passages in addition to BM25.",
        Use.SET | Use.USER_ONLY,
        complete="models",
    )
    reranker: str = _passages(
        "",
        "Cross-encoder (folder or Hugging Face id) that reranks the best passages.",
        Use.SET | Use.USER_ONLY,
        complete="models",
    )

    def _check(self) -> None:
        if self.passage_overlap >= self.passage_tokens:
            raise SettingError(
                "passage_overlap",
                f"passage_overlap is {self.passage_overlap}"
                f" and passage_tokens is {self.passage_tokens}",
                "A passage must be longer than what it repeats of the one before it.",
            )


@dataclass(frozen=True, slots=True)
class ReadingSettings(_Part):
    """How files are found and read. With equal parts, the same files give the same text."""

    max_mb: int = _reading(
        256,
        "Maximum size of documents (or prompts) in megabytes.",
        Use.SET,
        within=(1, 10**6),
    )
    max_files: int = _reading(
        100_000, "Maximum number of files to look at in folders.", Use.SET, within=(1, 10**8)
    )
    max_depth: int = _reading(
        100,
        "Maximum depth of folders within folders.",
        Use.SET,
        within=(1, 2000),  # paths have at most 4096 bytes, so no more folders
    )
    strict: bool = _reading(
        False,
        "Stop at a file in a folder that cannot be read, instead of skipping it.",
        Use.TEXT | Use.SET,
    )
    password: str = _reading(
        "", "Password of encrypted PDFs; NGT_PASSWORD keeps it out of the process list.", Use.SECRET
    )
    field: str = _reading("", "Read only this field of JSON and CSV files.", Use.TEXT | Use.SET)
    encoding: str = _reading(
        "",
        "Encoding of text that is not UTF-8, such as latin-1 or shift_jis. [default: guessed]",
        Use.TEXT | Use.SET,
    )
    ocr: str = _reading(
        "auto",
        "Recognize text in pictures and on pages without text: auto, off, or force for all pages.",
        Use.TEXT | Use.SET,
        choices=("auto", "off", "force"),
    )
    ocr_language: str = _reading(
        "",
        "Recognize text with Tesseract in these languages, such as deu or deu+eng.",
        Use.TEXT | Use.SET,
    )
    parser_seconds: int = _reading(
        60,
        "Maximum CPU time in seconds to parse a file (PDF, Word, …) or a scanned page.",
        Use.SET | Use.USER_ONLY,
        within=(1, 86_400),
    )
    parser_mb: int = _reading(
        1000,
        "Maximum memory in megabytes to parse a file (PDF, Word, …) or a scanned page.",
        Use.SET | Use.USER_ONLY,
        within=(200, 10**6),  # the parsers themselves need 200 (measured)
    )

    def _check(self) -> None:
        _check_encoding(self.encoding)


@dataclass(frozen=True, slots=True)
class OutputSettings(_Part):
    """How answers are shown on a terminal."""

    color: str = _output(
        "auto", "Color: auto, always or never.", choices=("auto", "always", "never")
    )
    history: bool = _output(True, "Keep a history of what is typed in ngt chat.", Use.SET)


@dataclass(frozen=True, slots=True)
class CacheSettings(_Part):
    """What is kept on disk for the next question."""

    keep_documents: str = _cache(
        "auto",
        "Keep the KV cache of prompts on disk, so that the next question need not read them again."
        " Your documents can be recovered from it. auto: if reading took 2 s or more.",
        Use.NGT | Use.SET,
        choices=SWITCH,
    )
    cache_mb: int = _cache(
        4000,
        "Maximum size of the cache in megabytes; the least recently used is deleted first.",
        Use.SET,
        within=(1, 10**8),
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings, in parts by what they decide; see the module for where their values come from.

    A setting has the same name on the command line (with dashes), in variables and in files, which
    does not include the part. `of`, `replace`, `get` and `values` use these flat names.
    """

    model: ModelSettings = field(default_factory=ModelSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    drafting: DraftingSettings = field(default_factory=DraftingSettings)
    answer: AnswerSettings = field(default_factory=AnswerSettings)
    retrieval: RetrievalSettings = field(default_factory=RetrievalSettings)
    reading: ReadingSettings = field(default_factory=ReadingSettings)
    output: OutputSettings = field(default_factory=OutputSettings)
    cache: CacheSettings = field(default_factory=CacheSettings)

    def __post_init__(self) -> None:
        is_exact = self.drafting.exact not in ("auto", "off")
        if self.model.device_map == "auto" and is_exact:
            what = f"device_map is auto and exact is {shown(self.drafting.exact)}"
            raise SettingError("device_map", what, _ONE_DEVICE)

    @classmethod
    def of(cls, **values: Any) -> "Settings":
        """Return the default settings, changed by `values`. Raises SettingError.

        >>> Settings.of(max_tokens=9).answer.max_tokens
        9
        """
        return cls().replace(**values)

    def replace(self, **values: Any) -> "Settings":
        """Return these settings, changed by `values`.

        Raises:
            SettingError: A value is out of range, or contradicts another.
            TypeError: A name is not that of a setting.
        """
        by_part: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            if name not in PART_OF:
                raise TypeError(f"unknown setting {name}")
            by_part.setdefault(PART_OF[name], {})[name] = value
        parts = {part: replace(getattr(self, part), **changes) for part, changes in by_part.items()}
        return replace(self, **parts)

    def get(self, name: str) -> Any:
        """Return the value of the setting of that name."""
        return getattr(getattr(self, PART_OF[name]), name)

    def values(self) -> dict[str, Any]:
        """Return all values by name.

        >>> Settings.of(**Settings().values()) == Settings()
        True
        """
        return {name: self.get(name) for name in SETTINGS}


def _check_encoding(name: str) -> None:
    """Raise SettingError unless Python knows this text encoding."""
    try:
        "".encode(name or "utf-8")
    except (LookupError, ValueError):  # Python has an encoding "undefined" that always fails
        what = f"unknown encoding {shown(name)}"
        hint = "Name one as Python does: latin-1, cp1250, shift_jis, utf-16."
        raise SettingError("encoding", what, hint) from None


FORMS = ("schema", "schema_multi", "regex", "choices", "quote")  # settings; one at a time
# The class of each part of `Settings`, by the name of its field.
PARTS: Mapping[str, type[_Part]] = get_type_hints(Settings)
NGT_PARTS = tuple(part for part in PARTS if part != "engine")  # what ngt's own engine reads
# The part of `Settings` that each setting is in, by the setting's name.
PART_OF: Mapping[str, str] = {f.name: name for name, part in PARTS.items() for f in fields(part)}
SETTINGS: Mapping[str, Setting] = {
    f.name: replace(f.metadata["setting"], name=f.name)
    for part in PARTS.values()
    for f in fields(part)
}


def settings_in(*parts: str, without: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names of the settings in these parts, except for some.

    >>> settings_in("output", "cache", without=["history"])
    ('color', 'keep_documents', 'cache_mb')
    """
    return tuple(n for n, part in PART_OF.items() if part in parts and n not in without)


def settings_where(uses: Use = Use.NONE, **declared: Any) -> tuple[str, ...]:
    """Return the names of the settings that have all these uses, and these other attributes.

    >>> settings_where(Use.TRIE), settings_where(complete="methods")
    (('n', 'lp', 'learn_output'), ('method',))
    """
    return tuple(
        name
        for name, setting in SETTINGS.items()
        if uses in setting.uses and all(getattr(setting, k) == v for k, v in declared.items())
    )


# The settings that each line of a batch or each HTTP request may override. Only the user decides
# which models retrieval loads.
PER_REQUEST = (
    "method",
    "num_draft",
    *(n for n in settings_in("answer", "retrieval") if Use.USER_ONLY not in SETTINGS[n].uses),
)


def settings_schemas() -> dict[str, Schema]:
    """Return the JSON Schemas of the settings by name, with range or choices."""
    schemas: dict[str, Schema] = {}
    for part in PARTS.values():
        schemas |= schema_of(part)["properties"]
    for name, setting in SETTINGS.items():
        if setting.choices:
            schemas[name] = {"enum": list(setting.choices)}
        elif setting.kind in (int, float):
            low, high = setting.within
            schemas[name] |= {"minimum": low, "maximum": high}
    return schemas


def shown_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings by name for output, without the values of secrets."""
    values = settings.values()
    for name, value in values.items():
        if value and Use.SECRET in SETTINGS[name].uses:
            values[name] = "(set)"
    return values


@dataclass(frozen=True, slots=True)
class Layer:
    """The settings from one place.

    Attributes:
        origin: What `ngt config show` calls the place.
        values: The values of settings by name.
        ignored: Settings that this place may not set; see `project_layer`.
    """

    origin: str
    values: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Resolved:
    """The settings of all layers, and by name the origin of each value."""

    settings: Settings
    origins: Mapping[str, str]


def merge(layers: Sequence[Layer]) -> Resolved:
    """Merge layers; the first layer that has a setting determines its value.

    Raises UsageError for a value out of range.
    """
    values: dict[str, Any] = {}
    origins = dict.fromkeys(SETTINGS, "default")
    for layer in reversed(layers):
        values |= layer.values
        origins |= dict.fromkeys(layer.values, layer.origin)
    try:
        return Resolved(Settings.of(**values), origins)
    except SettingError as error:
        origin = origins[error.name]
        words = str(error)
        if origin == "flag" and words.startswith(f"{error.name} "):
            words = SETTINGS[error.name].flag + words.removeprefix(error.name)
        else:
            words += f" (from {origin})"
        raise UsageError(words, hint=error.hint) from None


def environment_and_file_layers() -> list[Layer]:
    """Return the layers between flags and preset: NGT_*, ./ngt.yaml, the user's config.yaml."""
    return [
        environment_layer(os.environ),
        project_layer(Path(PROJECT_FILE)),
        file_layer(home("config") / "config.yaml"),
    ]


def environment_layer(environ: Mapping[str, str]) -> Layer:
    """Return the values of NGT_* variables; an empty variable counts as unset."""
    values = {
        name: setting.from_text(environ[setting.variable], setting.variable)
        for name, setting in SETTINGS.items()
        if environ.get(setting.variable)
    }
    return Layer("environment", values)


def unknown_variables(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the NGT_* variables that no setting has, each with a hint."""
    known = [*(setting.variable for setting in SETTINGS.values()), "NGT_HOME"]
    unknown = []
    for variable in sorted(environ):
        if variable.startswith(_PREFIX) and variable not in known:
            hint = removed.SETTINGS.get(variable.removeprefix(_PREFIX).lower())
            unknown.append((variable, hint or nearest(variable, known, "See ngt config show.")))
    return unknown


def file_layer(path: Path) -> Layer:
    """Return the values of a settings file, which need not exist."""
    values = read_mapping(path) if os.path.lexists(path) else {}
    return Layer(str(path), {k: check_key(k, v, path) for k, v in values.items()})


def project_layer(path: Path) -> Layer:
    """Return the values of the settings file in the current folder, which may be someone else's.

    It may set how answers are made and how documents are read. It may not set what is loaded,
    fetched, kept or run, nor name other files: such settings are ignored and reported.
    """
    values = read_mapping(path) if os.path.lexists(path) else {}
    ignored = [name for name, value in values.items() if _is_user_only(name, value)]
    kept = {k: check_key(k, v, path) for k, v in values.items() if k not in ignored}
    return Layer(str(path), kept, tuple(ignored))


def _is_user_only(name: str, value: Any) -> bool:
    """Return whether only the user may set this value."""
    setting = SETTINGS.get(name)
    if setting is None:
        return False
    return Use.USER_ONLY in setting.uses or (
        Use.FILE in setting.uses and names_file(setting, value)
    )


def names_file(setting: Setting, value: Any) -> bool:
    """Return whether the value of a setting with Use.FILE names a file with the text."""
    if not isinstance(value, str):
        return False
    return bool(schema_file(value)) if Use.SCHEMA in setting.uses else value.startswith("@")


def schema_file(schema: str) -> str:
    """Return the file that a schema setting names; "" if it is the schema itself.

    >>> schema_file("@my fields"), schema_file(" fields.json"), schema_file("total: net/gross")
    ('my fields', 'fields.json', '')
    """
    name = schema.strip()
    if name.startswith("@"):
        return os.path.expanduser(name[1:])
    is_text = name.startswith("{") or re.search(r"[\s,:]", name)
    is_file = name.endswith(_SCHEMA_FILES) or os.sep in name
    return os.path.expanduser(name) if is_file and not is_text else ""


def ignored_warning(layer: Layer) -> str:
    """Return a warning about the ignored settings of a layer; "" if there are none."""
    if not layer.ignored:
        return ""
    names = ", ".join(layer.ignored)
    flags = ", ".join(SETTINGS[name].flag for name in layer.ignored)
    return (
        f"{layer.origin} in this folder may not set {names}, which is ignored. Give {flags}, or set"
        f" it in {home('config') / 'config.yaml'}"
    )


def check_key(name: str, value: Any, where: object, extra: tuple[str, ...] = ()) -> Any:
    """Check and return the value of a setting, in its type.

    Args:
        name: The name of the setting.
        value: The value, of any type.
        where: The path of its settings file, or the position of its line in a batch.
        extra: Other names that are allowed there.

    Raises:
        UsageError: There is no such setting, or the value is wrong.
    """
    if name in removed.SETTINGS:
        raise UsageError(f"{where}: the setting {name} was removed", hint=removed.SETTINGS[name])
    if name not in SETTINGS:
        raise UsageError(
            f"{where}: unknown key {shown(name)}", hint=nearest(name, (*SETTINGS, *extra))
        )
    setting = SETTINGS[name]
    typed = setting.typed(value, where)
    setting.check(typed, f"{where}: ")
    if Use.FILE not in setting.uses:
        return typed
    named = typed.strip() if Use.SCHEMA in setting.uses else typed
    if not named.startswith("@"):
        return typed
    if not isinstance(where, Path):  # a line of a batch
        raise UsageError(f"{where}: {name} is {shown(typed)}", hint="Write the text itself.")
    path = where.parent / os.path.expanduser(named[1:])  # relative to the settings file
    return f"@{path}"


def choices_of(text: str, where: object) -> tuple[str, ...]:
    """Parse a list of texts that is written with commas or, if texts contain commas, in JSON.

    Raises UsageError, whose message begins with `where`, if it is not a list of texts.

    >>> choices_of("yes, no", ""), choices_of('["Yes, Sir", "no"]', "")
    (('yes', 'no'), ('Yes, Sir', 'no'))
    """
    if not text.lstrip().startswith("["):
        stripped = [part.strip() for part in text.split(",")]
        return tuple(dict.fromkeys(part for part in stripped if part))
    hint = 'Write a list of texts in JSON, as in ["Yes, Sir", "no"].'
    try:
        choices = json.loads(text)
    except (ValueError, RecursionError):
        choices = None
    if not isinstance(choices, list) or not all(isinstance(item, str) for item in choices):
        raise UsageError(f"{where} is {shown(text)}", hint=hint)
    return tuple(dict.fromkeys(choices))
