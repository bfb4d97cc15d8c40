"""The weights of a target model. The libraries that run it are imported here, once, in one go."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


@contextmanager
def _files_of_models_read_once() -> Iterator[None]:
    """Have transformers read the files of its models once while it is imported here.

    It lists what each of 3,000 files defines, and again for `transformers.models`, which takes
    another third of a second. The first list is still in its cache then, under the folder's path.
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


with without_collection():
    import torch  # noqa: F401 - imported here in one go

    with _without_scipy(), _files_of_models_read_once():
        import transformers.modeling_layers
        import transformers.modeling_utils  # noqa: F401 - as above
