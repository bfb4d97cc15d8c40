"""The constants of `auto`, each with its meaning, its unit, and the source of its value.

"Swept: a / b; c / d" are changes of the mean acceptance length on the 240 document questions of the
Spec-Bench recording at 32 nodes: a and b if the constant is halved, c and d if it is doubled; a and
c with the pool, b and d without it. A "derived" value follows from something else. A value without
a mark, or marked "(guess)", has no recorded measurement: constants of the policy, of costs and of
scores cannot be swept on a recording, which has neither costs nor scores.
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
    # The same for the background, the most frequent first. Mean acceptance length with the shipped
    # background, measured as for `background_seen`: 2.653; with 24 2.655, with 8 2.651.
    scanned_background: int = 12
    # Matches in the background are divided into buckets by how often they were seen and by the
    # share of the most frequent continuation: these are the bounds of both. Mean acceptance length
    # with 0.94 million tokens of English, on odd ids at 32 nodes, with the pool: 2.660. With the
    # buckets of the other sources it is 2.653, with bounds of 2.5, 12.5, 100.5 for how often 2.655,
    # with shares of 0.9, 0.5 2.661, with shares of 0.6, 0.2 2.661.
    background_seen: tuple[float, ...] = (1.5, 4.5, 24.5)
    background_agrees: tuple[float, ...] = (0.75, 0.3)
    # The least distance of an escape probability from 0 and from 1, so that no product becomes 0.
    # Swept: no change.
    min_escape: float = 0.001

    # Escape tallies (escapes.py)
    # The weight of the fitted escape probabilities, in observations. Swept: -0.17% / +0.15%;
    # +0.10% / -0.04%.
    trust: float = 100.0
    # The maximum weight, in observations, of earlier answers of a process (guess: 240 answers
    # make fewer).
    most_observed: float = 20_000.0
    # The escape probability of scores before any was observed: no recording has scores to fit it.
    scores_escape: float = 0.7
    # That of background and scores at order 0, where they are never queried (derived).
    unused_escape: float = 0.999

    # Tree growth (growth.py)
    # The maximum number of a node's children that are considered, likeliest first. Swept with a
    # background: -0.05% / -0.18%; -0.01% / -0.10%; at 64 nodes -0.74% / -0.73%; +0.37% / +0.08%.
    children: int = 24
    min_path_probability: float = 1e-200  # below it a path counts as impossible; derived: float64

    # The place that is copied (copies.py)
    copy_key: int = 4  # equal tokens in a row by which a place is found (guess)
    # How many tokens of two matches are compared, to take the longer match (guess).
    copy_compared: int = 64
    # How many tokens after a departure are searched for the place to continue. Swept on code edits
    # and news at 32 nodes: half as many and three times as many change the mean acceptance length
    # by 0.3% at most, with and without the pool.
    copy_window: int = 16
    copy_firm: int = 3  # tokens in a row that make a place the new one after a departure (guess)
    copy_edit: int = 24  # tokens of a departure after which the place is given up (guess)

    # The log-linear stage (loglinear.py). "Tried": change of the mean acceptance length on the 240
    # document questions at 32 nodes, with the pool, of the same stage written in C++.
    stage_rate: float = 0.2  # of Adagrad's steps. Tried: 0.1 loses 0.1%; 0.3 changes nothing.
    # The maximum of e to the power of a weight; the minimum is 1 / 1000 (guess).
    stage_max_factor: float = 1e3
    # The maximum that Adagrad's sums have at the start of a later answer (guess).
    stage_most_squares: float = 400.0
    # A candidate keeps the probability that the blend gives it if that is below this share of the
    # probability that a node needs to enter the tree. Tried: 0 and 0.3 change nothing, and score 3
    # times as many candidates.
    stage_share: float = 0.6
    # In a chain it also does if that is below this share of the likeliest candidate's (guess).
    stage_chain_share: float = 1 / 64
    # Learning ignores smaller contributions to a candidate. Tried: 1e-5 loses 0.3%, 6e-3 0.1%.
    stage_least: float = 3e-3
    stage_before: int = 16  # tokens before the place last copied that count as near (guess)
    stage_behind: int = 64  # tokens after that place that count as near (guess)
    stage_tried: int = 64  # places of a pair of tokens that are compared, the last first (guess)
    stage_compared: int = 8  # tokens of two matches that are compared (guess)
    # How many tokens on a single equal token may move the place last copied (guess).
    stage_step: int = 12
    stage_slots: int = 1 << 14  # slots of the table of tokens in the answer (guess)

    # Search limits (drafter.py)
    # Nodes are skipped whose probability is below this share of the running mean of the last
    # node's. Swept: +0.05% / -0.03%; -0.33% / -0.34%.
    floor_share: float = 0.15
    # The learning rate of that mean per step. Swept: -0.01% / +0.04%; -0.08% / -0.14%.
    floor_rate: float = 0.2
    min_search: int = 8  # nodes that are always searched, however few paid last
    search_growth: int = 2  # how many times the last draft's nodes are searched (guess)

    # The model's own runners-up as a source (sources/scores.py). Measured with the built-in model
    # on its questions: mean acceptance length 8.69, without them 8.37.
    ranks_read: int = 3  # how many of the model's best tokens after a token are learned
    ranks_kept: int = 8  # how many successors are kept for each token
    rank_decay: float = 0.5  # factor of a successor's weight each time its token is scored (guess)
    min_rank_weight: float = 1e-3  # a successor with a smaller weight is dropped (guess)

    # Learned heads as sources (sources/heads.py)
    heads: int = 4  # maximum number of learned heads at once (guess)
    guess_states: int = 512  # nodes after which heads guess in a step, all heads together (guess)
    # Lower bounds of the probability of a head's likeliest token, which divide its proposals into
    # buckets (guess). A table of escapes has two times as many buckets plus two.
    guess_sure: tuple[float, ...] = (0.95, 0.8, 0.6, 0.4, 0.2)
    # The initial escape probability of a head's proposal beside a match of 0, 1, … tokens, and its
    # weight in observations. Swept, mean tokens per step: a and b with EAGLE-3's recorded success
    # on CNN/DM and on code edits; c and d with heads of the built-in model that know little, Medusa
    # and EAGLE-3 (without a head: 15.71).
    #   from 0.2 to 0.8, weight 100: a 3.54, b 4.87, c 13.33, d 14.19
    #   from 0.2 to 0.8, weight 5: a 3.50, b 4.85, c 14.43, d 14.67
    #   from 0.4 to 0.98, weight 5: a 3.45, b 4.78, c 15.44, d 15.44
    #   these: c 14.67, d 15.44
    guess_escapes: tuple[float, ...] = (0.3, 0.3, 0.4, 0.5, 0.7, 0.85, 0.95)
    guess_trust: float = 5.0
    guess_trials: int = 8  # steps in which a head is called before it is judged (guess)
    guess_rest: int = 64  # maximum steps between two calls of a head that does not pay off (guess)
    # The time of a token is the ratio of two sums, of seconds and of tokens. This is the factor by
    # which both decay at each step (guess).
    pace_decay: float = 0.9
    guess_rate: float = 0.05  # learning rate per step of the tokens that a head gains (guess)
    guess_timings: int = 15  # the cost of a head is the median time of so many calls (guess)

    # The pool of earlier answers (pool.py)
    # Tokens in a row that count as a quotation of the prompt. Swept: -0.77% / 0; +0.08% / 0.
    quote: int = 4
    pool_tokens: int = 50_000  # token ids that the pool holds; swept: 0; 0
    tally_scale: int = 1000  # stored tallies are integers in units of 1 / 1000; derived: int32

    # The number of nodes (policy.py)
    repeat_run: int = 4  # tokens in a row that, seen before, end a pause (guess)
    patience: int = 4  # proposals in a row that do not pay before a pause
    first_pause: int = 4  # steps of the first pause; each next one is twice as long
    longest_pause: int = 256  # steps
    # If drafting for several sequences takes less than this share of a plain pass, none pauses.
    # Of 0, 0.01, 0.02 and 0.04, on recordings with measured costs of passes: with 0 a 0.5B model
    # gains up to 3% less than with 0.01, and with 0.04 the built-in model loses 1% more on text
    # that copies nothing.
    cheap_drafting: float = 0.01
    # The speed-up that drafts must promise; less is within the noise of measured costs.
    min_speedup: float = 1.02
    exploration: int = 32  # proposals between two trials of another number of nodes
    plain_trial: int = 200  # steps without drafts after which some are tried whatever they cost
    bins: int = 8  # of node probabilities: above 1/2, above 1/4, …; derived: down to 1/128
    trust_decay: float = 0.99  # factor per step of the tallies of accepted and expected nodes
    first_drafting_s: float = 2e-4  # maximum seconds for which the first proposal counts
    drafting_rate: float = 0.05  # learning rate of the seconds that a proposal takes (guess)

    # The cost of a pass (costs.py)
    # Contexts of up to so many tokens share a curve, as do those up to 4 times as many, … (guess).
    short_context: int = 1024
    table_age: int = 16  # steps for which a table of costs is used again (guess)
    slow_passes: int = 3  # the cost of a size rises after so many slower passes in a row (guess)
    # The share of a pass's unexpected seconds that moves the costs of all sizes, since the speed of
    # the machine may have changed.
    common_rate: float = 0.1
    # The share that moves the cost of the pass's own size, for each step since the last such pass.
    own_rate: float = 0.03
    most_own_rate: float = 0.5  # the maximum of that share (guess)


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
