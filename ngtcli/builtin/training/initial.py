"""Initial weights that already hold a circuit for finding a sentence and copying it.

A small model needs millions of tokens before it finds out how to copy (an induction head: Olsson
et al. 2022), and many more before it can find a sentence. Starting near both saves that time, in
the spirit of mimetic initialisation (Trockman & Kolter 2023). Two heads of head size 128 a layer:

0. previous token: note which it was, and whether a sentence starts after it
   last words: note a bag of the rare words among the last few tokens, the *code* of this place
1. sentence start: note the code that stood at the start of one's own sentence, its *identity*
2. same word elsewhere: note the identities of the sentences that hold it, a *vote* for them. The
   attention is shared by all its occurrences, so a rare word's vote is concentrated
   same token after the same token: likewise, which tells a copied phrase's source
3. the question: gather its words' votes; the last tokens: gather theirs
4. both heads: attend to where the current token was the previous one (at the start of an answer:
   to sentence starts), inside the sentence voted for; repeat what stands there

The residual stream is cut into blocks: `flags` (single numbers), `name` (random, one a token),
`stem` (random, one a word stem, scaled by the word's rarity), `previous`, `code`, `identity`,
`vote`. Tied embeddings hold flags, names and stems. Rotary pairs that turn fast compare positions;
those that hardly turn compare content. Everything stays trainable; what is not planted is random
and quiet. The scores below were chosen among a few values by how often they find
the right sentence.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ngtcli.builtin.training.lexicon import Lexicon

LAYERS, HEADS, WIDTH = 5, 2, 256
ROPE_THETA = 1e8  # so slow that half of the rotary pairs stand still over 4,096 positions

# The flags: always one; a sentence may start after this token; starts one; opens the conversation;
# opens an answer; opens an instruction; stands in an instruction; rarity; evens out the length.
_ONE, _ENDS, _STARTS, _OPENING, _ANSWERING, _ASKS, _ASKED, _WEIGHT, _FILL = range(9)
_NAME, _STEM, _PREVIOUS = slice(9, 80), slice(80, 120), slice(120, 160)
_CODE, _IDENTITY, _VOTE = slice(160, 192), slice(192, 224), slice(224, 256)

# How large a unit note is after a layer's normalisation: 16 / the usual length of the stream.
_VOLUME = (7.0, 6.0, 5.5, 5.0, 4.5)


@dataclass(frozen=True, slots=True)
class Marks:
    """Token ids the circuit needs to know.

    What may stand before a sentence; who speaks; the first tokens of instructions' lines.
    """

    before_sentence: tuple[int, ...]
    user: int
    assistant: int
    instructions: tuple[int, ...]


def plant_circuit(model: Any, marks: Marks, lexicon: Lexicon, seed: int) -> None:
    """Write the circuit into a fresh LlamaForCausalLM, in place.

    Raises ValueError unless it has five layers of two heads and width 256.
    """
    config = model.config
    shape = (config.num_hidden_layers, config.num_attention_heads, config.hidden_size)
    if shape != (LAYERS, HEADS, WIDTH):
        raise ValueError(f"the circuit needs {LAYERS} layers of {HEADS} heads and width {WIDTH}")
    with torch.no_grad():
        _Planter(model, marks, lexicon, torch.Generator().manual_seed(seed)).plant()


class _Planter:
    """Holds what the steps share."""

    def __init__(self, model: Any, marks: Marks, lexicon: Lexicon, rng: torch.Generator) -> None:
        self.model, self.marks, self.lexicon, self.rng = model, marks, lexicon, rng
        self.size = WIDTH // HEADS
        self.half = self.size // 2
        pairs = torch.arange(self.half)
        self.turn = model.config.rope_parameters["rope_theta"] ** (-2.0 * pairs / self.size)
        still = range(26, self.half)
        self.slow = [*still, *(self.half + p for p in still)]
        self.attention = [layer.self_attn for layer in model.model.layers]

    def plant(self) -> None:
        """Write everything, from the embeddings up."""
        self._embed()
        for block in self.model.model.layers:  # quiet branches, so that the notes are heard
            block.self_attn.o_proj.weight.mul_(0.1)
            block.mlp.down_proj.weight.mul_(0.1)
        for layer, head in ((0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (3, 0), (4, 0), (4, 1)):
            for matrix in self._head(layer, head)[:3]:
                matrix.mul_(0.02)
        self._note_previous_token()
        self._note_last_words()
        self._note_own_sentence()
        self._vote()
        self._gather()
        self._copy()

    def _embed(self) -> None:
        """Flags, names and stems; only names and stems are read when a token is chosen."""
        table = self.model.model.embed_tokens.weight
        marks, weights = self.marks, torch.tensor(self.lexicon.weights)
        table.zero_()
        table[:, _NAME] = _units(len(table), 71, self.rng)
        stems = _units(max(self.lexicon.stems) + 1, 40, self.rng)[list(self.lexicon.stems)]
        table[:, _STEM] = 0.9 * (1.5 * weights[:, None]).clamp(max=1.0) * stems
        table[:, _ONE] = 1.0
        table[:, _WEIGHT] = 0.5 * weights
        table[list(marks.before_sentence), _ENDS] = 1.0
        table[marks.user, _OPENING] = 1.0
        table[marks.assistant, _ANSWERING] = 1.0
        table[list(marks.instructions), _ASKS] = 1.0
        lengths = table.square().sum(-1)  # made equal, so that no token's keys are louder
        table[:, _FILL] = (lengths.max() + 0.1 - lengths).sqrt()
        self.model.model.norm.weight.zero_()
        self.model.model.norm.weight[_NAME.start : _STEM.stop] = 1.0

    # Writing into heads -------------------------------------------------------------------------

    def _head(self, layer: int, head: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Views of a head's matrices q, k, v (128, width) and o (width, 128)."""
        a, rows = self.attention[layer], slice(head * self.size, (head + 1) * self.size)
        q, k, v = (m.weight[rows] for m in (a.q_proj, a.k_proj, a.v_proj))
        return q, k, v, a.o_proj.weight[:, rows]

    def _pairs(self, low: float, high: float) -> list[int]:
        """Rotary pairs that turn by `low` to `high` radians a position."""
        return [i for i in range(self.half) if low < float(self.turn[i]) < high]

    def _gain(self, layer: int, score: float) -> float:
        """Factor for query and key with which two equal unit notes score `score`."""
        gain: float = (score * self.size**0.5) ** 0.5 / _VOLUME[layer]
        return gain

    def _prefer(
        self, layer: int, head: int, query: int, key: int, score: float, pair: int = -1
    ) -> None:
        """Where flag `query` is one at the asking token, flag `key` adds `score` to a token."""
        q, k, _, _ = self._head(layer, head)
        gain = self._gain(layer, abs(score))
        q[self.size + pair, query] += gain
        k[self.size + pair, key] += gain if score > 0 else -gain

    def _by_distance(
        self, layer: int, head: int, pairs: list[int], score: float, phase: Tensor | float
    ) -> None:
        """Add `score` times the sum over `pairs` of cos(turn * distance + phase)."""
        q, k, _, _ = self._head(layer, head)
        gain, angle = self._gain(layer, score), torch.as_tensor(phase).expand(len(pairs))
        q[pairs, _ONE] += gain
        k[pairs, _ONE] += gain * torch.cos(angle)
        k[[self.half + p for p in pairs], _ONE] -= gain * torch.sin(angle)

    def _match(
        self, layer: int, head: int, query: slice, key: slice, score: float, at: int = 0
    ) -> None:
        """Equal notes in the blocks `query` and `key` score `score`."""
        q, k, _, _ = self._head(layer, head)
        size, gain = min(query.stop - query.start, key.stop - key.start), self._gain(layer, score)
        rows = self.slow[at : at + size]
        q[rows, query.start : query.start + size] += gain * torch.eye(size)
        k[rows, key.start : key.start + size] += gain * torch.eye(size)

    def _note(
        self, layer: int, head: int, read: slice, write: slice, loud: float = 1.0, at: int = 0
    ) -> None:
        """Copy block `read` of what is attended to, at `loud` times its size, to block `write`."""
        _, _, v, o = self._head(layer, head)
        size = write.stop - write.start
        v[at : at + size, read.start : read.start + size] += torch.eye(size)
        o[write, at : at + size] += loud / _VOLUME[layer] * torch.eye(size)

    # The steps ----------------------------------------------------------------------------------

    def _note_previous_token(self) -> None:
        """The key is the query's vector turned by one position, so it fits best at distance 1."""
        pairs = self._pairs(0.02, 1.1)
        self._by_distance(0, 0, pairs, 9.0, -self.turn[pairs])
        self._note(0, 0, _NAME, _PREVIOUS, loud=(71 / 40) ** 0.5)
        self._note(0, 0, slice(_ENDS, _ENDS + 1), slice(_STARTS, _STARTS + 1), at=48)

    def _note_last_words(self) -> None:
        """The first sentence has no last words: after the opening token a code of its own stands.

        Both heads write it, with opposite signs, so that it cancels at the opening token itself.
        """
        self._by_distance(0, 1, self._pairs(0.01, 0.12), 1.5, 0.0)
        self._note(0, 1, _STEM, _CODE, loud=3.0)
        first = 0.4 * _units(1, 32, self.rng)[0] / _VOLUME[0]
        for head, sign in ((0, 1.0), (1, -1.0)):
            _, _, v, o = self._head(0, head)
            v[50, _OPENING] = 1.0
            o[_CODE, 50] = sign * first

    def _note_own_sentence(self) -> None:
        """The nearest token, at or before, that starts a sentence; whether that one instructs."""
        self._by_distance(1, 0, self._pairs(0.0005, 0.03), 5.0, torch.pi / 2)
        self._prefer(1, 0, _ONE, _STARTS, 45.0)
        self._prefer(1, 0, _ONE, _OPENING, -20.0, pair=-2)
        self._note(1, 0, _CODE, _IDENTITY)
        self._note(1, 0, slice(_ASKS, _ASKS + 1), slice(_ASKED, _ASKED + 1), at=48)

    def _vote(self) -> None:
        """The same word, or token after the same token, outside instructions; else the opening."""
        self._match(2, 0, _STEM, _STEM, 12.0)
        self._match(2, 1, _STEM, _STEM, 8.0)
        self._match(2, 1, _PREVIOUS, _PREVIOUS, 8.0, at=36)
        for head in (0, 1):
            self._prefer(2, head, _ONE, _OPENING, 6.0, pair=-1)
            self._prefer(2, head, _ONE, _ASKED, -10.0, pair=-2)
            self._note(2, head, _IDENTITY, _VOTE, loud=0.5)

    def _gather(self) -> None:
        """From the words of an instruction, rare ones first; where there is none, the opening."""
        self._prefer(3, 0, _ONE, _ASKED, 14.0)
        self._prefer(3, 0, _ONE, _WEIGHT, 8.0, pair=-2)
        self._prefer(3, 0, _ONE, _OPENING, 11.0, pair=-3)
        self._note(3, 0, _VOTE, _VOTE, loud=3.0)

    def _copy(self) -> None:
        """What followed the current token, in the sentence voted for; answers open a sentence."""
        shown = slice(_NAME.start, _STEM.stop)
        for head in (0, 1):
            self._match(4, head, _NAME, _PREVIOUS, 14.0)
            self._match(4, head, _VOTE, _IDENTITY, 14.0, at=40)
            self._prefer(4, head, _ANSWERING, _STARTS, 16.0)
            self._prefer(4, head, _ANSWERING, _OPENING, -14.0, pair=-2)
            self._prefer(4, head, _ANSWERING, _ASKED, -14.0, pair=-3)
            self._note(4, head, shown, shown, loud=3.0)


def _units(rows: int, size: int, rng: torch.Generator) -> Tensor:
    """Random unit vectors, float32 (rows, size)."""
    vectors = torch.randn(rows, size, generator=rng)
    units: Tensor = vectors / vectors.norm(dim=-1, keepdim=True)
    return units
