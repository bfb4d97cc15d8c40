"""The layer that a model was trained with to predict several tokens (MTP; arXiv 2412.19437, 2.2).

`transformers` does not load such layers with the model and builds them as MtpModel. The first one
reads the state at a position and the token after it; the model's own LM head makes its output the
logits of the token after that one. It is called again with its own output to draft further tokens.
A model's other MTP layers, which are trained for tokens farther ahead, are not used.
"""

from typing import Any

from torch import Tensor
from transformers.modeling_layers import MtpModel

from ngtcli.errors import ModelError
from ngtcli.heads.files import HeadFiles, Target
from ngtcli.heads.rows import AttentionSpan, HeadPass
from ngtcli.models.hf import mtp_layer_in

DEPTH = 4  # draft tokens in a row (guess)


class Mtp:
    """The first MTP layer of a model, an MtpModel, run in forward passes of ngt's own."""

    depth = DEPTH
    target_layers = (-1,)
    ids = None

    def __init__(self, model: Any) -> None:
        self._model = model
        layer_types = getattr(model.config, "layer_types", None) or ["full_attention"]
        layer_type = layer_types[0]
        self._rotary_arguments = {"layer_type": layer_type} if model.has_per_layer_rope else {}
        slides = layer_type == "sliding_attention"
        self.attention_spans = (AttentionSpan(model.config.sliding_window if slides else None),)

    def read(self, states: Tensor, following: Tensor, head_pass: HeadPass) -> Tensor:
        return head_pass.last_of(self.step(states, following, 0, head_pass))

    def step(self, states: Tensor, tokens: Tensor, depth: int, head_pass: HeadPass) -> Tensor:
        model = self._model
        positions = head_pass.positions[None]
        embedded = model.embed_tokens(tokens)[None].to(states)
        rotation = None
        if model.rotary_emb is not None:
            rotation = model.rotary_emb(embedded, position_ids=positions, **self._rotary_arguments)
        outputs: Tensor = model.layers[0](
            embedded,
            states[None],
            position_embeddings=rotation,
            attention_mask=head_pass.mask(0),
            position_ids=positions,
            past_key_values=head_pass.cache,
        )[0]
        return model.shared_post_norm(outputs) if model.use_shared_post_norm else outputs

    def logits(self, states: Tensor, depth: int) -> Tensor:
        logits: Tensor = self._model._project_to_logits(states)
        return logits


def network(files: HeadFiles, target: Target) -> Mtp:
    """Load the layer from these files. Raises ModelError if the target has none."""
    if not getattr(target.config, "num_mtp_layers", None):
        raise ModelError(
            f"{files.name}: a {target.config.model_type} model has no MTP layers that transformers"
            " supports",
            hint="Use --heads with a head of another kind.",
        )
    with mtp_layer_in(str(files.folder), target.hf, target.config, target.layers):
        return Mtp(MtpModel.from_pretrained(target.hf, {"": target.hf.device}).eval())
