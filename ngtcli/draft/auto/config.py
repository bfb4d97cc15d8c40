"""The constants of `auto`, in one place: what each means, its unit, and where its value comes from.

"swept" gives the change of the mean acceptance length when the constant is halved / doubled, on the
240 document questions of the Spec-Bench recording at 32 nodes, the pool kept
(`python -m ngtcli.evaluate.dev.sweep_constants DIR`); "derived" follows from something else;
"guess" was never measured.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AutoConfig:
    """See each field. Compiled code reads them once, when it is compiled."""

    # Blending (blend.py)
    orders: int = 7  # match lengths, 6 tokens down to 0
    buckets: int = 12  # of contexts; derived: 4 ranges of counts x 3 of distinct continuations
    unseen_probability: float = 1e-4  # share of the last escape mass that a new token gets; guess
    scanned: int = 24  # continuations of a context that are looked at, the most recent first
    min_escape: float = 0.001  # escape probabilities stay this far from 0 and 1; guess

    # Escape tallies (escapes.py)
    trust: float = 100.0  # observations that the fitted escape probabilities weigh
    scores_escape: float = 0.7  # of scores before any was observed, as no recording holds scores
    unused_escape: float = 0.999  # of scores at order 0, which is never queried; derived

    # Tree growth (growth.py)
    children: int = 12  # most children of a node that are considered, the likeliest
    candidates: int = 160  # distinct continuations that one blend can hold; derived: 7 x 24, cut
    min_path_probability: float = 1e-200  # below it a path counts as impossible; derived: float64

    # Search limits (drafter.py)
    floor_share: float = (
        0.15  # nodes less likely than this share of the usual last node are skipped
    )
    floor_rate: float = 0.2  # learning rate of that usual probability, a step; guess
    min_search: int = 8  # nodes that are always searched, however few paid last
    search_growth: int = 2  # nodes searched, over those that paid last; guess

    # The model's scores as a source (ranks.py, usefulness.py)
    ranks_read: int = 3  # of the model's best tokens after a token are learned
    ranks_kept: int = 8  # successors kept of a token
    rank_decay: float = 0.5  # of a successor's weight each time its token is scored; guess
    min_rank_weight: float = 1e-3  # a successor below it is dropped; guess
    usefulness_start: float = 0.3  # share of tokens that scores predict, before any is known; guess
    usefulness_decay: float = 0.97  # of that share's average, a token; guess
    min_usefulness: float = 0.02  # below it scores are read seldom; guess
    seldom: int = 8  # steps between two reads then; guess

    # The pool of earlier answers (pool.py)
    quote: int = 4  # tokens in a row that count as a quotation of the prompt; guess
    pool_tokens: int = 50_000  # token ids that the pool holds
    tally_scale: int = 1000  # stored tallies are integers in units of 1 / 1000; derived: int32

    # The number of nodes (policy.py)
    repeat_run: int = 4  # tokens in a row that, seen before, end a pause; guess
    patience: int = 4  # proposals in a row that do not pay before a pause
    first_pause: int = 4  # steps of the first pause; each next one is twice as long
    longest_pause: int = 256  # steps
    min_speedup: float = 1.02  # expected of drafts; less is within the noise of measured costs
    exploration: int = 32  # proposals between two trials of another number of nodes
    plain_trial: int = 200  # steps without drafts after which some are tried whatever they cost
    bins: int = 8  # of node probabilities: above 1/2, above 1/4, …; derived: down to 1/128
    trust_decay: float = 0.99  # of the accepted / expected tallies, a step
    first_drafting_s: float = 2e-4  # seconds; most that the first proposal counts as taking
    drafting_rate: float = 0.05  # learning rate of the seconds that a proposal takes; guess

    # The cost of a pass (costs.py)
    short_context: int = 1024  # tokens; contexts up to this length share a curve, then x 4; guess
    table_age: int = 16  # steps for which a table of costs is used again; guess
    common_rate: float = 0.1  # share of a surprise that moves all sizes: the machine's speed
    own_rate: float = 0.03  # share that moves the size itself, a step since one of that size
    most_own_rate: float = 0.5  # bound of the share above; guess


CONFIG = AutoConfig()
