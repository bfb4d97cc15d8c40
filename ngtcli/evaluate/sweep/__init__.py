"""The cells of `ngt tune`: a grid of settings, its measurements, and the ranking of them."""
