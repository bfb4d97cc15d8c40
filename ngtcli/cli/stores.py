"""Commands about what ngt keeps: tries, presets, settings, models, the environment."""

import platform
import shutil
import sys
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from ngtcli.cli.options import JsonOption, PresetOption, resolve, with_settings
from ngtcli.cli.streams import Notes, piped_stdin, print_line, print_table
from ngtcli.config import PROJECT_FILE, SETTING_NAMES, home
from ngtcli.documents.load import load
from ngtcli.errors import InputError
from ngtcli.prompts import load_preset, preset_files, preset_folders
from ngtcli.render.sinks import dump_json
from ngtcli.render.terminal import visible

trie_app = typer.Typer(help="The cached n-gram tries of documents.", no_args_is_help=True)
presets_app = typer.Typer(help="Presets: how a task is worded and set.", no_args_is_help=True)
config_app = typer.Typer(help="Settings and where they come from.", no_args_is_help=True)
models_app = typer.Typer(help="Models on this machine.", no_args_is_help=True)

PathsArgument = Annotated[list[str], typer.Argument(help="Files, folders, globs; - is stdin.")]


def _trie_row(file: Any) -> dict[str, Any]:
    return {
        "key": file.key,
        "n": file.n,
        "lp": file.lp,
        "tokens": file.tokens,
        "nodes": file.nodes,
        "bytes": file.bytes,
        "documents": list(file.documents),
        "path": str(file.path),
    }


@trie_app.command("build")
@with_settings
def trie_build(
    paths: PathsArgument,
    preset: PresetOption = None,
    json: JsonOption = False,
    flags: dict[str, Any] | None = None,
) -> None:
    """Build and cache the trie of documents ahead of the first question."""
    settings = resolve(flags or {}, preset, "summarize")[0].settings
    documents = load(paths, piped_stdin())
    notes = Notes()
    notes.status("Building …")
    from ngtcli.decode.model import load_tokenizer
    from ngtcli.session import document_trie

    tokenizer = load_tokenizer(settings.model)
    trie, report = document_trie(
        documents, tokenizer, len(tokenizer.backend), settings.n, settings.lp, notes.warn
    )
    notes.clear()
    body = {**report.as_json(), "tokens": trie.tokens, "path": str(report.path or "")}
    if json:
        print_line(dump_json(body))
        return
    print_line(
        f"{report.status}: {trie.tokens} tokens, {len(trie)} nodes"
        f" in {report.seconds * 1000:.0f} ms\n{body['path']}"
    )


@trie_app.command("list")
def trie_list(json: JsonOption = False) -> None:
    """List cached tries, the newest first."""
    from ngtcli.trie.store import list_tries

    files = list_tries()
    if json:
        print_line(dump_json([_trie_row(f) for f in files]))
        return
    rows = [
        [f.key[:12], f.tokens, f.nodes, f"{f.bytes / 1e6:.1f} MB", f.n, f.lp, _names(f.documents)]
        for f in files
    ]
    print_table(["key", "tokens", "nodes", "size", "n", "lp", "documents"], rows)


def _names(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


@trie_app.command("show")
@with_settings
def trie_show(
    path: Annotated[str, typer.Argument(help="A document, a folder, or a trie file.")],
    preset: PresetOption = None,
    json: JsonOption = False,
    flags: dict[str, Any] | None = None,
) -> None:
    """Show the cached trie of documents and its most frequent n-grams."""
    from ngtcli.trie import store

    if path.endswith(store.SUFFIX):
        file = store.describe(Path(path))
        if file is None:
            raise InputError(f"{path}: not a trie file", "See ngt trie list.")
        _print_facts(_trie_row(file), json)
        return
    settings = resolve(flags or {}, preset, "summarize")[0].settings
    from ngtcli.decode.model import load_tokenizer

    tokenizer = load_tokenizer(settings.model)
    documents = load([path], piped_stdin())
    key = store.trie_key(tokenizer.fingerprint, documents, settings.n, settings.lp)
    try:
        trie = store.load(key, settings.n, settings.lp, len(tokenizer.backend))
    except store.TrieFileError as error:
        raise InputError(f"{path}: the cached trie is bad ({error})", _build_hint(path)) from None
    file = store.describe(store.trie_path(key))
    if trie is None or file is None:
        raise InputError(f"{path}: no trie is cached for it", _build_hint(path))
    top = [
        {"text": tokenizer.decode(sequence), "count": count}
        for sequence, count in trie.most_frequent(settings.lp, 10)
    ]
    _print_facts({**_trie_row(file), "most_frequent": top}, json)


def _build_hint(path: str) -> str:
    return f"Build it with ngt trie build {path}"


def _print_facts(facts: dict[str, Any], json: bool) -> None:
    if json:
        print_line(dump_json(facts))
        return
    for name, value in facts.items():
        if name == "most_frequent":
            for item in value:
                print_line(f"{item['count']:>8}  {visible(item['text']).strip()!r}")
        else:
            shown = ", ".join(value) if isinstance(value, list) else value
            print_line(f"{name}: {visible(str(shown))}")


@trie_app.command("clear")
def trie_clear(json: JsonOption = False) -> None:
    """Delete all cached tries."""
    from ngtcli.trie.store import clear_tries

    files, size = clear_tries()
    if json:
        print_line(dump_json({"files": files, "bytes": size}))
    else:
        print_line(f"{files} files, {size / 1e6:.1f} MB removed")


@trie_app.command("path")
def trie_path(json: JsonOption = False) -> None:
    """Print the folder of cached tries."""
    folder = str(home("cache") / "tries")
    print_line(dump_json({"path": folder}) if json else folder)


@presets_app.command("list")
def presets_list(json: JsonOption = False) -> None:
    """List presets."""
    presets = [load_preset(name) for name in preset_files()]
    if json:
        rows = [
            {"name": p.name, "description": p.description, "path": str(p.path)} for p in presets
        ]
        print_line(dump_json(rows))
    else:
        print_table(["name", "description"], [[p.name, p.description] for p in presets])


@presets_app.command("show")
def presets_show(name: str, json: JsonOption = False) -> None:
    """Print a preset."""
    preset = load_preset(name)
    if json:
        body = {
            **asdict(preset),
            "path": str(preset.path),
            "settings": dict(preset.settings.values),
        }
        print_line(dump_json(body))
    else:
        print_line(visible(preset.path.read_text(encoding="utf-8").rstrip("\n")))


@presets_app.command("path")
def presets_path(json: JsonOption = False) -> None:
    """Print the folders presets are read from, the user's own first."""
    folders = [str(f) for f in preset_folders()]
    print_line(dump_json(folders) if json else "\n".join(folders))


@config_app.command("show")
@with_settings
def config_show(
    preset: PresetOption = None, json: JsonOption = False, flags: dict[str, Any] | None = None
) -> None:
    """Print each setting with its origin."""
    resolved, _ = resolve(flags or {}, preset, "summarize")
    values = asdict(resolved.settings)
    if json:
        body = {n: {"value": values[n], "origin": resolved.origins[n]} for n in SETTING_NAMES}
        print_line(dump_json(body))
        return
    rows = [[name, _shown(values[name]), resolved.origins[name]] for name in SETTING_NAMES]
    print_table(["setting", "value", "origin"], rows)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(repr, value)) if isinstance(value, tuple) else str(value)


@config_app.command("path")
def config_path(json: JsonOption = False) -> None:
    """Print the settings files, the strongest first."""
    files = [str(Path(PROJECT_FILE).absolute()), str(home("config") / "config.yaml")]
    print_line(dump_json(files) if json else "\n".join(files))


@models_app.command("path")
def models_path(json: JsonOption = False) -> None:
    """Print where the built-in model and downloaded models are."""
    builtin, hub = _builtin_folder(), _hub_folder()
    if json:
        print_line(dump_json({"builtin": str(builtin), "hub": str(hub)}))
    else:
        print_line(f"{builtin}\n{hub}")


@models_app.command("list")
def models_list(json: JsonOption = False) -> None:
    """List models that can be used without a download."""
    rows = [("builtin", _folder_size(_builtin_folder()), str(_builtin_folder()))]
    if _hub_folder().is_dir():
        from huggingface_hub import scan_cache_dir

        for repo in sorted(scan_cache_dir(_hub_folder()).repos, key=lambda r: r.repo_id):
            if repo.repo_type == "model":
                rows.append((repo.repo_id, repo.size_on_disk, str(repo.repo_path)))
    if json:
        print_line(dump_json([{"name": n, "bytes": b, "path": p} for n, b, p in rows]))
    else:
        print_table(["name", "size", "path"], [[n, f"{b / 1e6:.0f} MB", p] for n, b, p in rows])


def _builtin_folder() -> Path:
    return Path(__file__).parent.parent / "builtin" / "model"


def _hub_folder() -> Path:
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


def _folder_size(folder: Path) -> int:
    return sum(f.stat().st_size for f in folder.glob("*") if f.is_file())


def env(json: JsonOption = False) -> None:
    """Show versions, the device and the folders used."""
    import torch

    from ngtcli.decode.model import pick_device

    device = pick_device("auto")
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or "unknown"
    packages = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "typer", "rich")
    facts: dict[str, Any] = {
        "ngt": metadata.version("ngt"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": device,
        "processor": name,
        "threads": torch.get_num_threads(),
        **{package: metadata.version(package) for package in packages},
        "config folder": str(home("config")),
        "cache folder": str(home("cache")),
        "model folder": str(_builtin_folder()),
        "executable": shutil.which("ngt") or sys.argv[0],
    }
    if json:
        print_line(dump_json(facts))
    else:
        print_table(["what", "value"], [[k, v] for k, v in facts.items()])
