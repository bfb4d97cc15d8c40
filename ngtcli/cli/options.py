"""Flags shared by commands: one for each setting, made from one table."""

import inspect
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from ngtcli import config, removed
from ngtcli.cli.completion import of_setting, of_settings, presets
from ngtcli.cli.notes import Notes
from ngtcli.cli.show import View, show
from ngtcli.cli.streams import choose_color
from ngtcli.engine.request import Tasks
from ngtcli.engine.settings import apply_to_process, settings_of
from ngtcli.errors import UsageError
from ngtcli.prompts.preset import Preset, load_preset
from ngtcli.system.cache import cache_limit
from ngtcli.words import nearest, shortened

# What says how single answers end, and what is kept of them.
_OF_ANSWERS = ("max_repeats", "max_thinking", "keep_documents", "history")
# What commands read that compare whole answers of models that ngt runs.
OF_OWN_ENGINE = config.settings_in(*config.NGT_PARTS, without=_OF_ANSWERS)
# Of summaries, which have no form.
OF_SUMMARIES = config.settings_in(*config.PARTS, without=config.FORMS)
# Of commands that answer many texts.
OF_MANY = config.settings_in(*config.PARTS, without=["keep_warm"])
_SHORT_FLAGS = {"model": ("-m",), "system": ("-s",), "temperature": ("-t",)}  # by setting
PresetOption = Annotated[
    str | None,
    typer.Option(
        "--preset",
        "-p",
        metavar="NAME",
        help="Preset to use; see ngt presets list.",
        autocompletion=presets,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
DocsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--docs",
        "-d",
        metavar="PATH",
        help="Document: a file, folder, glob or -; repeat -d for each.",
    ),
]
ThinkingOption = Annotated[
    bool,
    typer.Option("--show-thinking", help="Show the reasoning before the answer, too."),
]
ForceOption = Annotated[
    bool,
    typer.Option("--force", help="Overwrite a file that ngt did not write, or that was edited."),
]
LimitOption = Annotated[
    int, typer.Option("--limit", min=0, help="Process only the first N; 0: all.")
]
RestartOption = Annotated[
    bool, typer.Option("--restart", help="Ignore earlier progress and start over.")
]
_SIZE = "Texts decoded together; 0: as memory allows."
SizeOption = Annotated[int, typer.Option("--batch-size", min=0, max=4096, help=_SIZE)]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Say more on stderr.")]


def named_file(text: str) -> Path:
    """The path of a file to write; a `Path` of ./- alone would be that of -."""
    path = Path(text)
    return path if text == "-" or str(path) != "-" else path.absolute()


file_option = partial(typer.Option, parser=named_file, metavar="<path>")


def _parameter(setting: config.Setting) -> inspect.Parameter:
    """The flag of a setting."""
    flag = setting.flag
    flags = [f"{flag}/--no-{flag[2:]}" if setting.is_switch else flag]
    kind: Any = list[str] if setting.kind is tuple else bool if setting.is_switch else setting.kind
    shown = typer.Option(
        *flags,
        *_SHORT_FLAGS.get(setting.name, ()),
        rich_help_panel=setting.panel,
        show_default=False,
        help=f"{setting.help} {_default(setting.default)}".rstrip(),
        autocompletion=of_setting(setting),
    )
    return _keyword(setting.name, Annotated[kind | None, shown])


def _keyword(name: str, kind: Any, default: Any = None) -> inspect.Parameter:
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=default, annotation=kind)


def _set_option(names: Sequence[str]) -> inspect.Parameter:
    """`--set NAME=VALUE`, for each of these settings."""
    option = typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Set any option by name; ngt config show lists them.",
        autocompletion=of_settings(names),
    )
    return _keyword("set", Annotated[list[str] | None, option])


def set_values(items: Sequence[str], names: Sequence[str]) -> dict[str, Any]:
    """The settings in NAME=VALUE texts, as their flags would have them. Raises UsageError.

    >>> set_values(["n=16", "packed=no", "stop=a", "stop=b"], tuple(config.SETTINGS))
    {'n': 16, 'packed': False, 'stop': ('a', 'b')}
    """
    values: dict[str, Any] = {}
    for item in items:
        given, equals, text = item.partition("=")
        name = given.strip().replace("-", "_")
        if name in removed.SETTINGS:
            raise UsageError(
                f"--set {shortened(item)}: no setting any more", hint=removed.SETTINGS[name]
            )
        if not equals or name not in names:
            what = f"--set {shortened(item)}: {'no such setting here' if equals else 'no value'}"
            raise UsageError(
                what, hint=nearest(name, names) if equals else "Give --set NAME=VALUE."
            )
        value = config.SETTINGS[name].from_text(text, "--set")
        values[name] = (*values.get(name, ()), *value) if isinstance(value, tuple) else value
    return values


def _default(value: Any) -> str:
    """The default as help pages show it; its bracket is escaped, being one of markup."""
    words = {True: "on", False: "off"} if isinstance(value, bool) else {}
    text = ", ".join(value) if isinstance(value, tuple) else words.get(value, value)
    return "" if text == "" else rf"\[default: {text}]"


Command = Callable[..., Any]


def with_settings(
    names: Sequence[str] = tuple(config.SETTINGS), view: View | None = None, *, schema: Any = None
) -> Callable[[Command], Command]:
    """Give a command a flag for each of these settings; it gets those that were given as `flags`.

    A parameter of the command's own takes the place of the setting of that name. In the place of a
    parameter `given`, whose type is a dataclass, there is a flag for each field of that.
    With a `view` the command returns a report, or yields it and goes on: --json prints it, else
    the view shows it. `schema` makes its schema where the type returned does not say all.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        asks, (kind, own) = signature.parameters, _own_parameters(signature)
        if adds_json := view is not None and "json" not in asks:
            own.append(_keyword("json", JsonOption, False))
        free = [name for name in names if name not in {p.name for p in own}]
        settings = _of_settings(free)

        @wraps(command)
        def wrapper(**arguments: Any) -> Any:
            verbose, json = bool(arguments.get("verbose")), bool(arguments.get("json"))
            if adds_json:
                del arguments["json"]
            flags = _given({p.name: arguments.pop(p.name) for p in settings}, free)
            given = {n: arguments.pop(n) for n in [*arguments] if n not in asks}
            arguments |= {"given": kind(**given)} if kind else {}
            arguments |= {"flags": flags} if "flags" in asks else {}
            try:
                made = command(**arguments)
                return made if view is None else show(made, json, view)
            finally:
                _bound_cache(verbose)

        typed: Any = wrapper
        if view is not None:
            returned = signature.return_annotation
            is_made = inspect.isgeneratorfunction(command)
            typed.printed = schema or (get_args(returned)[0] if is_made else returned)
        typed.__signature__ = signature.replace(parameters=[*own, *settings])
        typed.__annotations__ = {p.name: p.annotation for p in [*own, *settings]}
        return wrapper

    return decorate


def _own_parameters(signature: inspect.Signature) -> tuple[Any, list[inspect.Parameter]]:
    """The type of `given`, None without; and a command's parameters, with that one's fields."""
    kind, own = None, list[inspect.Parameter]()
    for p in signature.parameters.values():
        if p.name == "given":
            kind = p.annotation
            own += inspect.signature(kind, eval_str=True).parameters.values()
        elif p.name != "flags":
            own.append(p.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    return kind, own


def _of_settings(names: Sequence[str]) -> list[inspect.Parameter]:
    """The flags of settings, and --set for those that have none of their own."""
    every = [config.SETTINGS[name] for name in names]
    found = [_parameter(one) for one in every if config.Use.SET not in one.uses]
    return [*found, *([_set_option(names)] if len(found) < len(names) else [])]


def reports(view: View, *, schema: Any = None) -> Callable[[Command], Command]:
    """The same for a command without settings, which gives a report."""
    return with_settings((), view, schema=schema)


def _bound_cache(verbose: bool) -> None:
    """Bring the cache within its bound, if this command wrote to it, and tell what was removed."""
    removed = cache_limit.finish()
    bound = f"it may have {removed.limit / 1e6:g} MB (--set cache_mb)"
    if removed.bytes and verbose:
        what = f"Removed from the cache what was used longest ago, {removed.words}: {bound}."
        Notes().remark(what)


def _given(arguments: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The settings that were given as flags, or by --set, with their values."""
    flags: dict[str, Any] = {}
    more = set_values(arguments.get("set") or (), names)
    for name, value in arguments.items():
        if name == "set" or value is None or value == []:
            continue
        setting = config.SETTINGS[name]
        if name in more:
            raise UsageError(f"{setting.flag} with --set {name}", hint="Give one of them.")
        if setting.choices and setting.is_switch:
            value = "on" if value else "off"
        if config.Use.CHOICES in setting.uses:
            value = [one for text in value for one in config.choices_of(text, setting.flag)]
        flags[name] = setting.typed(value, setting.flag) if isinstance(value, list) else value
    flags |= more
    if empty := next((n for n in config.FORMS if n in flags and flags[n] in ("", ())), None):
        what = f"{config.SETTINGS[empty].flag} is empty"
        raise UsageError(what, hint="Say what the answer is like, or leave it out.")
    return flags


def names_in(flag: str, text: str | None) -> list[str]:
    """The names in a flag's list with commas; none where it is not given. Raises UsageError."""
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    if text is not None and not names:
        raise UsageError(f"{flag} is empty", hint="Give it a value, or leave it out.")
    return names


def numbers_of(flag: str, text: str | None) -> list[int]:
    """The numbers of draft nodes in a list with commas, each once. Raises UsageError."""
    most, names = int(config.SETTINGS["num_draft"].within[1]), names_in(flag, text)
    numbers = [int(name) if name.isdecimal() and len(name) < 9 else 0 for name in names]
    if not all(1 <= number <= most for number in numbers):
        what = f"{flag} {text}: not numbers from 1 to {most}"
        raise UsageError(what, hint=f"Give them as in {flag} 16,32,64.")
    return list(dict.fromkeys(numbers))


def resolve(flags: dict[str, Any], preset: str | None) -> tuple[config.Resolved, Preset]:
    """Settings from all layers, with origins, and the preset, else summarize. Raises UsageError."""
    chosen = load_preset("summarize" if preset is None else preset)
    resolved = settings_of([*layers_of(flags), chosen.settings])
    apply_to_process(resolved.settings)
    return resolved, chosen


def tasks_of(
    flags: dict[str, Any], preset: str | None, tasks: Sequence[str], *, worded: bool = False
) -> Tasks:
    """The tasks by all layers; `worded` as for `Tasks.resolved`. Raises UsageError."""
    resolved = Tasks.resolved(layers_of(flags), preset, tasks, worded=worded)
    for settings, _ in resolved.of.values():
        apply_to_process(settings)
    return resolved


def layers_of(flags: Mapping[str, Any]) -> list[config.Layer]:
    """All layers but a preset; what is not read of variables and files is named on stderr."""
    for name, hint in config.unknown_variables(os.environ):
        Notes().warn(f"{name} is not read. {hint}")
    layers = [config.Layer("flag", flags), *config.environment_and_file_layers()]
    for layer in layers:
        if words := config.words_of_ignored(layer):
            Notes().warn(words)
    color = next((layer.values["color"] for layer in layers if "color" in layer.values), "auto")
    choose_color(color)
    return layers


def command_line() -> str:
    """The command line as it was given, but for a password: it goes into pages and reports."""
    words = ["ngt", *sys.argv[1:]]
    secret = re.compile("^(--password=|(--set=)? *password *=).*", re.DOTALL)
    hidden = [
        "..." if before == "--password" else secret.sub(r"\1...", word)
        for before, word in pairwise(["", *words])
    ]
    return shlex.join(hidden)
