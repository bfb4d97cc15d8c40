"""The keys of what --json prints are public: `public_keys.txt` has each, with its type.

After a wanted change: `python -m tests.cli.test_public_keys` writes the file again, and
CHANGELOG.md names the keys.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ngtcli.cli.schema import build

FILE = Path(__file__).with_name("public_keys.txt")


def keys_of(schema: dict[str, Any], path: str) -> Iterator[str]:
    """Yield a line for each value that a schema describes: its path, its types, if it may lack."""
    options = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    kinds = {kind for option in options for kind in _kinds(option)} or _kinds(schema)
    yield f"{path}: {' | '.join(sorted(kinds))}"

    required = schema.get("required", ())
    if path.endswith(".settings"):  # those of config.py, each declared there
        return
    for name, inner in schema.get("properties", {}).items():
        optional = "" if name in required else "?"
        yield from keys_of(inner, f"{path}.{name}{optional}")
    if isinstance(schema.get("items"), dict):
        yield from keys_of(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from keys_of(schema["additionalProperties"], f"{path}.*")
    for option in options:
        if {"properties", "items", "additionalProperties"} & option.keys():
            _, *inner_lines = keys_of(option, path)
            yield from inner_lines


def _kinds(schema: dict[str, Any]) -> set[str]:
    kinds = schema.get("type", "any")
    if "const" in schema:
        kinds = repr(schema["const"])
    elif "enum" in schema:
        kinds = [repr(value) for value in schema["enum"]]
    return {kinds} if isinstance(kinds, str) else set(kinds)


def public_keys() -> str:
    definitions = build()["$defs"]
    lines = [line for name in sorted(definitions) for line in keys_of(definitions[name], name)]
    return "\n".join(dict.fromkeys(lines)) + "\n"


def test_public_keys_are_those_of_the_list() -> None:
    assert public_keys() == FILE.read_text(encoding="utf-8")


if __name__ == "__main__":
    FILE.write_text(public_keys(), encoding="utf-8")
