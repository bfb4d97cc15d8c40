"""Layers that a model was trained with to predict several tokens (MTP; arXiv 2412.19437, 2.2).

`transformers` does not load them with the model and builds them as MtpModel. Layer k reads the
state of a row, what left layer k - 1 there, and the token k + 1 places after the row; what leaves
it goes to the model's own scores for the token after that one. A single layer is called again
with what left it, as for a text that goes on with the guess.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from ngtcli.draft.guesses import Guessed
from ngtcli.errors import ModelError
from ngtcli.heads.cache import ROOT, HeadCache, additive
from ngtcli.heads.files import HeadFiles, Target
from ngtcli.heads.head import Head, guessed, nothing

KIND = "mtp"
DEPTH = 4  # tokens that a single layer guesses one after the other; a guess
_TRIED = 4  # rows of the pass that is compared with that of transformers; a guess


class MtpLayers:
    """The MTP layers of a model, run in caches of ngt's own. Build one with `load_layers`."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.count = len(model.layers)
        kinds = getattr(model.config, "layer_types", None) or self.count * ["full_attention"]
        self.windows = [
            model.config.sliding_window if kind == "sliding_attention" else None for kind in kinds
        ]
        own = next(model.layers.parameters())
        self.device, self.dtype = own.device, own.dtype

    def step(
        self, layer: int, states: Tensor, tokens: Tensor, mask: Tensor, cache: HeadCache
    ) -> Tensor:
        """What leaves a layer, (rows, hidden size), for states of such a shape.

        `tokens`, int64 (rows,), are those that the layer reads beside them, `mask` is the cache's.
        """
        model, places = self._model, cache.positions(len(tokens)).to(self.device)[None]
        embedded, rotation = model.embed_tokens(tokens)[None].to(states), None
        if model.rotary_emb is not None:
            kind = {"layer_type": model.config.layer_types[layer]} if self._by_layer else {}
            rotation = model.rotary_emb(embedded, position_ids=places, **kind)
        out: Tensor = model.layers[layer](
            embedded,
            states[None],
            position_embeddings=rotation,
            attention_mask=additive(mask.to(self.device), embedded),
            position_ids=places,
            past_key_values=cache,
        )[0]
        if model.use_shared_post_norm:
            out = model.shared_post_norm(out)
        return out

    @property
    def _by_layer(self) -> bool:
        return bool(self._model.has_per_layer_rope)

    def scores(self, states: Tensor) -> Tensor:
        """Scores (rows, vocabulary) of what left a layer."""
        found: Tensor = self._model._project_to_logits(states)
        return found

    @torch.inference_mode()
    def check(self) -> None:
        """Raise ValueError unless a pass gives what it gives with the cache of transformers."""
        config, model = self._model.config, self._model
        states = torch.linspace(-1, 1, _TRIED * config.hidden_size, device=self.device)
        states = states.to(self.dtype).view(_TRIED, -1)
        tokens = torch.arange(_TRIED, device=self.device)
        theirs = MtpCache(config=config)
        for layer, window in enumerate(self.windows):
            cache = HeadCache(window)
            own = self.step(layer, states, tokens, cache.chain(_TRIED, 0), cache)
            places = cache.positions(_TRIED).to(self.device)[None]
            true = model.forward_layer(
                layer, states[None], places, theirs, input_ids=tokens[None], use_cache=True
            )[0]
            if not torch.allclose(own, true, rtol=1e-2, atol=1e-2 * float(true.abs().max())):
                raise ValueError(f"layer {layer} differs")


def load_layers(hf: Any, folder: Path, name: str) -> MtpLayers:
    """The MTP layers in the folder of the model `hf`. Raises ModelError where they cannot be had.

    `name` is what the user called them.
    """
    config = hf.config.get_text_config()
    count = getattr(config, "num_mtp_layers", None)
    if not count:
        raise ModelError(
            f"{name}: a {config.model_type} model has no MTP layers that transformers knows",
            "Use --heads with a head of another kind.",
        )
    try:
        with _findable(hf, folder, int(config.num_hidden_layers), int(count)):
            layers = MtpLayers(MtpModel.from_pretrained(hf, {"": hf.device}).eval())
        layers.check()
    except Exception as error:  # files and families fail in many ways
        why = str(error).strip().partition("\n")[0][:200] or type(error).__name__
        raise ModelError(
            f"{name}: the MTP layers cannot be used ({why})", "Leave out --heads mtp."
        ) from error
    return layers


@contextmanager
def _findable(hf: Any, folder: Path, layers: int, count: int) -> Iterator[None]:
    """Let transformers look for MTP layers in a folder, behind a model's own `layers` layers.

    The patterns of a family have the number of layers of its published models. What the layers
    share with the model, which may be packed, is not looked for.
    """
    before = hf.config.name_or_path, hf._keys_to_ignore_on_load_unexpected
    shared = MtpModel._keys_to_ignore_on_load_missing
    more = "|".join(str(layers + layer) for layer in range(count))
    hf.config.name_or_path = str(folder)
    hf._keys_to_ignore_on_load_unexpected = [*(before[1] or ()), rf"(^|\.)layers\.({more})\."]
    MtpModel._keys_to_ignore_on_load_missing = [*shared, r"^shared_head\.", r"^embed_tokens\."]
    try:
        yield
    finally:
        hf.config.name_or_path, hf._keys_to_ignore_on_load_unexpected = before
        MtpModel._keys_to_ignore_on_load_missing = shared


class MtpHead(Head):
    """Guesses of MTP layers, one of each layer, or several of a single one.

    A node of depth d is read by layer d and those after it, which guess for what stands below it;
    by the single layer at any depth. The root has depth 0 and is the last token that rows are kept
    for. A layer's keys and values have a cache of their own.
    """

    kind, by_path, reads_all = KIND, True, True

    def __init__(self, layers: MtpLayers) -> None:
        self._layers, self._count = layers, layers.count
        self.depth = DEPTH if layers.count == 1 else layers.count
        self._caches = [HeadCache(window) for window in layers.windows]
        self.reset()

    def reset(self) -> None:
        """A new text begins."""
        for cache in self._caches:
            cache.clear()
        self._end = -1  # the position behind the rows read
        # What left each layer at the last row; the next layer reads it with the next token.
        self._last: list[Tensor | None] = [None] * self._count
        self._begin()

    def _begin(self) -> None:
        self._depths = [0]  # of each state
        self._places: list[list[int]] = [[ROOT] for _ in self._caches]  # rows of states, by cache
        self._states = torch.empty(0)  # (states, layers, hidden size), what left the layers
        for cache in self._caches:
            cache.drop()

    @torch.inference_mode()
    def read(self, states: Tensor, following: Tensor, start: int) -> None:
        """As Head.read."""
        if start != self._end:
            self.reset()
        self._end = start + len(states)
        out = states.to(self._layers.device, self._layers.dtype)
        for layer, cache in enumerate(self._caches):
            tokens = following[len(following) - len(out) :].to(out.device)
            if len(out):
                mask = cache.chain(len(out), self._end + 1 - len(out))
                out = self._layers.step(layer, out, tokens, mask, cache)
                cache.keep()
            before, self._last[layer] = self._last[layer], out[-1:]
            out = (out if before is None else torch.cat([before, out]))[:-1]

    @torch.inference_mode()
    def first(self, root: int) -> Guessed:
        """As Guesser.first."""
        self._begin()
        if self._last[0] is None:
            return nothing(1)
        zeros = torch.zeros_like(self._last[0])  # of a layer that a text's first rows do not reach
        last = [zeros if one is None or not len(one) else one for one in self._last]
        self._states = torch.stack(last, 1)
        return guessed(self._layers.scores(self._states[:, 0]))

    @torch.inference_mode()
    def below(self, states: Sequence[int], tokens: Sequence[int]) -> Guessed:
        """As Guesser.below."""
        if not len(self._states):
            return nothing(len(states))
        above = self._states[list(states)]
        ids = torch.tensor(tokens, dtype=torch.long, device=above.device)
        depths = [self._depths[state] + 1 for state in states]
        found = torch.zeros_like(above)
        for layer, cache in enumerate(self._caches):
            read = [n for n, depth in enumerate(depths) if self._reads(layer, depth)]
            rows = self._places[layer]
            first = max(rows) + 1
            if read:
                mask = cache.tree([rows[states[n]] for n in read])
                inputs = above[read, max(0, layer - 1)]
                found[read, layer] = self._layers.step(layer, inputs, ids[read], mask, cache)
            numbers = iter(range(first, first + len(read)))
            rows += [next(numbers) if n in read else ROOT for n in range(len(states))]
        self._states = torch.cat([self._states, found])
        self._depths += depths
        guess = [0 if self._count == 1 else depth for depth in depths]
        return guessed(self._layers.scores(found[range(len(depths)), guess]))

    def _reads(self, layer: int, depth: int) -> bool:
        return self._count == 1 or 0 < depth <= layer


def recognise(files: HeadFiles) -> bool:
    """Whether config.json is that of a model with MTP layers."""
    config = files.config.get("text_config") or files.config
    return any(config.get(name) for name in ("num_nextn_predict_layers", "num_mtp_layers"))


def build(files: HeadFiles, target: Target) -> MtpHead:
    """The head of the layers in these files. Raises ModelError where they are not the target's."""
    return own_head(target, files.folder, files.name)


def own_head(target: Target, folder: Path, name: str) -> MtpHead:
    """The head of the layers in the target's own folder. Raises ModelError."""
    return MtpHead(load_layers(target.hf, folder, name))
