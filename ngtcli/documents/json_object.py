"""One JSON object from a text, as lines of files have them."""

import json
import re
from collections import Counter
from typing import Any

from ngtcli.errors import InputError
from ngtcli.system.yaml_file import shown

HINT = "Write one JSON object a line."
_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # an escaped half of a character, or of a pair


def json_object(line: str) -> dict[str, Any]:
    """The object that a line holds.

    Raises InputError for what is no JSON object, is nested too deeply, has a key twice, or holds
    text that is no Unicode.

    >>> json_object('{"id": 3}')
    {'id': 3}
    """
    try:
        data = json.loads(line, object_pairs_hook=_each_once)
        if _HALF.search(line):
            json.dumps(data, ensure_ascii=False).encode()
    except RecursionError:
        raise InputError("nested too deeply", HINT) from None
    except UnicodeEncodeError:
        raise InputError(
            "half of a character (a lone surrogate)", "Write characters whole."
        ) from None
    except ValueError as error:
        raise InputError(f"not JSON ({_place(error)})", HINT) from None
    if not isinstance(data, dict):
        raise InputError("no JSON object", HINT)
    return data


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of its keys and values, of which none is lost. Raises InputError."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise InputError(f"{shown(twice)} stands there twice", "Give each key once.")
    return found


def _place(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg.lower()} at character {error.pos + 1}"
    return str(error).split(":", 1)[0].lower()  # a number with too many digits
