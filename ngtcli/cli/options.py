"""Flags shared by commands: one for each setting, made from one table."""

import inspect
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial, wraps
from itertools import pairwise
from typing import Annotated, Any

import typer

from ngtcli.cli.completion import of_setting, presets
from ngtcli.cli.notes import Notes
from ngtcli.config import (
    CHOICES,
    OF_ENGINE,
    READING,
    RETRIEVING,
    SETTING_NAMES,
    SWITCH,
    Layer,
    Resolved,
    Settings,
    environment_and_file_layers,
    merge,
    unknown_variables,
)
from ngtcli.prompt.preset import Preset, load_preset

_HELP: dict[str, str] = {
    "model": "Folder of a transformers model, a hub id, or builtin.",
    "method": "How drafts are made: auto, none (plain decoding), trie, prompt-lookup, llma,"
    " akunu, trtllm, rest, suffix, lookahead, recycling or draft-model; options as NAME:KEY=VALUE.",
    "draft_model": "Model that drafts for --method draft-model; same tokenizer, smaller.",
    "n": "Window of the n-gram trie, in tokens.",
    "lp": "Longest prefix matched in the trie, in tokens.",
    "num_draft": "Most draft nodes a step.",
    "learn_output": "Draft from the generated text as well.",
    "pool": "For auto: draft from earlier answers of the model as well, and keep this one.",
    "pool_documents": "For auto: keep in the pool also what answers quote from documents.",
    "calibrate": "For auto: measure at first use what a pass costs on this device.",
    "exact": "The tokens of plain decoding bit for bit, in half precision too: all passes have as"
    " many rows as --num-draft allows; auto: where that costs nothing.",
    "max_tokens": "Most tokens of answer.",
    "temperature": "0 is greedy.",
    "top_p": "Keep the likeliest tokens up to this probability.",
    "top_k": "Keep this many tokens; 0 keeps all.",
    "min_p": "Drop tokens less likely than this share of the likeliest.",
    "seed": "Seed of sampling.",
    "repetition_penalty": "Divide scores of tokens seen in prompt and output; 1 is off.",
    "presence_penalty": "Subtract from scores of tokens in the output.",
    "frequency_penalty": "Subtract for each time a token is in the output.",
    "stop": "Stop at this text; may be given again.",
    "device": "auto, cuda, mps or cpu.",
    "dtype": "auto (float32 on a CPU), float32, bfloat16 or float16.",
    "threads": "Threads to compute with on a CPU; 0 takes as many as cores are idle.",
    "packed": "On a CPU, pack the weights where this makes passes over several tokens quicker.",
    "capture": "Capture the model's passes: CUDA graphs, or on a CPU recorded operations.",
    "compile": "Compile the model's passes with torch.compile; takes minutes.",
    "overflow": "Documents too long: error, truncate to cut them, retrieve to read the passages"
    " that fit the question best, split to summarize part by part; auto is retrieve for ask,"
    " split for summarize, else error.",
    "passages": "Most passages to read; 0 takes as many as fit.",
    "passage_tokens": "Tokens a passage, about.",
    "passage_overlap": "Tokens that a passage repeats of the one before it, about.",
    "max_mb": "Most megabytes of documents (or prompts, or recordings) read in all.",
    "max_files": "Most files looked at in folders.",
    "max_depth": "How deep folders in folders are read.",
    "strict": "A file in a folder that cannot be read is an error, not left out.",
    "password": "Password of encrypted PDFs; NGT_PASSWORD keeps it out of the process list.",
    "field": "Of JSON and CSV files, read this field alone.",
    "parser_seconds": "Most seconds for one PDF, Word, HTML, … file.",
    "parser_mb": "Most megabytes of memory for reading one of them.",
    "color": "auto, always or never.",
    "engine": "What runs the model: ngt, or vllm with ngt's drafts.",
    "tensor_parallel": "For vLLM: devices that share each layer.",
    "pipeline_parallel": "For vLLM: groups of layers, each on devices of its own.",
    "data_parallel": "For vLLM: copies of the model.",
    "ray": "For vLLM: spread over the machines of a Ray cluster.",
}
_PANELS = {
    "Drafting": (
        "method", "n", "lp", "num_draft", "learn_output", "draft_model", "pool", "pool_documents",
        "calibrate", "exact",
    ),
    "Sampling": (
        "temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty",
        "presence_penalty", "frequency_penalty",
    ),
    "Model": ("model", "device", "dtype", "threads", "packed", "capture", "compile"),
    "Reading": READING,
    "Passages": RETRIEVING,
    "Engine": OF_ENGINE,
    "Answer": ("max_tokens", "stop", "overflow", "color"),
}  # fmt: skip
_DEFAULTS = Settings()

PresetOption = Annotated[
    str | None,
    typer.Option(
        "--preset", "-p", help="Preset to use; see ngt presets list.", autocompletion=presets
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Say more on stderr.")]


def _parameter(name: str) -> inspect.Parameter:
    default = getattr(_DEFAULTS, name)
    panel = next(title for title, names in _PANELS.items() if name in names)
    word = name.replace("_", "-")
    switch = isinstance(default, bool) or _is_switch(name)
    flag = f"--{word}/--no-{word}" if switch else f"--{word}"
    flags = [flag, "-m"] if name == "model" else [flag]
    kind: Any = list[str] if isinstance(default, tuple) else bool if switch else type(default)
    shown = "" if default in ("", ()) else f" [default: {default}]"
    option = typer.Option(
        *flags,
        help=_HELP[name] + shown,
        rich_help_panel=panel,
        show_default=False,
        autocompletion=of_setting(name),
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, option],
    )


def _is_switch(name: str) -> bool:
    return CHOICES.get(name) == SWITCH


Command = Callable[..., Any]


def with_settings(command: Command) -> Command:
    """Give a command a flag for each setting; it gets those that were given as `flags`.

    A parameter of the command's own takes the place of the setting of that name.
    """
    return _with(SETTING_NAMES, command)


def with_own_engine(command: Command) -> Command:
    """As `with_settings`, for a command that runs models by ngt alone."""
    return _with([name for name in SETTING_NAMES if name not in OF_ENGINE], command)


def with_some_settings(*names: str) -> Callable[[Command], Command]:
    """As `with_settings`, for a command that reads only these settings."""
    return partial(_with, names)


def _with(names: Sequence[str], command: Command) -> Command:
    signature = inspect.signature(command, eval_str=True)
    own = [p for name, p in signature.parameters.items() if name != "flags"]
    shared = [name for name in names if name not in signature.parameters]
    settings = [_parameter(name) for name in shared]

    @wraps(command)
    def wrapper(**arguments: Any) -> Any:
        given = {name: arguments.pop(name) for name in shared}
        flags = {
            name: _typed(name, value)
            for name, value in given.items()
            if value is not None and value != []
        }
        return command(flags=flags, **arguments)

    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + settings
    wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper


def _typed(name: str, value: Any) -> Any:
    """The value of a flag as its setting has it."""
    if _is_switch(name):
        return "on" if value else "off"
    return tuple(value) if isinstance(value, list) else value


def with_flags(kind: type[Any]) -> Callable[[Command], Command]:
    """Give a command a flag for each field of the dataclass `kind`; it gets them as `given`.

    In help pages they stand where `given` does.
    """
    fields = inspect.signature(kind, eval_str=True).parameters

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)

        @wraps(command)
        def wrapper(**arguments: Any) -> Any:
            given = kind(**{name: arguments.pop(name) for name in fields})
            return command(given=given, **arguments)

        own = [
            p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in signature.parameters.values()
        ]
        at = list(signature.parameters).index("given")
        parameters = [*own[:at], *fields.values(), *own[at + 1 :]]
        wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return wrapper

    return decorate


def resolve(flags: dict[str, Any], preset: str | None, task: str) -> tuple[Resolved, Preset]:
    """Settings from all layers and the preset of the task. Raises UsageError."""
    return resolve_tasks(flags, preset, (task,))[task]


def resolve_tasks(
    flags: dict[str, Any], preset: str | None, tasks: Sequence[str]
) -> dict[str, tuple[Resolved, Preset]]:
    """For each task, settings from all layers and its preset. Raises UsageError."""
    layers = [Layer("flag", flags), *environment_and_file_layers()]
    presets = {task: load_preset(preset or task) for task in tasks}
    _remark_variables()
    return {task: (_merged([*layers, p.settings]), p) for task, p in presets.items()}


def resolve_without_preset(flags: dict[str, Any]) -> Resolved:
    """Settings from all layers but a preset. Raises UsageError."""
    _remark_variables()
    return _merged([Layer("flag", flags), *environment_and_file_layers()])


def _remark_variables() -> None:
    for name, hint in unknown_variables(os.environ):
        Notes().warn(f"{name} is not read. {hint}")


def _merged(layers: list[Layer]) -> Resolved:
    resolved = merge(layers)
    models = (resolved.settings.model, resolved.settings.draft_model or "builtin")
    if all(m == "builtin" or os.path.isdir(os.path.expanduser(m)) for m in models):
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # counts only before transformers is imported
    return resolved


def command_line() -> str:
    """The command line as it was given, but for a password: it goes into pages and reports."""
    words = ["ngt", *sys.argv[1:]]
    hidden = [
        "..." if before == "--password" else re.sub("^(--password=).*", r"\1...", word, flags=re.S)
        for before, word in pairwise(["", *words])
    ]
    return shlex.join(hidden)
