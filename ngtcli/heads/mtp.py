"""The layer that a model was trained with to predict several tokens (MTP; arXiv 2412.19437, 2.2).

`transformers` does not load such layers with the model and builds them as MtpModel. The first reads
the state of a row and the token after it; what leaves it goes to the model's own scores for the
token after that one. It is called again with what left it, as for a text that goes on with the
guess. Of several layers the others, which are trained for tokens farther on, are not used.
"""

from typing import Any

from torch import Tensor
from transformers.modeling_layers import MtpModel

from ngtcli.errors import ModelError
from ngtcli.heads.files import HeadFiles, Target
from ngtcli.heads.rows import HeadPass, Sight
from ngtcli.models.hf import mtp_layer_in

DEPTH = 4  # tokens that are guessed one after the other; a guess


class Mtp:
    """The first MTP layer of a model, an MtpModel, run in rows of ngt's own."""

    depth, reads, ids = DEPTH, (-1,), None

    def __init__(self, model: Any) -> None:
        self._model = model
        kind = (getattr(model.config, "layer_types", None) or ["full_attention"])[0]
        self._named = {"layer_type": kind} if model.has_per_layer_rope else {}
        slides = kind == "sliding_attention"
        self.sights = (Sight(model.config.sliding_window if slides else None),)

    def read(self, states: Tensor, following: Tensor, head_pass: HeadPass) -> Tensor:
        return head_pass.last_of(self.step(states, following, 0, head_pass))

    def step(self, states: Tensor, tokens: Tensor, depth: int, head_pass: HeadPass) -> Tensor:
        model, places = self._model, head_pass.positions[None]
        embedded, rotation = model.embed_tokens(tokens)[None].to(states), None
        if model.rotary_emb is not None:
            rotation = model.rotary_emb(embedded, position_ids=places, **self._named)
        out: Tensor = model.layers[0](
            embedded,
            states[None],
            position_embeddings=rotation,
            attention_mask=head_pass.mask(0),
            position_ids=places,
            past_key_values=head_pass.cache,
        )[0]
        return model.shared_post_norm(out) if model.use_shared_post_norm else out

    def scores(self, states: Tensor, depth: int) -> Tensor:
        found: Tensor = self._model._project_to_logits(states)
        return found


def network(files: HeadFiles, target: Target) -> Mtp:
    """The layer in these files. Raises ModelError where it is not one of the target's."""
    if not getattr(target.config, "num_mtp_layers", None):
        raise ModelError(
            f"{files.name}: a {target.config.model_type} model has no MTP layers that transformers"
            " knows",
            hint="Use --heads with a head of another kind.",
        )
    with mtp_layer_in(str(files.folder), target.hf, target.config, target.layers):
        return Mtp(MtpModel.from_pretrained(target.hf, {"": target.hf.device}).eval())
