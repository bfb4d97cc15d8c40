"""Weights of a target model: reading, converting and packing them.

Importing this package imports torch and transformers, in one go and without garbage collection.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ngtcli.system.process import without_garbage_collection


@contextmanager
def _without_scipy() -> Iterator[None]:
    """Hide scipy from transformers while it is imported.

    transformers would import a part of scipy for the losses of object detection models, which takes
    a third of a second. Later imports see scipy again.
    """
    import transformers.utils

    available = transformers.utils.is_scipy_available
    transformers.utils.is_scipy_available = lambda: False
    try:
        yield
    finally:
        transformers.utils.is_scipy_available = available


@contextmanager
def _model_files_listed_once() -> Iterator[None]:
    """Have transformers list the contents of its model files once while it is imported.

    It lists what each of 3,000 files defines, and lists it again for `transformers.models`, which
    takes another third of a second. The first list is still in its cache, under the folder's path.
    """
    import transformers
    from transformers.utils import import_utils

    module: Any = import_utils
    list_files = module.create_import_structure_from_path
    folder = Path(transformers.__file__).parent / "models"

    def list_once(path: str | Path) -> Any:
        return list_files(folder if Path(path) == folder / "__init__.py" else path)

    module.create_import_structure_from_path = list_once
    try:
        yield
    finally:
        module.create_import_structure_from_path = list_files


with without_garbage_collection():
    import torch  # noqa: F401 - imported for its side effect: later imports take no time

    with _without_scipy(), _model_files_listed_once():
        import transformers.modeling_layers
        import transformers.modeling_utils  # noqa: F401 - for the same reason
