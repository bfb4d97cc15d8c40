"""Whether the extra for dense retrieval is installed."""

from importlib.util import find_spec

from ngtcli.errors import ModelError

EXTRA = "ngtcli[dense]"


def check_installed() -> None:
    """Raise ModelError without FAISS."""
    if find_spec("faiss") is None:
        raise ModelError(
            "--embedder needs faiss-cpu, which is not installed",
            f"Install it: pip install '{EXTRA}'",
        )
