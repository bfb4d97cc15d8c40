"""Chooses the target model's token at a node: the likeliest, or one keyed draw.

The draw at a position depends on (seed, position) and the warped distribution alone, so a run gives
the same text with and without drafts, and each token follows the target distribution exactly.

The numbers of a draw are those of SplitMix64 (Steele, Lea & Flood 2014): number i of a key, of
which there is one for each (seed, position, level), is a hash in 64-bit integers, the same on every
device. A draw is an exponential race: the entry whose exponential number over its weight is least
wins in proportion to its weight. First blocks of BLOCK tokens race by their sums, then the tokens
of the block that won: the same distribution, and of 150,000 tokens only some 800 need a number.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ngtcli.config import Settings
from ngtcli.decoding.logits import best_tokens, highest
from ngtcli.decoding.replays import Replays
from ngtcli.decoding.sizes import row_size
from ngtcli.drafting.tree import ROOT, DraftTree

_Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def penalizes(settings: Settings) -> bool:
    """Return whether logits depend on the tokens before them."""
    return settings.answer.repetition_penalty != 1.0 or bool(
        settings.answer.presence_penalty or settings.answer.frequency_penalty
    )


class Penalties:
    """The penalties for tokens that prompt and output contain already.

    A call takes time in proportion to the number of different tokens, and one copy of the logits.
    Each committed token is counted once.
    """

    def __init__(self, settings: Settings, prompt: Sequence[int]) -> None:
        self._settings = settings
        # The repetition penalty counts the prompt, too, the others the output only.
        self._known = set(prompt) if settings.answer.repetition_penalty != 1.0 else set[int]()
        self._ids = torch.tensor(sorted(self._known), dtype=torch.long)
        # How often the output has each token, float32 (vocab_size,); empty before the first logits.
        self._times = torch.empty(0)
        self._new: list[int] = []  # committed, not yet counted

    def commit(self, tokens: Sequence[int]) -> None:
        """Append tokens to the output."""
        self._new += tokens

    def gather(self, paths: Sequence[Mapping[int, int]]) -> list[_Ints]:
        """Return the arrays that `penalize` takes, so that one copy brings them to the device.

        Args:
            paths: Of each row, how often each token is on the path from the root to its node.

        Returns:
            Five int64 arrays: the newly committed tokens; those of them that were not known before;
            and of each pair of a row and a token of its path the row, the token, and its count.
        """
        counted = [
            (row, token, count) for row, path in enumerate(paths) for token, count in path.items()
        ]
        rows, tokens, counts = np.array(counted, np.int64).reshape(-1, 3).T
        first_seen = sorted(set(self._new) - self._known)
        self._known.update(first_seen)
        new = np.array(self._new, np.int64)
        self._new = []
        return [new, np.array(first_seen, np.int64), rows, tokens, counts]

    def penalize(self, logits: Tensor, gathered: Sequence[Tensor]) -> Tensor:
        """Return a penalized copy of float32 logits.

        Args:
            logits: (rows, vocab_size).
            gathered: The arrays of `gather`, on the device of the logits.
        """
        new, first_seen, rows, tokens, counts = gathered
        if not len(self._times):
            self._times = torch.zeros(logits.shape[1], device=logits.device)
            self._ids = self._ids.to(logits.device)
        if len(new):
            self._times.index_add_(0, new, torch.ones(len(new), device=logits.device))
            self._ids = torch.cat([self._ids, first_seen])

        ids = self._ids
        times = self._times
        penalized = self._weaken(logits.index_select(1, ids), times[ids])
        changed = logits.index_copy(1, ids, penalized)
        if len(rows):
            penalized = self._weaken(logits[rows, tokens], counts + times[tokens])
            changed.index_put_((rows, tokens), penalized)
        return changed

    def _weaken(self, logits: Tensor, times: Tensor) -> Tensor:
        """Apply the penalties to logits of tokens that are in prompt or output.

        Args:
            logits: (…, n).
            times: How often the output has each of these tokens, (n,). The presence penalty is
                subtracted once, the frequency penalty for each time.
        """
        answer = self._settings.answer
        repetition = answer.repetition_penalty
        if repetition != 1.0:  # as RepetitionPenaltyLogitsProcessor of `transformers`
            pick = torch.minimum if repetition > 1.0 else torch.maximum
            logits = pick(logits * repetition, logits / repetition)
        if answer.presence_penalty or answer.frequency_penalty:
            once = answer.presence_penalty * times.clamp(max=1)
            logits = logits - once - answer.frequency_penalty * times
        return logits


BLOCK = 512  # tokens; derived: near the root of a vocabulary of 150,000, where numbers are fewest
_GOLDEN = 0x9E3779B97F4A7C15  # the constants of SplitMix64
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_MODULUS = 2**64


def keys_of(seed: int, positions: Sequence[int]) -> list[_Ints]:
    """Return the keys of the rows at these positions, int64 (rows,), of each of the two levels.

    Level 0 is the race of the blocks, level 1 that of the tokens of a block.
    """
    by_position = [_mix(_mix(seed) + position) for position in positions]
    return [
        np.array([_mix(key + level) for key in by_position], np.uint64).view(np.int64)
        for level in (0, 1)
    ]


def draw(weights: Tensor, of_blocks: Tensor, of_tokens: Tensor) -> Tensor:
    """Draw a token for each row, in proportion to its weights.

    Args:
        weights: float32 (rows, vocab_size), not negative.
        of_blocks: The keys of level 0, int64 (rows,).
        of_tokens: The keys of level 1, int64 (rows,).

    Returns:
        Token ids, int64 (rows,); -1 where a weight is not a number, or none is above 0.
    """
    rows, size = weights.shape
    if size % BLOCK:
        weights = torch.nn.functional.pad(weights, (0, -size % BLOCK))
    padded = weights.view(rows, -1, BLOCK)
    sums = padded.sum(-1, dtype=torch.float64)
    indices = torch.arange(max(sums.shape[1], BLOCK), device=weights.device)
    # A rounding error in the logits changes the winner of a race only where the two best differ by
    # less than the error; in a cumulative distribution errors would add up over all tokens.
    numbers = _numbers(of_blocks, indices[None, : sums.shape[1]])
    blocks = (sums / numbers).argmax(-1, keepdim=True)
    members = padded.gather(1, blocks[:, :, None].expand(-1, -1, BLOCK))[:, 0].double()
    tokens = blocks * BLOCK + indices[None, :BLOCK]
    winners = (members / _numbers(of_tokens, tokens)).argmax(-1, keepdim=True)
    total = sums.sum(-1)
    is_invalid = (total <= 0) | (total - total != 0)  # the second is true of what is not finite
    return tokens.gather(1, winners)[:, 0].masked_fill(is_invalid, -1)


def _numbers(keys: Tensor, indices: Tensor) -> Tensor:
    """Return the exponential numbers with these indices, of the streams of keys.

    Args:
        keys: int64 (rows,).
        indices: int64 (1 or rows, n).

    Returns:
        float64 (rows, n), above 0, of mean 1.
    """
    state = keys[:, None] + (indices + 1) * _signed(_GOLDEN)
    state = (state ^ _shifted(state, 30)) * _signed(_MIX_1)
    state = (state ^ _shifted(state, 27)) * _signed(_MIX_2)
    state = state ^ _shifted(state, 31)
    # 52 bits and a half are exact in float64 and lie between 0 and 1, so that no number is 0.
    return -((_shifted(state, 12).double() + 0.5) * 2.0**-52).log()


def _shifted(values: Tensor, bits: int) -> Tensor:
    """Shift values to the right as unsigned numbers; torch shifts signed ones."""
    shifted: Tensor = (values >> bits) & ((1 << (64 - bits)) - 1)
    return shifted


def _mix(value: int) -> int:
    """Return the finalizer of SplitMix64 after one step: a Python number below 2^64."""
    value = (value + _GOLDEN) % _MODULUS
    value = (value ^ (value >> 30)) * _MIX_1 % _MODULUS
    value = (value ^ (value >> 27)) * _MIX_2 % _MODULUS
    return value ^ (value >> 31)


def _signed(value: int) -> int:
    """Return the int64 with the bits of an unsigned number, as torch has no uint64."""
    return value - _MODULUS if value >= _MODULUS // 2 else value


# Likeliest tokens that are looked at for top-p: on a CPU at first, as they are mostly enough, on
# other devices at all. Guesses.
_FIRST_CPU = 64
_FIRST_DEVICE = 1024
# The lowest temperature: below it a float32 has fewer digits, and at last 0 is divided by 0.
_MIN_TEMPERATURE = torch.finfo(torch.float32).tiny


class Sampler:
    """Chooses the tokens of one sequence, after its prompt and the output committed so far.

    Temperature 0 is greedy.

    Args:
        settings: Temperature, top-k, top-p, min-p, penalties and seed.
        prompt: Token ids.
        replays: Runs draws on the device, captured where it can; None: they are run eagerly.
    """

    def __init__(
        self, settings: Settings, prompt: Sequence[int], replays: Replays | None = None
    ) -> None:
        self.settings = settings
        self._length = len(prompt)
        self._replays = replays
        self._penalties = Penalties(settings, prompt) if penalizes(settings) else None

    def commit(self, tokens: Sequence[int]) -> None:
        """Append tokens to the output."""
        self._length += len(tokens)
        if self._penalties is not None:
            self._penalties.commit(tokens)

    @torch.inference_mode()
    def choose(self, logits: Tensor, path: Sequence[int] = (), mask: Mask | None = None) -> int:
        """Choose the token after the output and a path of draft tokens.

        A token is drawn on the CPU: MPS knows no float64, and what `choices` leaves open on other
        devices is rare.

        Args:
            logits: (vocab_size,), after the path.
            path: The draft tokens after the output.
            mask: The tokens that are allowed, bool (vocab_size,); None: all.

        Returns:
            A token id; -1 where the highest logit is not finite, or one is NaN.
        """
        logits = self._adjusted(logits, path, mask)
        answer = self.settings.answer
        if answer.temperature == 0.0:
            return int(best_tokens(logits)[0])
        keys = _to_device(keys_of(answer.seed, [self._length + len(path)]), torch.device("cpu"))
        return int(draw(warp(logits.cpu(), self.settings), *keys)[0])

    @torch.inference_mode()
    def probability(
        self, token: int, logits: Tensor, path: Sequence[int], mask: Mask | None
    ) -> float:
        """Return the probability of a token at temperature 1; the rest is as for `choose`."""
        return float(self._adjusted(logits, path, mask)[0].log_softmax(-1)[token].exp())

    def _adjusted(self, logits: Tensor, path: Sequence[int], mask: Mask | None) -> Tensor:
        """Return penalized and masked logits, float32 (1, vocab_size).

        If a logit was not finite it is NaN, even where the mask excludes it.
        """
        logits = logits[None].float()
        if self._penalties is not None:
            gathered = self._penalties.gather([Counter(path)])
            logits = self._penalties.penalize(logits, _to_device(gathered, logits.device))
        if mask is None:
            return logits
        return torch.where(torch.from_numpy(mask).to(logits.device), logits, logits - torch.inf)

    @torch.inference_mode()
    def choices(self, logits: Tensor, tree: DraftTree) -> Tensor | None:
        """Choose the tokens after all nodes at once, on the device.

        One tensor is sent to the device, and nothing is read back.

        Args:
            logits: (rows, vocab_size), after the root and each node; after them padding.
            tree: The draft tree.

        Returns:
            Token ids, int64 (rows,), -1 where `choose` has to decide. None on a CPU, which chooses
            the tokens of the path alone, and for draws on MPS.
        """
        device = logits.device.type
        draws = self.settings.answer.temperature != 0.0
        if device == "cpu" or (draws and device == "mps"):
            return None
        return self.choose_rows(logits, tree)

    def choose_rows(self, logits: Tensor, tree: DraftTree) -> Tensor:
        """Choose the tokens after all nodes, as `choices`, on any device with float64."""
        if self._penalties is not None:
            gathered = _to_device(self._penalties.gather(_paths(tree)), logits.device)
            logits = self._penalties.penalize(logits.float(), gathered)
        if self.settings.answer.temperature == 0.0:
            return best_tokens(logits)
        return self._draw_rows(logits, [self._length + depth for depth in (0, *tree.depths())])

    def _draw_rows(self, logits: Tensor, positions: Sequence[int]) -> Tensor:
        """Draw a token for each row at its position; rows are padded to one of a few sizes."""
        settings = self.settings
        device = logits.device
        size = row_size(device.type, len(logits))
        replays = self._replays or Replays("draws are", device)
        buffer = replays.buffer(size, logits.shape[1], torch.float32)
        buffer[: len(logits)] = logits
        keys = np.zeros((2, size), np.int64)
        keys[:, : len(positions)] = keys_of(settings.answer.seed, positions)

        def run(packed_keys: Tensor) -> tuple[Tensor]:
            return (draw(warp(buffer, settings), *packed_keys.view(2, size)),)

        key = (
            size,
            settings.answer.temperature,
            settings.answer.top_k,
            settings.answer.top_p,
            settings.answer.min_p,
        )
        (tokens,) = replays.run(key, run, torch.from_numpy(keys).flatten())
        return tokens[: len(logits)]


def _paths(tree: DraftTree) -> list[dict[int, int]]:
    """Count the tokens on the path to the root, which is empty, and to each node."""
    paths: list[dict[int, int]] = [{}]
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        before = paths[parent - ROOT]
        paths.append({**before, token: before.get(token, 0) + 1})
    return paths


def _to_device(arrays: Sequence[_Ints], device: torch.device) -> tuple[Tensor, ...]:
    """Copy arrays to a device, in one transfer."""
    if not arrays:
        return ()
    joined = torch.from_numpy(np.concatenate(arrays)).to(device, non_blocking=True)
    return torch.split(joined, [*map(len, arrays)])


def warp(logits: Tensor, settings: Settings) -> Tensor:
    """Return weights in proportion to the warped probabilities, float32 (rows, vocab_size).

    Temperature, top-k, top-p and min-p are applied in the order of `transformers`' generate, with
    its meaning of each; but where tokens tie with the last one that survives, all of them survive.
    On other devices than a CPU the weights of a row are all 0 if its likeliest _FIRST_DEVICE
    tokens have a share below `top_p`.
    """
    if settings.answer.temperature not in (0.0, 1.0):
        # The highest is 0 then: none overflows, however low the temperature.
        temperature = max(settings.answer.temperature, _MIN_TEMPERATURE)
        logits = (logits - logits.amax(-1, keepdim=True)) / temperature
    weights = torch.softmax(logits, dim=-1)
    if 0 < settings.answer.top_k < logits.shape[-1]:
        weights = _cut(weights, highest(weights, settings.answer.top_k)[0][:, -1:])
    if settings.answer.top_p < 1.0:
        weights = _cut(weights, _min_weight_of_mass(weights, settings.answer.top_p))
    if settings.answer.min_p > 0.0:
        weights = _cut(weights, settings.answer.min_p * weights.amax(-1, keepdim=True))
    return weights


def _cut(weights: Tensor, min_weights: Tensor) -> Tensor:
    """Set each row's weights below its minimum, (rows, 1), to 0, in place; return the weights."""
    return weights.masked_fill_(weights < min_weights, 0.0)


def _min_weight_of_mass(weights: Tensor, share: float) -> Tensor:
    """Return the lowest of the fewest highest weights that have a share of each row's sum.

    float32 (rows, 1); infinite where a device looks at too few of them, see `warp`.
    """
    on_cpu = weights.device.type == "cpu"
    min_mass = share * weights.sum(-1, keepdim=True, dtype=torch.float64)
    best = highest(weights, _FIRST_CPU if on_cpu else _FIRST_DEVICE)[0]
    mass = best.cumsum(-1, dtype=torch.float64)
    has_too_few = mass[:, -1:] < min_mass
    if on_cpu and bool(has_too_few.any()):
        # numpy sorts 150,000 weights in 0.5 ms with AVX-512, torch in 12 (measured)
        best = torch.from_numpy(np.sort(weights.numpy())).flip(-1)
        mass = best.cumsum(-1, dtype=torch.float64)
    last = ((mass - best) < min_mass).sum(-1, keepdim=True) - 1
    min_weights = best.gather(-1, last.clamp_min(0))
    return min_weights if on_cpu else min_weights.masked_fill(has_too_few, torch.inf)
