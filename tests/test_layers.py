"""The house's rules: who may import whom, and what starting up must not load."""

import ast
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.support.helpers import run_and_look

PACKAGE = Path(__file__).parents[1] / "ngtcli"
# A file imports only from its own room and from rooms that stand before it here.
ROOMS = [
    "__init__", "words", "errors", "removed", "system", "config", "documents", "tokens",
    "model_files", "grammar", "retrieve", "prompt", "grounding", "trie", "background", "draft",
    "weights",
    "decode", "heads", "session", "engines", "batch", "measure", "render", "builtin", "serve",
    "cli", "__main__",
]  # fmt: skip
# torch lives in weights, decode and heads; measuring needs it as well.
TORCH_ROOMS = {"weights", "decode", "heads", "measure"}


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imports(nodes: Iterable[ast.AST]) -> set[str]:
    """Modules imported by statements among these nodes."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def test_imports_go_downward() -> None:
    """Inside functions and for type checks, too."""
    wrong = []
    for file in sorted(PACKAGE.rglob("*.py")):
        own = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        place, tree = ROOMS.index(own), ast.parse(file.read_text(encoding="utf-8"))
        ours = [name for name in imports(ast.walk(tree)) if name.split(".")[0] == "ngtcli"]
        wrong += [(file.name, name) for name in ours if ROOMS.index(room(name)) > place]
        heavy = {name.split(".")[0] for name in imports(tree.body)} & {"torch", "transformers"}
        if own not in TORCH_ROOMS:
            wrong += [(file.name, name) for name in heavy]
    assert not wrong


LIGHT = [
    "--help", "summarize --help", "--version", "presets list", "config show", "cache path",
    "env", "summarize nowhere.txt", "models list", "bench --help", "tune --help",
    "tune --sweep n=x", "trie list", "cache list", "batch --help", "batch nowhere.jsonl",
]  # fmt: skip


def test_light_commands_load_neither_torch_nor_transformers() -> None:
    """One after the other in one process: the first that loads one of them is named."""
    heavy = {"torch", "transformers", "tokenizers", "numpy", "numba"}
    run_and_look([command.split() for command in LIGHT], heavy)


def test_what_a_client_imports_is_light() -> None:
    """Questions and events alone, in a process that has loaded nothing else."""
    heavy = {"torch", "transformers", "tokenizers", "numpy", "numba"}
    code = (
        "import sys, ngtcli.session.events, ngtcli.session.question\n"
        f"assert not {heavy!r} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
