"""The weights of a target model. The libraries that run it are imported here, once, in one go."""

from collections.abc import Iterator
from contextlib import contextmanager

from ngtcli.system.process import without_collection


@contextmanager
def _without_scipy() -> Iterator[None]:
    """Have transformers take scipy for missing while it is imported here.

    It would load a part of scipy, which takes a third of a second, for losses of models that detect
    objects in pictures. What is imported later finds scipy.
    """
    import transformers.utils

    available = transformers.utils.is_scipy_available
    transformers.utils.is_scipy_available = lambda: False
    try:
        yield
    finally:
        transformers.utils.is_scipy_available = available


with without_collection():
    import torch  # noqa: F401

    with _without_scipy():
        import transformers.modeling_layers
        import transformers.modeling_utils  # noqa: F401
