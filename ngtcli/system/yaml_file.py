"""Reads the YAML of settings files and presets.

It may have plain values of bounded size, without aliases and duplicate keys. Errors are a
UsageError with the file (or the variable) and the line.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ngtcli.errors import UsageError
from ngtcli.system.files import read_bounded
from ngtcli.system.json_form import dump_json
from ngtcli.words import reason_of

SETTINGS_BYTES = 1_000_000  # derived: 500 times a shipped preset; 0.5 s to parse, 12 s at worst
_MAX_SHOWN = 60  # characters of a value in a message (guess)


class _Loader(yaml.SafeLoader):
    """The safe loader without aliases, which can make a small file huge or a value endless."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="an alias; write the value out", problem_mark=mark)
        return super().compose_node(parent, index)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError):  # an impossible date, a number of too many digits
            problem = f"{shown(node.value)} is not a valid date or number"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep)
        if len(mapping) == len(node.value):
            return mapping
        names: set[str] = set()
        for key, _ in node.value:
            name = str(key.value)
            if name in names:
                problem = f"duplicate key {shown(key.value)}"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            names.add(name)
        return mapping


def parse_yaml(text: str, where: object) -> Any:
    """Parse a YAML text. Raises UsageError, whose message begins with `where`."""
    try:
        return yaml.load(text, Loader=_Loader)  # _Loader is a SafeLoader
    except RecursionError:
        message = "nested too deeply"
    except yaml.YAMLError as error:
        message = "not valid YAML"
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None)
        if mark:
            message += f" at line {mark.line + 1}"
        if problem:
            message += f" ({problem})"
    raise UsageError(f"{where}: {message}", hint="Correct it.") from None


def read_text(path: Path) -> str:
    """Read a regular file of at most SETTINGS_BYTES in UTF-8. Raises UsageError."""
    try:
        return read_bounded(path, SETTINGS_BYTES).decode("utf-8")
    except OSError as error:
        is_broken = path.is_symlink() and not path.exists()
        reason = "a broken link" if is_broken else reason_of(error)
        raise UsageError(
            f"{path}: cannot be read ({reason})", hint="Correct or remove it."
        ) from None
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}: byte {error.start} is not UTF-8", hint="Save it as UTF-8."
        ) from None


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file with a mapping from strings; {} for an empty file.

    Raises UsageError for any other content.
    """
    data = parse_yaml(read_text(path), path)
    if data is None:
        return {}
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise UsageError(
            f"{path}: not a mapping of settings", hint="Write one `key: value` per line."
        )
    return data


def shown(value: Any) -> str:
    """Return a value as a user writes it; a long one is shortened in the middle.

    >>> shown("x" * 100)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxx...xxxxxxxxxxxxxxxxxxxxxxxxxxx'"
    >>> shown([True, None, float("nan"), 0.5])
    '[true, null, NaN, 0.5]'
    """
    try:
        text = repr(value) if isinstance(value, str) else dump_json(value, None)
    except TypeError:  # a date
        text = str(value)
    except ValueError:  # Python does not write numbers of more than 4300 digits
        return "a number of thousands of digits"
    if len(text) <= _MAX_SHOWN:
        return text
    half = _MAX_SHOWN // 2
    return f"{text[: half - 1]}...{text[2 - half :]}"


class _Dumper(yaml.SafeDumper):
    """Writes YAML as people do: texts of several lines as blocks, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, text: str) -> yaml.ScalarNode:
        style = None
        if "\n" in text.strip("\n"):
            style = "|"
        elif "\n" in text:
            style = '"'
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_str)


def written(values: Mapping[str, Any]) -> str:
    """Write a mapping as YAML, in its order."""
    text: str = yaml.dump(
        dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=96
    )
    return text
