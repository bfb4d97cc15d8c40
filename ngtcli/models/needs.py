"""The memory that a model needs, as it is shown to users. Imports no torch."""

from dataclasses import dataclass

from ngtcli.models.recommended import SizeEstimate
from ngtcli.system.progress import sized


@dataclass(frozen=True, slots=True)
class Need:
    """The memory of a model in one number format.

    Attributes:
        form: The format: a dtype, or "int8 in bfloat16".
        weight_bytes: Bytes of the weights.
        cache_bytes: Bytes of the KV cache for each token, as long as the windows of sliding layers
            hold all tokens; None if unknown.
        tokens: The longest context that fits into free memory; 0 if the weights do not fit; None
            if unknown.
    """

    form: str
    weight_bytes: int
    cache_bytes: int | None
    tokens: int | None

    def __str__(self) -> str:
        cache = "unknown" if self.cache_bytes is None else sized(1000 * self.cache_bytes)
        text = f"{self.form}: {sized(self.weight_bytes)}, cache of 1,000 tokens {cache}"
        if self.tokens is None:
            return text
        return f"{text}; {self.tokens:,} tokens fit" if self.tokens else f"{text}; does not fit"


@dataclass(frozen=True, slots=True)
class UnreachableModel:
    """A model that is not on this machine while Hugging Face cannot be reached.

    Attributes:
        name: Its id.
        problem: Why nothing more is known about it.
        estimate: Its weights by the size in its name; None if the name has none.
        free_bytes: Free memory; None if unknown.
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
    """A model and the memory that it needs, by its configuration.

    Attributes:
        name: Its name.
        parameters: Number of its parameters.
        dtype: The checkpoint's dtype.
        context: Its longest context in tokens.
        download_bytes: Bytes of weights that have to be downloaded.
        free_bytes: Free memory; None if unknown.
        forms: Its needs in each number format.
        quickest: Lines on the format that is likely to be the fastest.
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
        """All of it in words, by subject."""
        if self.parameters >= 1e9:
            parameters = f"{self.parameters / 1e9:.1f} billion"
        else:
            parameters = f"{self.parameters / 1e6:.1f} million"
        about = f"{parameters} parameters in {self.dtype}"
        free = [] if self.free_bytes is None else [f"{sized(self.free_bytes)} free"]
        pull = f"ngt models pull {self.name} ({sized(self.download_bytes)})"
        return {
            "model": [f"{self.name}: {about}, {self.context:,} tokens"],
            "download": [pull] if self.download_bytes else [],
            "memory": [*free, *map(str, self.forms)],
            "quickest": list(self.quickest),
        }
