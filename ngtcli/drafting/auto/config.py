"""The constants of `auto`, each with its meaning, its unit, and the source of its value.

"Swept" gives the change of the mean acceptance length when the constant is halved; doubled, on
the 240 document questions of the Spec-Bench recording at 32 nodes, each with the pool / without it.
A "derived" value follows from something else. A value without a mark, or marked "a guess", has no
recorded measurement: constants of the policy, of costs and of scores cannot be swept on a
recording, which has neither costs nor scores.
"""

from dataclasses import dataclass

from ngtcli.drafting.options import MethodOptions, option


@dataclass(frozen=True, slots=True)
class AutoConfig:
    """The constants. Compiled code reads them once, when it is compiled."""

    # Blending (blend.py)
    orders: int = 7  # match lengths, 6 tokens down to 0; the fitted table has as many
    buckets: int = 12  # of contexts; derived: 4 ranges of counts x 3 of distinct continuations
    # Share of the last escape mass that a new token gets. Swept: -0.01% / +0.01%; +0.02% / +0.02%.
    unseen_probability: float = 1e-4
    # Continuations of a context that are read, the most recent first. Swept: -0.56% / -0.24%;
    # +0.02% / +0.08%.
    scanned: int = 24
    # The same for the background, the most frequent first. Swept with the shipped one, as below:
    # 2.653; 2.655 with 24; 2.651 with 8.
    scanned_background: int = 12
    # Matches in the background are divided into buckets by how often they were seen and by the
    # share of the most frequent continuation: bounds of both. Swept with 0.94 million tokens of
    # English, mean acceptance length on odd ids at 32 nodes, with the pool: 2.660; buckets as
    # of the others 2.653; seen 2.5, 12.5, 100.5 2.655; shares 0.9, 0.5 2.661; 0.6, 0.2 2.661.
    background_seen: tuple[float, ...] = (1.5, 4.5, 24.5)
    background_agrees: tuple[float, ...] = (0.75, 0.3)
    # Distance of escape probabilities from 0 and 1, so that no product becomes 0. Swept: 0; 0.
    min_escape: float = 0.001

    # Escape tallies (escapes.py)
    # Observations that the fitted escape probabilities weigh. Swept: -0.17% / +0.15%;
    # +0.10% / -0.04%.
    trust: float = 100.0
    # The maximum weight, in observations, of earlier answers of a process; a guess: 240 answers
    # make fewer.
    most_observed: float = 20_000.0
    scores_escape: float = 0.7  # of scores before any was observed, as no recording holds scores
    unused_escape: float = 0.999  # of background and scores at order 0, never queried; derived

    # Tree growth (growth.py)
    # The maximum number of a node's children that are considered, likeliest first. Swept with a
    # background: -0.05% / -0.18%; -0.01% / -0.10%; at 64 nodes -0.74% / -0.73%; +0.37% / +0.08%.
    children: int = 24
    min_path_probability: float = 1e-200  # below it a path counts as impossible; derived: float64

    # The place that is copied (copies.py)
    copy_key: int = 4  # tokens in a row by which a place is found; a guess
    copy_compared: int = 64  # tokens of two matches that are compared, to take the longer; a guess
    # Tokens after a departure among which the copy may continue. Swept, code edits and news at 32
    # nodes: half and three times as many within 0.3% of it, with and without the pool.
    copy_window: int = 16
    copy_firm: int = 3  # tokens in a row that make a place the new one after a departure; a guess
    copy_edit: int = 24  # tokens of a departure after which the place is given up; a guess

    # The log-linear stage (loglinear.py). "Tried": change of the mean acceptance length on the 240
    # document questions at 32 nodes, with the pool, of the same stage written in C++.
    stage_rate: float = 0.2  # of Adagrad's steps. Tried: 0.1 loses 0.1%; 0.3 changes nothing.
    stage_max_factor: float = 1e3  # and 1 / 1000: bounds of e to the power of a weight; a guess
    # The maximum that Adagrad's sums have at the start of a later answer; a guess.
    stage_most_squares: float = 400.0
    # Of a probability that a node needs to enter the tree, the share below which a candidate keeps
    # what the blend gives it. Tried: 0 and 0.3 change nothing, and take 3 times as many candidates.
    stage_share: float = 0.6
    # In a chain also the share of the likeliest candidate's probability; a guess.
    stage_chain_share: float = 1 / 64
    # Learning leaves smaller contributions to a candidate out. Tried: 1e-5 loses 0.3%, 6e-3 0.1%.
    stage_least: float = 3e-3
    stage_before: int = 16  # tokens before the place last copied that count as near; a guess
    stage_behind: int = 64  # tokens behind it; a guess
    stage_tried: int = 64  # places of a pair of tokens that are compared, the last first; a guess
    stage_compared: int = 8  # tokens of two matches that are compared; a guess
    stage_step: int = 12  # tokens on to which a single one moves the place last copied; a guess
    stage_slots: int = 1 << 14  # of the table of tokens in the answer; a guess

    # Search limits (drafter.py)
    # Share of the usual last node's probability below which nodes are skipped. Swept:
    # +0.05% / -0.03%; -0.33% / -0.34%.
    floor_share: float = 0.15
    # Learning rate of that usual probability, a step. Swept: -0.01% / +0.04%; -0.08% / -0.14%.
    floor_rate: float = 0.2
    min_search: int = 8  # nodes that are always searched, however few paid last
    search_growth: int = 2  # nodes searched, over those that paid last; a guess

    # The model's own runners-up as a source (sources/scores.py). Measured with the built-in model
    # on its questions: mean acceptance length 8.69, without them 8.37.
    ranks_read: int = 3  # of the model's best tokens after a token are learned
    ranks_kept: int = 8  # successors kept of a token
    rank_decay: float = 0.5  # of a successor's weight each time its token is scored; a guess
    min_rank_weight: float = 1e-3  # a successor below it is dropped; a guess

    # Learned heads as sources (sources/heads.py)
    heads: int = 4  # maximum number of learned heads at once; a guess
    guess_states: int = 512  # nodes of a step that heads guess after, all together; a guess
    # Lower bounds of the probability of a head's likeliest token, which divide its proposals into
    # buckets; a guess. A table of escapes has two times as many buckets plus two.
    guess_sure: tuple[float, ...] = (0.95, 0.8, 0.6, 0.4, 0.2)
    # Initial escape probability of a head's proposal beside a match of 0, 1, … tokens, and its
    # weight in observations. Swept with EAGLE-3's recorded success (tokens a step on
    # CNN/DM, code edits) and with heads of the built-in model that know little (Medusa, EAGLE-3;
    # 15.71 without): from 0.2 to 0.8 by 100 observations 3.54, 4.87; 13.33, 14.19, by 5 3.50, 4.85;
    # 14.43, 14.67; from 0.4 to 0.98 by 5 3.45, 4.78; 15.44, 15.44; these 14.67, 15.44.
    guess_escapes: tuple[float, ...] = (0.3, 0.3, 0.4, 0.5, 0.7, 0.85, 0.95)
    guess_trust: float = 5.0
    guess_trials: int = 8  # steps in which a head is called before it is judged; a guess
    guess_rest: int = 64  # maximum steps between two calls of a head that does not pay off; a guess
    # Decay per step of the seconds and tokens from which the time of a token follows; a guess.
    pace_decay: float = 0.9
    guess_rate: float = 0.05  # learning rate of what a head gains, a step; a guess
    guess_timings: int = 15  # calls of a head whose median time is its cost; a guess

    # The pool of earlier answers (pool.py)
    # Tokens in a row that count as a quotation of the prompt. Swept: -0.77% / 0; +0.08% / 0.
    quote: int = 4
    pool_tokens: int = 50_000  # token ids that the pool holds; swept: 0; 0
    tally_scale: int = 1000  # stored tallies are integers in units of 1 / 1000; derived: int32

    # The number of nodes (policy.py)
    repeat_run: int = 4  # tokens in a row that, seen before, end a pause; a guess
    patience: int = 4  # proposals in a row that do not pay before a pause
    first_pause: int = 4  # steps of the first pause; each next one is twice as long
    longest_pause: int = 256  # steps
    # Share of a plain pass that drafting for several sequences takes, below which none pauses.
    # Swept 0, 0.01, 0.02, 0.04 on recordings with measured costs of passes: with 0 a 0.5B model
    # gains up to 3% less, with 0.04 the built-in one loses 1% more on text that copies nothing.
    cheap_drafting: float = 0.01
    min_speedup: float = 1.02  # expected of drafts; less is within the noise of measured costs
    exploration: int = 32  # proposals between two trials of another number of nodes
    plain_trial: int = 200  # steps without drafts after which some are tried whatever they cost
    bins: int = 8  # of node probabilities: above 1/2, above 1/4, …; derived: down to 1/128
    trust_decay: float = 0.99  # of the accepted / expected tallies, a step
    first_drafting_s: float = 2e-4  # maximum seconds for which the first proposal counts
    drafting_rate: float = 0.05  # learning rate of the seconds that a proposal takes; a guess

    # The cost of a pass (costs.py)
    short_context: int = 1024  # tokens; contexts up to this length share a curve, then x 4; a guess
    table_age: int = 16  # steps for which a table of costs is used again; a guess
    slow_passes: int = 3  # slower passes of a size in a row after which its cost rises; a guess
    common_rate: float = 0.1  # share of a surprise that moves all sizes: the machine's speed
    own_rate: float = 0.03  # share that moves the size itself, a step since one of that size
    most_own_rate: float = 0.5  # bound of the share above; a guess


CONFIG = AutoConfig()


@dataclass(frozen=True, slots=True)
class Options(MethodOptions):
    """The options of `auto`.

    Attributes:
        trust: The weight of the fitted escape probabilities, in observations.
        loglinear: Whether the log-linear stage follows the blend.
    """

    trust: float = option(CONFIG.trust, 1.0, 1e6)
    loglinear: bool = True
