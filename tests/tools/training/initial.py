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

LAYERS = 5
HEADS = 2
WIDTH = 256
# Derived: half of the rotary pairs turn by less than a radian in 4,096 positions.
ROPE_THETA = 1e8

# The flags, by their index in the residual stream.
_ONE = 0  # always one
_ENDS = 1  # a sentence may start after this token
_STARTS = 2  # this token starts a sentence
_OPENING = 3  # this token starts the conversation
_ANSWERING = 4  # this token starts an answer
_ASKS = 5  # this token starts an instruction
_ASKED = 6  # this token is in an instruction
_WEIGHT = 7  # the rarity of the word
_FILL = 8  # a number that makes all embeddings equally long

# The other blocks of the residual stream.
_NAME = slice(9, 80)
_STEM = slice(80, 120)
_PREVIOUS = slice(120, 160)
_CODE = slice(160, 192)
_IDENTITY = slice(192, 224)
_VOTE = slice(224, 256)

# The length of a unit vector after a layer's normalisation: sqrt(WIDTH) divided by the usual norm
# of the residual stream there.
_UNIT_LENGTH = (7.0, 6.0, 5.5, 5.0, 4.5)

_ENDINGS = ("ingly", "edly", "ings", "ing", "ies", "ied", "ed", "es", "ly", "er", "s", "e", "y")
_CONTINUATION_WEIGHT = 0.5  # Factor of the weight of a token that continues a word. Guess.
_MAX_STEM_LETTERS = 6  # Guess.


@dataclass(frozen=True, slots=True)
class Lexicon:
    """For each token id: the number of its word stem, and its weight from 0 to 1."""

    stems: tuple[int, ...]
    weights: tuple[float, ...]


def stem(text: str) -> str:
    """Return a word's beginning, the same for most of its forms: lower case, at most six letters.

    >>> stem(" Building"), stem("builds"), stem(" the")
    ('build', 'build', 'the')
    """
    word = text.strip().casefold()
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) >= len(ending) + 3:
            word = word.removesuffix(ending)
            break
    return word[:_MAX_STEM_LETTERS]


def count_words(tokenizer: Any, texts: Iterable[str]) -> Lexicon:
    """Make the lexicon of a `tokenizers.Tokenizer`, with rarities counted over paragraphs."""
    token_texts = [tokenizer.decode([token]) for token in range(tokenizer.get_vocab_size())]
    stems = [stem(text) for text in token_texts]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(stems))}
    paragraph_counts: Counter[str] = Counter()
    total = 0
    for encoding in tokenizer.encode_batch(list(texts), add_special_tokens=False):
        paragraph_counts.update({stems[token] for token in encoding.ids})
        total += 1
    weights = []
    for text, name in zip(token_texts, stems, strict=True):
        inverse_frequency = log(max(1, total) / max(1, paragraph_counts[name]))
        rarity = min(1.0, max(0.0, (inverse_frequency - 1.0) / 4.0))
        starts_word = text[:1] in " " or text[:1].isupper() or text[:1].isdigit()
        factor = 1.0 if starts_word else _CONTINUATION_WEIGHT
        is_word = any(map(str.isalnum, name))
        weights.append(factor * rarity if is_word else 0.0)
    return Lexicon(tuple(numbers[name] for name in stems), tuple(weights))


@dataclass(frozen=True, slots=True)
class Marks:
    """Token ids that the circuit uses.

    Attributes:
        before_sentence: Tokens after which a sentence may start.
        user: The mark of the user.
        assistant: The mark of the assistant.
        instructions: The first tokens of the lines of an instruction.
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
    """Writes the circuit step by step.

    Attributes:
        model: The model.
        marks: The token ids that the circuit uses.
        lexicon: The stems and weights of all tokens.
        rng: The generator of the random vectors.
        size: The dimensions of a head.
        half: The number of rotary pairs: dimensions `pair` and `half + pair` turn together.
        turn: The angle of each rotary pair per position, in radians.
        slow: The dimensions of the pairs that hardly turn, which compare content.
        attention: The attention modules by layer.
    """

    def __init__(self, model: Any, marks: Marks, lexicon: Lexicon, rng: torch.Generator) -> None:
        self.model = model
        self.marks = marks
        self.lexicon = lexicon
        self.rng = rng
        self.size = WIDTH // HEADS
        self.half = self.size // 2
        pairs = torch.arange(self.half)
        self.turn = model.config.rope_parameters["rope_theta"] ** (-2.0 * pairs / self.size)
        slow_pairs = range(26, self.half)
        self.slow = [*slow_pairs, *(self.half + pair for pair in slow_pairs)]
        self.attention = [layer.self_attn for layer in model.model.layers]

    def plant(self) -> None:
        """Write the whole circuit, from the embeddings up."""
        self._embed()
        # Make the random weights small beside those that the circuit writes.
        for layer in self.model.model.layers:
            layer.self_attn.o_proj.weight.mul_(0.1)
            layer.mlp.down_proj.weight.mul_(0.1)
        used_heads = ((0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (3, 0), (4, 0), (4, 1))
        for layer_index, head in used_heads:
            q, k, v, _ = self._head(layer_index, head)
            for matrix in (q, k, v):
                matrix.mul_(0.02)
        self._write_previous_token()
        self._write_last_words()
        self._write_own_sentence()
        self._vote()
        self._gather()
        self._copy()

    def _embed(self) -> None:
        """Write flags, names and stems; the final norm passes only names and stems on."""
        table = self.model.model.embed_tokens.weight
        marks = self.marks
        weights = torch.tensor(self.lexicon.weights)
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
        # Make all embeddings equally long, so that no token has larger keys than others.
        squared_lengths = table.square().sum(-1)
        table[:, _FILL] = (squared_lengths.max() + 0.1 - squared_lengths).sqrt()
        self.model.model.norm.weight.zero_()
        self.model.model.norm.weight[_NAME.start : _STEM.stop] = 1.0

    # Writing into heads -------------------------------------------------------------------------

    def _head(self, layer: int, head: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return views of a head's matrices q, k, v (128, width) and o (width, 128)."""
        attention = self.attention[layer]
        rows = slice(head * self.size, (head + 1) * self.size)
        q = attention.q_proj.weight[rows]
        k = attention.k_proj.weight[rows]
        v = attention.v_proj.weight[rows]
        o = attention.o_proj.weight[:, rows]
        return q, k, v, o

    def _pairs(self, low: float, high: float) -> list[int]:
        """Return the rotary pairs that turn by `low` to `high` radians per position."""
        return [pair for pair in range(self.half) if low < float(self.turn[pair]) < high]

    def _gain(self, layer: int, score: float) -> float:
        """Return the factor of query and key by which equal unit vectors have the score `score`."""
        gain: float = (score * self.size**0.5) ** 0.5 / _UNIT_LENGTH[layer]
        return gain

    def _prefer(
        self, layer: int, head: int, query: int, key: int, score: float, pair: int = -1
    ) -> None:
        """Add `score` to key tokens with flag `key`, for query tokens with flag `query`.

        `pair` is a rotary pair that is free, counted from the end.
        """
        q, k, _, _ = self._head(layer, head)
        gain = self._gain(layer, abs(score))
        q[self.size + pair, query] += gain
        k[self.size + pair, key] += gain if score > 0 else -gain

    def _by_distance(
        self, layer: int, head: int, pairs: list[int], score: float, phase: Tensor | float
    ) -> None:
        """Add `score` times the sum over `pairs` of cos(turn * distance + phase)."""
        q, k, _, _ = self._head(layer, head)
        gain = self._gain(layer, score)
        angle = torch.as_tensor(phase).expand(len(pairs))
        partners = [self.half + pair for pair in pairs]
        q[pairs, _ONE] += gain
        k[pairs, _ONE] += gain * torch.cos(angle)
        k[partners, _ONE] -= gain * torch.sin(angle)

    def _match(
        self, layer: int, head: int, query: slice, key: slice, score: float, offset: int = 0
    ) -> None:
        """Give equal vectors in the blocks `query` and `key` the attention score `score`.

        They are compared in the slow dimensions from `offset` on.
        """
        q, k, _, _ = self._head(layer, head)
        size = min(query.stop - query.start, key.stop - key.start)
        gain = self._gain(layer, score)
        rows = self.slow[offset : offset + size]
        q[rows, query.start : query.start + size] += gain * torch.eye(size)
        k[rows, key.start : key.start + size] += gain * torch.eye(size)

    def _write(
        self, layer: int, head: int, read: slice, write: slice, scale: float = 1.0, offset: int = 0
    ) -> None:
        """Write `scale` times block `read` of the token attended to into block `write`.

        It passes through the dimensions of the head from `offset` on.
        """
        _, _, v, o = self._head(layer, head)
        size = write.stop - write.start
        v[offset : offset + size, read.start : read.start + size] += torch.eye(size)
        o[write, offset : offset + size] += scale / _UNIT_LENGTH[layer] * torch.eye(size)

    # The steps ----------------------------------------------------------------------------------

    def _write_previous_token(self) -> None:
        """Attend to the previous token: its key is turned so that the score peaks at distance 1."""
        pairs = self._pairs(0.02, 1.1)
        self._by_distance(0, 0, pairs, 9.0, -self.turn[pairs])
        self._write(0, 0, _NAME, _PREVIOUS, scale=(71 / 40) ** 0.5)
        self._write(0, 0, slice(_ENDS, _ENDS + 1), slice(_STARTS, _STARTS + 1), offset=48)

    def _write_last_words(self) -> None:
        """Write the stems of the last words, or the code of the first sentence, which has none.

        Both heads write the code of the first sentence, with opposite signs, so that it cancels at
        the opening token.
        """
        self._by_distance(0, 1, self._pairs(0.01, 0.12), 1.5, 0.0)
        self._write(0, 1, _STEM, _CODE, scale=3.0)
        first = 0.4 * _units(1, 32, self.rng)[0] / _UNIT_LENGTH[0]
        for head, sign in ((0, 1.0), (1, -1.0)):
            _, _, v, o = self._head(0, head)
            v[50, _OPENING] = 1.0
            o[_CODE, 50] = sign * first

    def _write_own_sentence(self) -> None:
        """Write the code of the nearest sentence start, and whether it starts an instruction."""
        self._by_distance(1, 0, self._pairs(0.0005, 0.03), 5.0, torch.pi / 2)
        self._prefer(1, 0, _ONE, _STARTS, 45.0)
        self._prefer(1, 0, _ONE, _OPENING, -20.0, pair=-2)
        self._write(1, 0, _CODE, _IDENTITY)
        self._write(1, 0, slice(_ASKS, _ASKS + 1), slice(_ASKED, _ASKED + 1), offset=48)

    def _vote(self) -> None:
        """Attend to the same word, or the same pair of tokens, outside instructions.

        Without any, attend to the opening token.
        """
        self._match(2, 0, _STEM, _STEM, 12.0)
        self._match(2, 1, _STEM, _STEM, 8.0)
        self._match(2, 1, _PREVIOUS, _PREVIOUS, 8.0, offset=36)
        for head in (0, 1):
            self._prefer(2, head, _ONE, _OPENING, 6.0, pair=-1)
            self._prefer(2, head, _ONE, _ASKED, -10.0, pair=-2)
            self._write(2, head, _IDENTITY, _VOTE, scale=0.5)

    def _gather(self) -> None:
        """Attend to the instruction, most to its rare words; without one, to the opening token."""
        self._prefer(3, 0, _ONE, _ASKED, 14.0)
        self._prefer(3, 0, _ONE, _WEIGHT, 8.0, pair=-2)
        self._prefer(3, 0, _ONE, _OPENING, 11.0, pair=-3)
        self._write(3, 0, _VOTE, _VOTE, scale=3.0)

    def _copy(self) -> None:
        """Copy the token that followed the current one in the sentence voted for.

        At an answer's start, copy the first token of that sentence.
        """
        name_and_stem = slice(_NAME.start, _STEM.stop)
        for head in (0, 1):
            self._match(4, head, _NAME, _PREVIOUS, 14.0)
            self._match(4, head, _VOTE, _IDENTITY, 14.0, offset=40)
            self._prefer(4, head, _ANSWERING, _STARTS, 16.0)
            self._prefer(4, head, _ANSWERING, _OPENING, -14.0, pair=-2)
            self._prefer(4, head, _ANSWERING, _ASKED, -14.0, pair=-3)
            self._write(4, head, name_and_stem, name_and_stem, scale=3.0)


def _units(rows: int, size: int, rng: torch.Generator) -> Tensor:
    """Draw random unit vectors, float32 (rows, size)."""
    vectors = torch.randn(rows, size, generator=rng)
    units: Tensor = vectors / vectors.norm(dim=-1, keepdim=True)
    return units
