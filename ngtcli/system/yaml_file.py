"""Reads the YAML of settings files and presets: plain values of bounded size, no key twice.

What cannot be read raises a UsageError that names the file (or the variable) and the line.
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
_SHOWN = 60  # characters of a value in a message; guess


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
            problem = f"{shown(node.value)} looks like a date or a number and is not one"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep)
        seen: set[str] = set()
        for key, _ in node.value if len(mapping) < len(node.value) else ():
            if (name := str(key.value)) in seen:
                problem = f"{shown(key.value)} stands there twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(name)
        return mapping


def parse_yaml(text: str, where: object) -> Any:
    """The value of a YAML text. Raises UsageError, whose message begins with `where`."""
    try:
        return yaml.load(text, Loader=_Loader)  # _Loader is a SafeLoader
    except RecursionError:
        what = "nested too deeply"
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        place = f" at line {mark.line + 1}" if mark else ""
        what = f"not valid YAML{place}" + (f" ({problem})" if problem else "")
    raise UsageError(f"{where}: {what}", hint="Mend it.") from None


def read_text(path: Path) -> str:
    """The UTF-8 text of a regular file up to SETTINGS_BYTES. Raises UsageError."""
    try:
        return read_bounded(path, SETTINGS_BYTES).decode("utf-8")
    except OSError as error:
        is_broken = path.is_symlink() and not path.exists()
        reason = "a link to a file that is not there" if is_broken else reason_of(error)
        raise UsageError(f"{path}: cannot be read ({reason})", hint="Mend or remove it.") from None
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}: byte {error.start} is not UTF-8", hint="Save it as UTF-8."
        ) from None


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file, which has only strings as keys; {} for an empty file.

    Raises UsageError for any other content.
    """
    data = parse_yaml(read_text(path), path)
    if data is None:
        return {}
    if not isinstance(data, dict) or not all(isinstance(k, str) for k in data):
        raise UsageError(
            f"{path}: not a mapping of settings", hint="Write one `key: value` a line."
        )
    return data


def shown(value: Any) -> str:
    """A value as a user wrote it, shortened in the middle where it is long.

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
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2 - 1]}...{text[2 - _SHOWN // 2 :]}"


class _Dumper(yaml.SafeDumper):
    """YAML as people write it: texts of several lines as blocks, and every value written out."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, text: str) -> yaml.ScalarNode:
        style = "|" if "\n" in text.strip("\n") else '"' if "\n" in text else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_str)


def written(values: Mapping[str, Any]) -> str:
    """The YAML of a mapping, in its order."""
    text: str = yaml.dump(
        dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=96
    )
    return text
