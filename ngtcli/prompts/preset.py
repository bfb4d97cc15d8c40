"""Load presets (the wording and the settings of a task in a YAML file), and check tasks."""

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
_MAX_NUMBER = 1e300  # larger numbers, infinities and NaN are kept as text (guess)
TASKS = ("summarize", "ask")  # that a line of a batch may have
_OVERFLOW = {  # what overflow "auto" means for each task
    "summarize": "split",
    "generate": "error",
    "ask": "retrieve",
    "chat": "retrieve",
    "extract": "retrieve",
}


@dataclass(frozen=True, slots=True)
class Preset:
    """The wording and the settings of a task.

    Attributes:
        name: Its name.
        path: Its file.
        template: The wording, with {documents} and {question}.
        description: A line for `ngt presets list`.
        document: The wording of a single document, with {name}, {text} and {index}.
        titled_document: The wording of each of several documents.
        separator: The text between documents.
        settings: Its settings.
        provenance: Where its settings come from, as `ngt tune` writes it.
    """

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
    """Return the folders of presets, the user's first."""
    package = Path(__file__).parent.parent
    shipped = package / "presets"  # in a wheel; in a clone the folder is next to the package
    return [home("config") / "presets", shipped if shipped.is_dir() else package.parent / "presets"]


def preset_files() -> dict[str, Path]:
    """Return preset files by name, sorted; a user's file replaces a shipped one of its name."""
    files: dict[str, Path] = {}
    for folder in preset_folders():
        for path in sorted(folder.glob("*.yaml")):
            files.setdefault(path.stem, path)
    return dict(sorted(files.items()))


def load_preset(name: str) -> Preset:
    """Load a preset. Raises UsageError for an unknown name and for an invalid file."""
    files = preset_files()
    if name not in files:
        raise UsageError(f"no preset {shown(name)}", hint=nearest(name, files))
    try:
        return _read(name, files[name])
    except UsageError as error:
        raise UsageError(str(error), hint=f"{error.hint} {_OTHER_PRESET}") from None


def load_presets() -> tuple[list[Preset], list[BrokenPreset]]:
    """Return the valid presets, and the others."""
    valid: list[Preset] = []
    broken: list[BrokenPreset] = []
    for name, path in preset_files().items():
        try:
            valid.append(_read(name, path))
        except UsageError as error:
            broken.append(BrokenPreset(name, str(error), path))
    return valid, broken


def deciding(settings: Settings, preset: Preset) -> dict[str, Any]:
    """Return what an answer depends on as JSON: settings, and a hash of the wording."""
    values = {name: settings.get(name) for name in settings_where(Use.TEXT)}
    values |= {name: list(value) for name, value in values.items() if isinstance(value, tuple)}
    wording = key_of(preset.template, preset.document, preset.titled_document, preset.separator)
    return {**values, "wording": wording}


def _read(name: str, path: Path) -> Preset:
    """Read a preset file. Raises UsageError for an invalid one."""
    data = read_mapping(path)
    wording = {key: data[key] for key in _WORDING if key in data}
    for key, text in wording.items():
        if not isinstance(text, str):
            raise UsageError(f"{path}: {key} is {shown(text)}", hint="It must be a string.")
    origin = data.pop(PROVENANCE, {})
    if not isinstance(origin, dict):
        raise UsageError(f"{path}: {PROVENANCE} is {shown(origin)}", hint="It must be a mapping.")
    values = {
        key: check_key(key, value, path, _WORDING)
        for key, value in data.items()
        if key not in _WORDING
    }
    if "{documents}" not in wording.get("template", ""):
        raise UsageError(f"{path}: template lacks {{documents}}", hint="Add `template:` with it.")
    layer = Layer(f"preset {name}", values)
    return Preset(name, path, settings=layer, provenance=_plain(origin), **wording)


def _plain(value: Any) -> Any:
    """Convert a value of YAML to types of JSON, which has no dates, infinities or other keys."""
    if isinstance(value, dict):
        return {k if isinstance(k, str) else shown(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int | float) and abs(value) < _MAX_NUMBER:
        return value
    return shown(value) if isinstance(value, int) else str(value)


def can_ask(preset: Preset) -> bool:
    """Return whether the template of a preset has a place for a question."""
    return "{question}" in preset.template


def without_documents(preset: Preset) -> Preset:
    """Return the preset for a message without documents.

    >>> without_documents(Preset("ask", Path(), "{documents}\\n\\nQuestion: {question}")).template
    'Question: {question}'
    """
    return replace(preset, template=preset.template.replace("{documents}", "").strip())


def for_task(task: str, settings: Settings, preset: Preset) -> Settings:
    """Return the settings with the `overflow` of a task.

    Raises:
        UsageError: The task does not support that `overflow`, or the preset has no place for the
            question.
    """
    has_question = task != "summarize"
    if has_question and not can_ask(preset):
        raise UsageError(
            f"{preset.path}: preset {preset.name} has no place for a question",
            hint=f"Put {{question}} in its template. {_OTHER_PRESET}",
        )
    if has_question and task != "extract" and settings.retrieval.overflow == "split":
        raise UsageError(
            "--overflow split summarizes parts, and does not answer questions",
            hint="Use --overflow retrieve, which reads the passages that fit the question best.",
        )
    if task == "chat" and settings.retrieval.overflow == "truncate":
        raise UsageError(
            "--overflow truncate would leave no room for the conversation",
            hint="Use --overflow retrieve, which reads passages.",
        )
    if task == "summarize" and settings.retrieval.overflow == "retrieve":
        raise UsageError(
            "--overflow retrieve chooses passages by a question, and a summary has none",
            hint="Use --overflow truncate to cut the documents.",
        )
    if settings.retrieval.overflow == "auto":
        return settings.replace(overflow=_OVERFLOW[task])
    return settings
