"""What tests share: tiny models, drafters, naive tries, and the command line in this process."""

import contextlib
import io
import json
import os
import pty
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import transformers

from ngtcli.decode.loop import Run
from ngtcli.decode.model import TargetModel
from ngtcli.decode.sampling import SamplingSettings
from ngtcli.decode.steps import Limits
from ngtcli.draft.drafter import Context, Drafter, DraftSettings
from ngtcli.draft.registry import parse_method
from ngtcli.draft.tree import ROOT, DraftTree
from ngtcli.tokens.tokenizer import Tokenizer

ROOT_FOLDER = Path(__file__).parents[1]
HARBOUR = str(ROOT_FOLDER / "ngtcli" / "examples" / "harbour.txt")
# Without a background: else a process is started that outlives the test.
NGT = ["env", "NGT_BACKGROUND=none", sys.executable, "-m", "ngtcli"]
SHARED = Path(os.environ.get("NGT_SHARED", ROOT_FOLDER.parent / "shared")) / "data"
STORIES = SHARED / "models" / "stories260k"

# --- the command line ---


@dataclass(frozen=True)
class Done:
    """How a command ended; named as in `subprocess`."""

    returncode: int
    stdout: bytes
    stderr: bytes


def ngt(*arguments: str, stdin: bytes = b"", cwd: Path | None = None, **environ: str) -> Done:
    """`ngt ARGUMENTS` in this process, with streams that are no terminal; as a shell sees it."""
    streams = [io.BytesIO(stdin), io.BytesIO(), io.BytesIO()]
    texts = [io.TextIOWrapper(s, encoding="utf-8", errors="replace") for s in streams]
    code = _run(arguments, texts, cwd, environ)
    return Done(code, streams[1].getvalue(), streams[2].getvalue())


def in_terminal(*arguments: str, columns: int = 80, **environ: str) -> tuple[str, int]:
    """Output (stdout and stderr together) and exit code of `ngt` on a pseudo-terminal."""
    main, other = pty.openpty()
    environ = {"TERM": "xterm-256color", "COLUMNS": str(columns), **environ}
    out: list[bytes] = []
    reader = threading.Thread(target=lambda: out.extend(iter(lambda: read_terminal(main), b"")))
    reader.start()
    with open(other, encoding="utf-8") as stdin:
        with (open(other, "w", encoding="utf-8", closefd=False) as stdout,
              open(other, "w", encoding="utf-8", closefd=False) as stderr):  # fmt: skip
            code = _run(arguments, [stdin, stdout, stderr], None, environ)
    reader.join()
    os.close(main)
    return b"".join(out).decode(), code


def read_terminal(handle: int) -> bytes:
    try:
        return os.read(handle, 65536)
    except OSError:  # how a pseudo-terminal ends
        return b""


def _run(
    arguments: Iterable[str], streams: Sequence[Any], cwd: Path | None, environ: dict[str, str]
) -> int:
    """The command line's own function; what a process does once, at its end, is left out."""
    from ngtcli.cli.app import run

    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, environ))
        stack.enter_context(patch.object(sys, "argv", ["ngt", *arguments]))
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            stack.enter_context(patch.object(sys, name, stream))
        stack.enter_context(patch("ngtcli.system.process.unwind_on_interrupt"))
        stack.enter_context(_threads_kept())
        if cwd is not None:
            stack.enter_context(contextlib.chdir(cwd))
        code = run()
        for stream in streams[1:]:
            stream.flush()
    return code


@contextlib.contextmanager
def _threads_kept() -> Iterator[None]:
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def ngt_process(*arguments: str | bytes | Path, stdin: bytes = b"", **options: Any) -> Any:
    """`ngt ARGUMENTS` as a process of its own, which takes seconds: where that is the point."""
    return subprocess.run([*NGT, *arguments], input=stdin, capture_output=True, timeout=120,
                          **options)  # fmt: skip


def run_and_look(commands: Sequence[Sequence[str]], unwanted: set[str]) -> None:
    """Run commands in one new process; after none of them a module of `unwanted` is loaded."""
    code = (
        "import json, sys\nfrom ngtcli.cli.app import main\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    sys.argv = ['ngt', *words]\n"
        "    try:\n        main()\n    except SystemExit:\n        pass\n"
        f"    found = {unwanted!r} & set(sys.modules)\n"
        "    assert not found, (words, found)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, json.dumps(commands)],
                          capture_output=True, text=True, timeout=60)  # fmt: skip
    assert done.returncode == 0, done.stderr


def wait_until_loading(process: "subprocess.Popen[bytes]") -> None:
    """Return when `process`, a run of ngt, has begun to load torch, however slow the machine is."""
    maps = Path(f"/proc/{process.pid}/maps")
    patience = time.monotonic() + 60
    while maps.exists() and "libtorch" not in maps.read_text():
        assert time.monotonic() < patience
        time.sleep(0.05)
    if not maps.exists():
        time.sleep(2)  # no such file on this system


# --- tiny models ---

VOCABULARY = 97
CONTEXT = 160
END = 3
GREEDY = SamplingSettings()
_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": END,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {}),
    "mistral": ("MistralConfig", {"sliding_window": None}),
    "mistral-sliding": ("MistralConfig", {"sliding_window": 12}),
    "gemma": ("GemmaConfig", {}),
    "gemma2-sliding": ("Gemma2Config", {"sliding_window": 12, "query_pre_attn_scalar": 8}),
    "gemma3-sliding": ("Gemma3TextConfig", {"sliding_window": 12, "query_pre_attn_scalar": 8}),
}


class FakeBackend:
    """A tokenizer of one letter a token: id i is chr(32 + i)."""

    eos_token_id = END
    chat_template = None
    is_fast = False
    model_max_length = CONTEXT

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return [min(ord(c) - 32, VOCABULARY - 1) for c in text if ord(c) >= 32]

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return "".join(chr(32 + i) for i in ids)

    def get_vocab(self) -> dict[str, int]:
        return {chr(32 + i): i for i in range(VOCABULARY)}


def make_hf(family: str, seed: int = 0, **changes: Any) -> Any:
    """A random float32 model whose scores differ enough that greedy choices are not near ties."""
    name, extra = FAMILIES[family]
    config = getattr(transformers, name)(**{**_COMMON, **extra, **changes})
    torch.manual_seed(seed)
    hf = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in hf.parameters():
            if parameter.ndim == 2:
                parameter.mul_(6.0)
    return hf


def make_target(family: str = "llama", seed: int = 0, **changes: Any) -> TargetModel:
    return TargetModel(make_hf(family, seed, **changes), Tokenizer(FakeBackend()), family)


def prompts(count: int, vocabulary: int = VOCABULARY, seed: int = 0) -> list[list[int]]:
    """Prompts of 1 to 90 random ids, most of which repeat themselves."""
    rng = random.Random(seed)
    out = []
    for _ in range(count):
        body = [rng.randrange(vocabulary) for _ in range(rng.randint(1, 30))]
        out.append((body * 3)[: rng.randint(len(body), 90)])
    return out


# --- decoding ---


def decode(model: TargetModel, drafter, prompt, sampling=GREEDY, **limits) -> Run:
    limits = {"max_tokens": 40, **limits}
    context = Context(prompt, outside=(tuple(prompt),))
    return Run(model, drafter, context, sampling, Limits(**limits)).finish()


def plain(model: TargetModel, prompt, sampling=GREEDY, **limits) -> list[int]:
    return decode(model, make_drafter("none", DraftSettings()), prompt, sampling, **limits).output


def generate(hf, prompt, max_tokens: int) -> list[int]:
    """The new ids of `transformers`' own greedy decoding."""
    with torch.no_grad():
        ids = torch.tensor([prompt])
        out = hf.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False,
                          max_new_tokens=max_tokens, pad_token_id=0)  # fmt: skip
    return out[0, len(prompt) :].tolist()


# --- drafting ---


class Scripted(Drafter):
    """A drafter that proposes what a function of the ids says."""

    def __init__(self, propose) -> None:
        self._propose = propose

    def reset(self, context: Context) -> None:
        pass

    def propose(self, ids: Sequence[int], budget: int) -> DraftTree:
        return self._propose(list(ids), budget)

    def observe(self, tokens: Sequence[int]) -> None:
        pass


def make_drafter(spec: str, settings: DraftSettings | None = None) -> Drafter:
    """A new drafter. Raises UsageError for an unknown method or a wrong option."""
    return parse_method(spec, settings or DraftSettings()).build()


def supply(method: str, corpus: Sequence[Sequence[int]] = ((1, 2, 3, 1, 2, 4),)) -> None:
    """Give a method what it needs beside a context; skip the test where that cannot be had."""
    if method == "rest":
        from ngtcli.draft.methods import datastore

        datastore.save(datastore.build_datastore(corpus), "default", "", [])
    elif method == "suffix":
        pytest.importorskip("arctic_inference.suffix_decoding", exc_type=ImportError)


def check_tree(tree: DraftTree) -> None:
    """Raise ValueError unless the tree is well-formed."""
    if len(tree.tokens) != len(tree.parents):
        raise ValueError("tokens and parents differ in length")
    if not 0 <= tree.probes <= len(tree.tokens):
        raise ValueError("more probes than nodes")
    if any(not ROOT <= parent < i for i, parent in enumerate(tree.parents)):
        raise ValueError("a parent does not come before its child")
    edges = list(zip(tree.parents, tree.tokens, strict=True))[: tree.drafts]
    if len(set(edges)) != len(edges):
        raise ValueError("two siblings hold the same token")


def paths(tree: DraftTree) -> set[tuple[int, ...]]:
    """The tokens from the root to each node."""
    out: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        out.append((*(out[parent] if parent >= 0 else ()), token))
    return set(out)


# --- the paper's trie, literally ---


class NaiveNode:
    def __init__(self) -> None:
        self.frequency = 0
        self.children: dict[int, NaiveNode] = {}


def algorithm_1(tokens: Sequence[int], n: int, lp: int) -> NaiveNode:
    """Algorithm 1 as written: for each full window, each sub-prefix P[j:] + S, token by token."""
    root = NaiveNode()
    for i in range(len(tokens) - n + 1):
        prefix, suffix = tokens[i : i + lp], tokens[i + lp : i + n]
        for j in range(lp):
            node = root
            for token in [*prefix[j:], *suffix]:
                node = node.children.setdefault(token, NaiveNode())
                node.frequency += 1
    return root


def padded(documents: Sequence[Sequence[int]], n: int) -> list[int]:
    """Documents with n unique sentinels around each, so that windows slide over both ends."""
    out: list[int] = []
    sentinel = -1
    for document in documents:
        for part in (None, document, None):
            if part is None:
                out += range(sentinel, sentinel - n, -1)
                sentinel -= n
            else:
                out += part
    return out
