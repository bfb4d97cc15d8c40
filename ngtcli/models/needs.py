"""What memory a model needs here, as it is shown. Knows no torch."""

from dataclasses import dataclass

from ngtcli.models.recommended import SizeEstimate
from ngtcli.system.progress import sized


@dataclass(frozen=True, slots=True)
class Need:
    """The memory of a model that is computed in `form`: a dtype, or as "int8 in bfloat16".

    `cache_bytes`: for each token, None where that is not known. `tokens`: the longest context for
    which memory is free, 0 where there is none for the weights; None where it is not known.
    """

    form: str
    weight_bytes: int
    cache_bytes: int | None
    tokens: int | None

    def __str__(self) -> str:
        cache = "unknown" if self.cache_bytes is None else sized(1000 * self.cache_bytes)
        fits = f"; {self.tokens:,} tokens fit" if self.tokens else "; does not fit"
        fits = "" if self.tokens is None else fits
        return f"{self.form}: {sized(self.weight_bytes)}, cache of 1,000 tokens {cache}{fits}"


@dataclass(frozen=True, slots=True)
class UnreachableModel:
    """A model that is not on this machine while Hugging Face cannot be reached.

    Attributes:
        name: Its id.
        problem: Why nothing more is known of it.
        estimate: Its weights by the size in its name, None where the name has none.
        free_bytes: Free memory, None where that is not known.
    """

    name: str
    problem: str
    estimate: SizeEstimate | None
    free_bytes: int | None

    @property
    def facts(self) -> dict[str, list[str]]:
        """All of it in words, by subject."""
        memory = []
        if self.estimate is not None:
            sizes = {"bfloat16": self.estimate.bfloat16_bytes, "int8": self.estimate.int8_bytes}
            for dtype, size in sizes.items():
                line = f"{self.estimate.label} parameters in {dtype}: about {sized(size)}"
                if self.free_bytes is not None:
                    line += ", fits" if size <= self.free_bytes else ", does not fit"
                memory.append(line)
        if self.free_bytes is not None:
            memory.append(f"{sized(self.free_bytes)} are free")
        return {
            "model": [self.problem],
            "download": [f"once online: ngt models pull {self.name}"],
            "memory": memory,
        }


@dataclass(frozen=True, slots=True)
class ModelNeeds:
    """A model by its configuration, whose longest context has `context` tokens, and its needs.

    `download_bytes`: of weights that only the hub has. `free_bytes`: of memory, None where that is
    not known. `quickest`: lines on what is likely to be.
    """

    name: str
    parameters: int
    dtype: str
    context: int
    download_bytes: int
    free_bytes: int | None
    forms: tuple[Need, ...]
    quickest: tuple[str, ...]

    @property
    def facts(self) -> dict[str, list[str]]:
        """All of it as words."""
        scale, unit = (1e9, "billion") if self.parameters >= 1e9 else (1e6, "million")
        about = f"{self.parameters / scale:.1f} {unit} parameters in {self.dtype}"
        free = [] if self.free_bytes is None else [f"{sized(self.free_bytes)} free"]
        pull = f"ngt models pull {self.name} ({sized(self.download_bytes)})"
        return {
            "model": [f"{self.name}: {about}, {self.context:,} tokens"],
            "download": [pull] if self.download_bytes else [],
            "memory": [*free, *map(str, self.forms)],
            "quickest": list(self.quickest),
        }
