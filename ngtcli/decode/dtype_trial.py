"""In which dtype a half-precision checkpoint is computed on a CPU: its own where that is quicker.

Of a model of `--dtype auto` some layers are timed in its own dtype and in float32, packed and not,
with random weights. The dtype is taken if it is quicker over one, eight and 32 rows than
float32 in its better way, and if decoding is exact in passes of any number of rows. Otherwise the
model is loaded in float32. Of a quantised model whole passes are timed, in both dtypes between its
layers.
"""

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ngtcli.decode.calibration import seconds_of_a_pass
from ngtcli.decode.exactness import ExactRows
from ngtcli.decode.model import TargetModel
from ngtcli.model_files.dtypes import KIND, ROWS, DtypeTrial, name_of
from ngtcli.system.trials import Trial, here
from ngtcli.weights.packed import remembered_trial, try_packing, worth_packing

_TOKENS = 900  # of a text for which exactness is tried: kept for all up to 1,024 places
# Tokens read before the passes of a quantised model, those they are repeated to (some documents),
# and passes; guess.
_READ, _LONG, _REPEATS = 64, 2000, 4
_HALVES = (torch.bfloat16, torch.float16)


def half_of(config: Any) -> torch.dtype | None:
    """The half precision that a checkpoint is in by its configuration; None for another dtype."""
    for one in (config, config.get_text_config()):
        found = getattr(one, "dtype", None)
        found = getattr(torch, found, None) if isinstance(found, str) else found
        if found is not None:
            return found if found in _HALVES else None
    return None


def load_in_best(
    name: str,
    config: Any,
    half: torch.dtype,
    empty: Callable[[], Any],
    load: Callable[[torch.dtype], TargetModel],
    progress: Callable[[str], None],
    num_draft: int | None,
    quantized: str = "",
) -> TargetModel:
    """The model in the dtype that its trial chooses; `dtype_reason` says why.

    `empty` gives the `transformers` model in its own dtype without values, `load` a model in a
    dtype. At the first load both may be read, one after the other. With drafts of up to `num_draft`
    nodes, its own dtype counts only if it is exact, which is stored of these very weights; with
    None it is that of a draft model, which need not be. `quantized` says how layers are quantised,
    if they are, the kind first: a part of the trial's key.
    """
    made: dict[torch.dtype, TargetModel] = {}

    def loaded(dtype: torch.dtype) -> TargetModel:
        return made.pop(dtype) if dtype in made else load(dtype)

    def make() -> DtypeTrial:
        return replace(tried(), threads=torch.get_num_threads(), where=here())

    def tried() -> DtypeTrial:
        progress(f"Trying whether {name_of(half)} is quicker than float32 …")
        if not quantized:
            return try_dtype(empty(), name)
        made.update({dtype: load(dtype) for dtype in (half, torch.float32)})
        return try_passes(made[half], made[torch.float32], f"{name} in {quantized.split()[0]}")

    stored = remembered_dtype(name, config, half, quantized)
    trial = stored.find(make)
    if trial.is_quicker and (trial.alike or num_draft is None):
        model = loaded(half)
        if (
            num_draft is None
            or model.tree_reason  # it decodes plainly, see ExactRows
            or ExactRows(model, lambda: None, progress).of_any_number(num_draft, _TOKENS)
            is not None
        ):
            model.dtype_reason = trial.reason
            if made.pop(torch.float32, None) is not None:
                gc.collect()  # a model and its passes are a circle
            return model
        trial = replace(trial, alike=False)
        stored.save(trial)  # or each start would read both
        del model
    made.pop(half, None)
    gc.collect()  # its memory is free before the other is read
    model = loaded(torch.float32)
    model.dtype_reason = trial.reason
    return model


def remembered_dtype(
    name: str, config: Any, half: torch.dtype, quantized: str = ""
) -> Trial[DtypeTrial]:
    """Where the trial of a checkpoint is kept."""
    about = type(config).__name__, config.to_json_string(use_diff=False)
    parts = (name, name_of(half), *about, quantized)
    return Trial(KIND, torch.device("cpu"), parts, DtypeTrial)


def try_dtype(hf: Any, name: str) -> DtypeTrial:
    """Time the layers of a model in its own dtype, as it will be packed, and in float32.

    The model needs no values. What it finds of packing is stored for the model.
    """
    places, dtype = worth_packing(hf), name_of(hf.dtype)
    if not places:  # nothing is known to be quicker
        return DtypeTrial(name, dtype, (), (), False)
    own, single = try_packing(places, hf.dtype, torch.float32)
    remembered_trial(hf).save(own)
    others = single.packed if single.agrees else single.unpacked
    one, few, many = map(min, single.unpacked, others)
    times = own.packed if own.pays(drafts=True) else own.unpacked
    return DtypeTrial(name, dtype, times, (one, few, many), True)


@torch.inference_mode()
def try_passes(own: TargetModel, single: TargetModel, name: str) -> DtypeTrial:
    """Time passes of a quantised model, in its own dtype and in float32 between layers, in turn.

    They are behind as many tokens as documents have.
    """
    seconds = np.full((2, len(ROWS)), np.inf)
    tokens = max(1, min(_LONG, own.context - ROWS[-1] - 1))
    for model in (own, single):
        model.start(tokens + ROWS[-1])
        model.prefill([0] * min(tokens, _READ))
        if not own.tree_reason:
            model.cache.repeat(tokens)
    for _ in range(_REPEATS):
        for at, rows in enumerate(ROWS):
            rows = 1 if own.tree_reason else rows
            for which, model in enumerate((own, single)):
                taken = seconds_of_a_pass(model, 0, rows)
                seconds[which, at] = min(seconds[which, at], taken)
    times = [(one, few, many) for one, few, many in seconds.tolist()]
    return DtypeTrial(name, name_of(own.dtype), times[0], times[1], True)
