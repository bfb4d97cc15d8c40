"""The house's rules: who may import whom, and what starting up must not load."""

import ast
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.support.helpers import run_and_look

PACKAGE = Path(__file__).parents[1] / "ngtcli"
# From the bottom up: a file imports only from its own package and from those before it.
LAYERS = [
    "__init__", "builtin", "words", "errors", "removed", "system", "config", "documents",
    "models", "retrieval", "drafting", "decoding", "heads", "prompts", "engine", "bench",
    "render", "server", "cli", "__main__",
]  # fmt: skip
# Imports that go upward until the engine is redrawn. None may be added.
UPWARD = {}
# Files that may load torch and transformers as they are imported.
TORCH = ("models/hf.py", "models/weights/", "decoding/", "heads/", "bench/")


def layer(module: str) -> int:
    parts = module.split(".")
    return LAYERS.index(parts[1] if len(parts) > 1 else "__init__")


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
    upward = set()
    heavy = []
    for file in sorted(PACKAGE.rglob("*.py")):
        path = file.relative_to(PACKAGE).as_posix()
        own_layer = LAYERS.index(path.split("/")[0].removesuffix(".py"))
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for module in imports(ast.walk(tree)):
            if module.split(".")[0] == "ngtcli" and layer(module) > own_layer:
                upward.add((path, module))
        roots = {module.split(".")[0] for module in imports(tree.body)}
        if not path.startswith(TORCH):
            heavy += [(path, root) for root in roots & {"torch", "transformers"}]
    assert not upward
    assert not heavy


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
        "import sys, ngtcli.engine.events, ngtcli.engine.request\n"
        f"assert not {heavy!r} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
