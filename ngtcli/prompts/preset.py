"""Presets, the wording and the settings of a task in one YAML file, and what each task needs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ngtcli.config import Layer, Settings, Use, check_key, settings_where
from ngtcli.errors import UsageError
from ngtcli.system.files import home, key_of
from ngtcli.system.yaml_file import read_mapping, shown
from ngtcli.words import nearest

_WORDING = ("description", "template", "document", "titled_document", "separator")
PROVENANCE = "provenance"  # key of a mapping that says where a preset's settings come from
_OTHER_PRESET = "Or use another preset with -p NAME."
_MOST = 1e300  # larger numbers, infinities and NaN are kept as text; guessed
TASKS = ("summarize", "ask")  # of a line of a batch
_OF_QUESTIONS = dict.fromkeys(("ask", "chat", "extract"), "retrieve")
_OVERFLOW = {"summarize": "split", "generate": "error", **_OF_QUESTIONS}


@dataclass(frozen=True, slots=True)
class Preset:
    """Wording and settings of one task; `{documents}` and `{question}` are filled in `template`."""

    name: str
    path: Path
    template: str
    description: str = ""
    document: str = "{text}"
    titled_document: str = "{name}\n{text}"
    separator: str = "\n\n"
    settings: Layer = Layer("preset")
    provenance: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BrokenPreset:
    """A preset file that cannot be used, and why."""

    name: str
    error: str
    path: Path


def preset_folders() -> list[Path]:
    """The folders in which presets are searched, the user's own first."""
    package = Path(__file__).parent.parent
    shipped = package / "presets"  # in a wheel; in a clone the folder is next to the package
    return [home("config") / "presets", shipped if shipped.is_dir() else package.parent / "presets"]


def preset_files() -> dict[str, Path]:
    """Preset files by name, sorted; a user's preset replaces a shipped one of the same name."""
    found: dict[str, Path] = {}
    for folder in preset_folders():
        for path in sorted(folder.glob("*.yaml")):
            found.setdefault(path.stem, path)
    return dict(sorted(found.items()))


def load_preset(name: str) -> Preset:
    """The preset of that name. Raises UsageError for an unknown name and for a bad file."""
    files = preset_files()
    if name not in files:
        raise UsageError(f"no preset {shown(name)}", hint=nearest(name, files))
    try:
        return _read(name, files[name])
    except UsageError as error:
        raise UsageError(str(error), hint=f"{error.hint} {_OTHER_PRESET}") from None


def load_presets() -> tuple[list[Preset], list[BrokenPreset]]:
    """All presets that can be read, and those that cannot."""
    good: list[Preset] = []
    bad: list[BrokenPreset] = []
    for name, path in preset_files().items():
        try:
            good.append(_read(name, path))
        except UsageError as error:
            bad.append(BrokenPreset(name, str(error), path))
    return good, bad


def deciding(settings: Settings, preset: Preset) -> dict[str, Any]:
    """The settings on which an answer depends, and a hash of its wording, JSON-ready."""
    p = preset
    values = {name: settings.get(name) for name in settings_where(Use.TEXT)}
    values |= {name: list(value) for name, value in values.items() if isinstance(value, tuple)}
    wording = key_of(p.template, p.document, p.titled_document, p.separator)
    return {**values, "wording": wording}


def _read(name: str, path: Path) -> Preset:
    data = read_mapping(path)
    wording = {k: data[k] for k in _WORDING if k in data}
    for key, text in wording.items():
        if not isinstance(text, str):
            raise UsageError(f"{path}: {key} is {shown(text)}", hint="It must be a string.")
    origin = data.pop(PROVENANCE, {})
    if not isinstance(origin, dict):
        raise UsageError(f"{path}: {PROVENANCE} is {shown(origin)}", hint="It must be a mapping.")
    values = {k: check_key(k, v, path, _WORDING) for k, v in data.items() if k not in _WORDING}
    if "{documents}" not in wording.get("template", ""):
        raise UsageError(f"{path}: template lacks {{documents}}", hint="Add `template:` with it.")
    layer = Layer(f"preset {name}", values)
    return Preset(name, path, settings=layer, provenance=_plain(origin), **wording)


def _plain(value: Any) -> Any:
    """`value` in types of JSON, which has no dates and no infinities, and only strings as keys."""
    if isinstance(value, dict):
        return {k if isinstance(k, str) else shown(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | bool):
        return value
    number = isinstance(value, int | float) and abs(value) < _MOST
    return value if number else shown(value) if isinstance(value, int) else str(value)


def can_ask(preset: Preset) -> bool:
    """Whether a preset has a place for a question."""
    return "{question}" in preset.template


def without_documents(preset: Preset) -> Preset:
    """The preset for a message that has none.

    >>> without_documents(Preset("ask", Path(), "{documents}\\n\\nQuestion: {question}")).template
    'Question: {question}'
    """
    return replace(preset, template=preset.template.replace("{documents}", "").strip())


def for_task(task: str, settings: Settings, preset: Preset) -> Settings:
    """The settings with `overflow` as this task has it.

    Raises UsageError where the task cannot have it, or the preset has no place for a question.
    """
    asks = task != "summarize"
    if asks and not can_ask(preset):
        what = f"{preset.path}: preset {preset.name} has no place for a question"
        raise UsageError(what, hint=f"Put {{question}} in its template. {_OTHER_PRESET}")
    if asks and task != "extract" and settings.retrieval.overflow == "split":
        raise UsageError(
            "--overflow split summarizes parts, and does not answer questions",
            hint="Use --overflow retrieve, which reads the passages that fit the question best.",
        )
    if task == "chat" and settings.retrieval.overflow == "truncate":
        what = "--overflow truncate would leave no room for what is said"
        raise UsageError(what, hint="Use --overflow retrieve, which reads passages.")
    if task == "summarize" and settings.retrieval.overflow == "retrieve":
        what = "--overflow retrieve chooses passages by a question, and a summary has none"
        raise UsageError(what, hint="Use --overflow truncate to cut the documents.")
    if settings.retrieval.overflow == "auto":
        return settings.replace(overflow=_OVERFLOW[task])
    return settings
