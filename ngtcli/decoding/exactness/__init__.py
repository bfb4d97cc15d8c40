"""Exact decoding: the tokens of plain decoding in any dtype, whatever is drafted.

In half precision the logits of a token depend on the forward pass that computes them: on its number
of rows, on the capacity of the cache that it attends to, and on the row's place in both. So exact
forward passes attend to the capacity that the first row's position asks for, and a row counts only
if it stands where plain decoding would have it. Their number of rows follows one of two policies:
any number, where trials show that a row's bits do not depend on it (it costs nothing, and holds on
many CPUs), or else one number for all forward passes, plain decoding's included.

`choice.py` decides for each answer, by the trials of `trials.py` and `layers.py`; what it decides
is a `Numerics` (numerics.py), which the layout of forward passes asks. `kernels.py` and
`whole_vectors.py` prepare a model when it is loaded; `half_precision.py` says whether half
precision that a rule chose may stay.
"""
