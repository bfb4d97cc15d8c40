"""Decoding with the target model."""

import ngtcli.weights  # noqa: F401  its libraries, in one go
