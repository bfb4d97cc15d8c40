"""Scripts that put no spaces between words."""

# Thai and Lao, Burmese, Khmer, kana, and Chinese characters, for a regular expression's class.
UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
)
