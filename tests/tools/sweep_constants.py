"""What the constants of `auto` do: `python -m tests.tools.sweep_constants RECORDING`.

Each constant is halved and doubled alone, and the recording replayed with it. Printed is the mean
acceptance length over all its steps, in percent of the one with the constants as they are, with
the pool of earlier answers and without. Constants of the policy do nothing in a replay, which has
no costs of passes; those of scores do nothing, as a recording holds none.

Compiled code reads the constants when it is compiled, so each variant is a process of its own with
an empty folder of compiled code.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import fields, replace
from pathlib import Path

from ngtcli.draft.auto import config

SWEPT = (
    "unseen_probability", "scanned", "min_escape", "trust", "children",
    "floor_share", "floor_rate", "quote", "pool_tokens",
)  # fmt: skip


def replayed(folder: Path, tasks: list[str], fresh: bool) -> float:
    """Mean acceptance length of `auto` at 32 nodes, with the constants that CONFIG has now."""
    from ngtcli.measure.replay_run import run_replay

    result = run_replay(folder, ["auto"], [32], tasks=tasks, fresh=fresh)
    return result.rows[-1].drafting.mean_acceptance_length or 0.0


def run_variant(folder: Path, tasks: str, name: str, value: float) -> list[float]:
    """The figures (with the pool, without) of one variant, from a process of its own."""
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [sys.executable, "-m", __spec__.name, str(folder), "--tasks", tasks,
             "--variant", f"{name}={value!r}"],
            env={**os.environ, "NGT_HOME": home, "NUMBA_CACHE_DIR": home},
            stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
    figures: list[float] = json.loads(done.stdout)
    return figures


def apply_variant(text: str) -> None:
    """Put `NAME=VALUE` into CONFIG, before anything reads it."""
    name, _, value = text.partition("=")
    kinds = {f.name: type(getattr(config.CONFIG, f.name)) for f in fields(config.CONFIG)}
    if name:
        config.CONFIG = replace(config.CONFIG, **{name: kinds[name](float(value))})


def main() -> None:
    """Replay every variant; print a line for each."""
    parser = argparse.ArgumentParser(description="Halve and double the constants of auto.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tasks", default="summarization,rag,qa", help="with commas")
    parser.add_argument("--names", default=",".join(SWEPT), help="of constants, with commas")
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.variant is not None:
        apply_variant(args.variant)
        tasks = args.tasks.split(",")
        print(json.dumps([replayed(args.folder, tasks, fresh) for fresh in (False, True)]))
        return
    base = run_variant(args.folder, args.tasks, "", 0)
    print(f"as they are: {base[0]:.4f} with the pool, {base[1]:.4f} without", flush=True)
    for name in args.names.split(","):
        value = getattr(config.CONFIG, name)
        for factor in (0.5, 2):
            found = run_variant(args.folder, args.tasks, name, value * factor)
            change = [f"{(f / b - 1) * 100:+.2f}%" for f, b in zip(found, base, strict=True)]
            print(f"{name} {value} x {factor:g}: {' / '.join(change)}", flush=True)


if __name__ == "__main__":
    main()
