"""The house's rules: who may import whom, and what starting up must not load."""

import ast
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.support.helpers import assert_not_loaded

PACKAGE = Path(__file__).parents[1] / "ngtcli"
# From the bottom up: a file imports only from its own package and from those before it.
LAYERS = [
    "__init__",
    "builtin",
    "words",
    "errors",
    "removed",
    "system",
    "config",
    "documents",
    "models",
    "retrieval",
    "drafting",
    "decoding",
    "heads",
    "prompts",
    "engine",
    "bench",
    "render",
    "server",
    "cli",
    "__main__",
]
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


# Circles that are left, by the modules in them. None may be added.
CIRCLES = [
    # A model is found by its name: an adapter names its model, a GGUF file is unpacked as one.
    {"adapters", "checkpoint", "gguf", "pretrained", "requirements", "stand_in"},
    {"app", "process"},  # of the server: the application asks the process that it is part of
]


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    """Nor inside a package. As above, imports inside functions and for type checks count."""
    files = {
        ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): file
        for file in PACKAGE.rglob("*.py")
    }
    imported = {module: imported_modules(file, files) for module, file in files.items()}
    circles = [
        {module.split(".")[-1] for module in circle}
        for circle in strongly_connected(imported)
        if len(circle) > 1
    ]
    assert not [circle for circle in circles if not any(circle <= known for known in CIRCLES)]


def imported_modules(file: Path, files: Iterable[str]) -> set[str]:
    """The modules that a file imports, of these; a name of a package may be a module in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & set(files) or {node.module}
    return found & set(files)


def strongly_connected(edges: dict[str, set[str]]) -> list[set[str]]:
    """The components of a directed graph in which each node reaches each other one."""
    reached = {node: reachable(node, edges) for node in edges}
    components = []
    left = set(edges)
    for node in sorted(edges):
        if node in left:
            component = {node} | {other for other in reached[node] if node in reached[other]}
            components.append(component)
            left -= component
    return components


def reachable(start: str, edges: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for node in edges[waiting.pop()] - found:
            found.add(node)
            waiting.append(node)
    return found


LIGHT = [
    "--help",
    "summarize --help",
    "--version",
    "presets list",
    "config show",
    "cache path",
    "env",
    "summarize nowhere.txt",
    "models list",
    "bench --help",
    "tune --help",
    "tune --sweep n=x",
    "trie list",
    "cache list",
    "batch --help",
    "batch nowhere.jsonl",
]


def test_light_commands_load_neither_torch_nor_transformers() -> None:
    """One after the other in one process: the first that loads one of them is named."""
    heavy = {"torch", "transformers", "tokenizers", "numpy", "numba"}
    assert_not_loaded([command.split() for command in LIGHT], heavy)


def test_what_a_client_imports_is_light() -> None:
    """Questions and events alone, in a process that has loaded nothing else."""
    heavy = {"torch", "transformers", "tokenizers", "numpy", "numba"}
    code = (
        "import sys, ngtcli.engine.events, ngtcli.engine.request\n"
        f"assert not {heavy!r} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
