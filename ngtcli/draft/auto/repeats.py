"""Whether a growing text has begun to repeat itself or its prompt, cheaply enough for any step."""

from collections.abc import Sequence

from ngtcli.draft.auto.config import CONFIG

RUN = CONFIG.repeat_run


class Repeats:
    """Remembers every run of RUN tokens of a prompt and of the output that follows it.

    >>> repeats = Repeats([1, 2, 3, 4, 5])
    >>> repeats.at_end([2, 3, 4]), repeats.at_end([2, 3, 4, 5])
    (False, True)
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self._prompt = prompt
        self._runs: set[int] | None = None  # hashes; made at the first call of `at_end`
        self._tail = tuple(prompt[1 - RUN :])
        self._done = 0

    def at_end(self, output: Sequence[int]) -> bool:
        """Whether the last RUN tokens stood there before; `output` is that of the last call, grown.

        A hash stands for a run: two runs with the same one are taken for a repetition.
        """
        if self._runs is None:
            runs = zip(*(self._prompt[i:] for i in range(RUN)), strict=False)
            self._runs = set(map(hash, runs))
        known = False
        for token in output[self._done :]:
            run = (*self._tail, token)
            mark = hash(run)
            known = mark in self._runs
            self._runs.add(mark)
            self._tail = run[1 - RUN :]
        self._done = len(output)
        return known
