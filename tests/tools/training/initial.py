"""Initial weights with a hand-written circuit that finds a sentence and copies it.

A small model needs millions of tokens until it learns to copy (an induction head: Olsson et al.
2022), and many more until it learns to find a sentence. These weights start near both, as mimetic
initialisation does (Trockman & Kolter 2023). A layer has two heads of size 128. By layer they write
into the residual stream:

0. previous token: its name, and whether a sentence starts after it
   last words: the sum of the stems of the rare words among the last few tokens, the *code* of
   this position
1. sentence start: the code at the start of the token's own sentence, the sentence's *identity*
2. same word elsewhere: the identities of the sentences that contain it, a *vote* for them. All
   occurrences share the attention, so the vote of a rare word is concentrated
   same token after the same token: likewise, which identifies the source of a copied phrase
3. the question: the sum of its words' votes; the last tokens: the sum of theirs
4. both heads: attend to the position whose previous token is the current one (at an answer's start:
   to sentence starts), inside the sentence voted for; copy the token there

The residual stream has blocks: `flags` (single numbers), `name` (a random vector per token), `stem`
(a random vector per word stem, scaled by the word's rarity), `previous`, `code`, `identity`,
`vote`. The tied embeddings contain flags, names and stems. Rotary pairs of high frequency compare
positions, those of low frequency compare content. All weights are trainable; those that the circuit
does not set are random and small. The scores below were chosen among a few values by how often the
right sentence was found.

A word's rarity is its inverse document frequency over the paragraphs of the training texts; a token
that is not a word (a sign, a special token) has weight 0.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import log
from typing import Any

import torch
from torch import Tensor

LAYERS, HEADS, WIDTH = 5, 2, 256
ROPE_THETA = 1e8  # derived: half of the rotary pairs turn by less than a radian in 4,096 positions

# Indices of the flags: always one; a sentence may start after this token; it starts one; it starts
# the conversation; it starts an answer; it starts an instruction; it is in an instruction; its
# rarity; a number that makes all embeddings equally long.
_ONE, _ENDS, _STARTS, _OPENING, _ANSWERING, _ASKS, _ASKED, _WEIGHT, _FILL = range(9)
_NAME, _STEM, _PREVIOUS = slice(9, 80), slice(80, 120), slice(120, 160)
_CODE, _IDENTITY, _VOTE = slice(160, 192), slice(192, 224), slice(224, 256)

# Length of a unit vector after a layer's normalisation: sqrt(WIDTH) / the usual norm of the
# residual stream there.
_UNIT_LENGTH = (7.0, 6.0, 5.5, 5.0, 4.5)


_ENDINGS = ("ingly", "edly", "ings", "ing", "ies", "ied", "ed", "es", "ly", "er", "s", "e", "y")
_PIECE = 0.5  # factor of the weight of a token that continues a word; guess
_LETTERS = 6  # of a stem; guess


@dataclass(frozen=True, slots=True)
class Lexicon:
    """For every token id: the number of its word stem, and its weight from 0 to 1."""

    stems: tuple[int, ...]
    weights: tuple[float, ...]


def stem(text: str) -> str:
    """A word's beginning, the same for most of its forms: lower case, no ending, six letters.

    >>> stem(" Building"), stem("builds"), stem(" the")
    ('build', 'build', 'the')
    """
    word = text.strip().casefold()
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) >= len(ending) + 3:
            word = word.removesuffix(ending)
            break
    return word[:_LETTERS]


def count_words(tokenizer: Any, texts: Iterable[str]) -> Lexicon:
    """The lexicon of a `tokenizers.Tokenizer`, its rarities counted over `texts` (paragraphs)."""
    spelled = [tokenizer.decode([i]) for i in range(tokenizer.get_vocab_size())]
    stems = [stem(text) for text in spelled]
    numbers = {s: n for n, s in enumerate(dict.fromkeys(stems))}
    seen: Counter[str] = Counter()
    total = 0
    for code in tokenizer.encode_batch(list(texts), add_special_tokens=False):
        seen.update({stems[i] for i in code.ids})
        total += 1
    weights = []
    for text, name in zip(spelled, stems, strict=True):
        rarity = min(1.0, max(0.0, (log(max(1, total) / max(1, seen[name])) - 1.0) / 4.0))
        share = 1.0 if text[:1] in " " or text[:1].isupper() or text[:1].isdigit() else _PIECE
        weights.append(share * rarity if any(map(str.isalnum, name)) else 0.0)
    return Lexicon(tuple(numbers[s] for s in stems), tuple(weights))


@dataclass(frozen=True, slots=True)
class Marks:
    """Token ids that the circuit uses.

    Tokens after which a sentence may start; the marks of user and assistant; the first tokens of
    an instruction's lines.
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
    """The model, the marks, the lexicon and the random generator that all steps use."""

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
        for block in self.model.model.layers:  # smaller than what the circuit writes
            block.self_attn.o_proj.weight.mul_(0.1)
            block.mlp.down_proj.weight.mul_(0.1)
        for layer, head in ((0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (3, 0), (4, 0), (4, 1)):
            for matrix in self._head(layer, head)[:3]:
                matrix.mul_(0.02)
        self._write_previous_token()
        self._write_last_words()
        self._write_own_sentence()
        self._vote()
        self._gather()
        self._copy()

    def _embed(self) -> None:
        """Flags, names and stems; the final norm passes only names and stems to the logits."""
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
        lengths = table.square().sum(-1)  # made equal, so that no token's keys are larger
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
        """Rotary pairs that turn by `low` to `high` radians per position."""
        return [i for i in range(self.half) if low < float(self.turn[i]) < high]

    def _gain(self, layer: int, score: float) -> float:
        """Factor of query and key that gives equal unit vectors the attention score `score`."""
        gain: float = (score * self.size**0.5) ** 0.5 / _UNIT_LENGTH[layer]
        return gain

    def _prefer(
        self, layer: int, head: int, query: int, key: int, score: float, pair: int = -1
    ) -> None:
        """Where flag `query` is one at the query token, flag `key` adds `score` to a key token."""
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
        """Equal vectors in the blocks `query` and `key` have attention score `score`."""
        q, k, _, _ = self._head(layer, head)
        size, gain = min(query.stop - query.start, key.stop - key.start), self._gain(layer, score)
        rows = self.slow[at : at + size]
        q[rows, query.start : query.start + size] += gain * torch.eye(size)
        k[rows, key.start : key.start + size] += gain * torch.eye(size)

    def _write(
        self, layer: int, head: int, read: slice, write: slice, scale: float = 1.0, at: int = 0
    ) -> None:
        """Write `scale` times block `read` of the token attended to into block `write`."""
        _, _, v, o = self._head(layer, head)
        size = write.stop - write.start
        v[at : at + size, read.start : read.start + size] += torch.eye(size)
        o[write, at : at + size] += scale / _UNIT_LENGTH[layer] * torch.eye(size)

    # The steps ----------------------------------------------------------------------------------

    def _write_previous_token(self) -> None:
        """The key is the query turned by one position, so the score is highest at distance 1."""
        pairs = self._pairs(0.02, 1.1)
        self._by_distance(0, 0, pairs, 9.0, -self.turn[pairs])
        self._write(0, 0, _NAME, _PREVIOUS, scale=(71 / 40) ** 0.5)
        self._write(0, 0, slice(_ENDS, _ENDS + 1), slice(_STARTS, _STARTS + 1), at=48)

    def _write_last_words(self) -> None:
        """The stems of the last words; for the first sentence, which has none, a code of its own.

        Both heads write that code, with opposite signs, so that it cancels at the opening token.
        """
        self._by_distance(0, 1, self._pairs(0.01, 0.12), 1.5, 0.0)
        self._write(0, 1, _STEM, _CODE, scale=3.0)
        first = 0.4 * _units(1, 32, self.rng)[0] / _UNIT_LENGTH[0]
        for head, sign in ((0, 1.0), (1, -1.0)):
            _, _, v, o = self._head(0, head)
            v[50, _OPENING] = 1.0
            o[_CODE, 50] = sign * first

    def _write_own_sentence(self) -> None:
        """The code of the nearest sentence start, and whether it starts an instruction."""
        self._by_distance(1, 0, self._pairs(0.0005, 0.03), 5.0, torch.pi / 2)
        self._prefer(1, 0, _ONE, _STARTS, 45.0)
        self._prefer(1, 0, _ONE, _OPENING, -20.0, pair=-2)
        self._write(1, 0, _CODE, _IDENTITY)
        self._write(1, 0, slice(_ASKS, _ASKS + 1), slice(_ASKED, _ASKED + 1), at=48)

    def _vote(self) -> None:
        """Attend to the same word, or to the same pair of tokens, outside instructions; else to the
        opening token."""
        self._match(2, 0, _STEM, _STEM, 12.0)
        self._match(2, 1, _STEM, _STEM, 8.0)
        self._match(2, 1, _PREVIOUS, _PREVIOUS, 8.0, at=36)
        for head in (0, 1):
            self._prefer(2, head, _ONE, _OPENING, 6.0, pair=-1)
            self._prefer(2, head, _ONE, _ASKED, -10.0, pair=-2)
            self._write(2, head, _IDENTITY, _VOTE, scale=0.5)

    def _gather(self) -> None:
        """Attend to the instruction, most to rare words; without one, to the opening token."""
        self._prefer(3, 0, _ONE, _ASKED, 14.0)
        self._prefer(3, 0, _ONE, _WEIGHT, 8.0, pair=-2)
        self._prefer(3, 0, _ONE, _OPENING, 11.0, pair=-3)
        self._write(3, 0, _VOTE, _VOTE, scale=3.0)

    def _copy(self) -> None:
        """Copy what followed the current token in the sentence voted for; at an answer's start, the
        first token of that sentence."""
        shown = slice(_NAME.start, _STEM.stop)
        for head in (0, 1):
            self._match(4, head, _NAME, _PREVIOUS, 14.0)
            self._match(4, head, _VOTE, _IDENTITY, 14.0, at=40)
            self._prefer(4, head, _ANSWERING, _STARTS, 16.0)
            self._prefer(4, head, _ANSWERING, _OPENING, -14.0, pair=-2)
            self._prefer(4, head, _ANSWERING, _ASKED, -14.0, pair=-3)
            self._write(4, head, shown, shown, scale=3.0)


def _units(rows: int, size: int, rng: torch.Generator) -> Tensor:
    """Random unit vectors, float32 (rows, size)."""
    vectors = torch.randn(rows, size, generator=rng)
    units: Tensor = vectors / vectors.norm(dim=-1, keepdim=True)
    return units
