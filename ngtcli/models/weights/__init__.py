"""The weights of a target model. The libraries that run it are imported here, once, in one go."""

from ngtcli.system.process import without_collection

with without_collection():
    import torch  # noqa: F401
    import transformers.modeling_layers
    import transformers.modeling_utils  # noqa: F401
