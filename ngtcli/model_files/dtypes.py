"""The dtype that a trial has chosen for a checkpoint in half precision. Knows no torch."""

from dataclasses import dataclass

from ngtcli.system.trials import here, results

KIND = "dtypes"  # of trial
ROWS = 1, 8, 32  # timed: plain decoding, a short draft, a long one or a prompt
Times = tuple[float, float, float]
LEAST_GAIN = 1.1  # float32's seconds over the dtype's own; guess, as for packing


def name_of(dtype: object) -> str:
    """A torch.dtype as settings name it."""
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class DtypeTrial:
    """What was found of `dtype`, a half precision, for `model` on this machine.

    It holds for so many `threads`, and `where` the versions, CPU and switches are the same.
    `seconds` are those of its layers over ROWS, `single` of float32's, in the better way at each;
    () where no layer could be timed.
    `alike`: a row's bits do not depend on the rows beside it, in layers first, then in the model.
    """

    model: str
    dtype: str
    seconds: tuple[float, ...]
    single: tuple[float, ...]
    alike: bool
    threads: int = 1
    where: str = ""

    def __post_init__(self) -> None:
        if self.dtype not in ("bfloat16", "float16"):
            raise ValueError("another dtype")
        if not len(self.seconds) == len(self.single) in (0, len(ROWS)):
            raise ValueError("seconds of other rows")
        if not all(0 < seconds < 1e9 for seconds in self.seconds + self.single):
            raise ValueError("seconds that are not above zero")

    @property
    def _times(self) -> list[float]:
        """How many times as quick as float32 the dtype is over ROWS."""
        pairs = zip(self.seconds, self.single, strict=True)
        return [other / own for own, other in pairs]

    @property
    def is_quicker(self) -> bool:
        """Whether the dtype is quicker at each number of rows, by more than two timings differ."""
        return bool(self._times) and all(times >= LEAST_GAIN for times in self._times)

    @property
    def chosen(self) -> str:
        """The dtype to compute in."""
        return self.dtype if self.is_quicker and self.alike else "float32"

    @property
    def reason(self) -> str:
        """Why, in a few words.

        >>> DtypeTrial("m", "bfloat16", (1.0, 1.0, 2.0), (2.0, 3.0, 8.0), True).reason
        'bfloat16 is 2.0, 3.0 and 4.0 times as quick as float32 over 1, 8 and 32 rows'
        """
        if not self._times:
            return f"no layer could be timed in {self.dtype}: all are small, or of other kinds"
        *first, last = (f"{times:.1f}" for times in self._times)
        *rows, most = map(str, ROWS)
        found = (
            f"{self.dtype} is {', '.join(first)} and {last} times as quick as float32 over"
            f" {', '.join(rows)} and {most} rows"
        )
        if not self.is_quicker or self.alike:
            return found
        return f"{found}, but a row's bits depend on the rows beside it"


def known() -> list[DtypeTrial]:
    """What the cache holds of this machine as it is, by model and number of threads."""
    found = [trial for trial in results(KIND, DtypeTrial) if trial.where == here()]
    return sorted(found, key=lambda trial: (trial.model, trial.threads))
