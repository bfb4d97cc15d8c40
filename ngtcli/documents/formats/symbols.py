"""Symbol fonts of office files: their private-use characters as the signs that they look like."""

_FIRST, _LAST = "\uf020", "\uf0ff"  # where symbol fonts put their 224 characters
# Adobe's Symbol encoding from 0x20, with gaps as blanks.
_SYMBOL = (
    " !∀#∃%&∋()∗+,−./0123456789:;<=>?≅ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ[∴]⊥_"
    "‾αβχδεφγηιϕκλμνοπθρστυϖωξψζ{|}∼                                 €"
    "ϒ′≤⁄∞ƒ♣♦♥♠↔←↑→↓°±″≥×∝∂•÷≠≡≈…⏐⎯↵ℵℑℜ℘⊗⊕∅∩∪⊃⊇⊄⊂⊆∈∉∠∇®©™∏√⋅¬∧∨⇔⇐⇑⇒⇓"
    "◊〈®©™∑⎛⎜⎝⎡⎢⎣⎧⎨⎩⎪ 〉∫⌠⎮⌡⎞⎟⎠⎤⎥⎦⎫⎬⎭"
)
# The commonest of Wingdings, runs of signs behind the code of the first: bullets, ticks, arrows.
_WINGDINGS = """
    21✏✂✁ 28☎✆✉ 36⌛ 3F✍ 41✌ 45☜☞☝☟ 4A☺ 4C☹ 51✈☼ 54❄ 58✠✡☪☯ 6C● 6E■□ 71❑❒ 74⧫◆❖
    78⌧ 7D❝❞ 80⓪①②③④⑤⑥⑦⑧⑨⑩⓿❶❷❸❹❺❻❼❽❾❿ 9E·• A1○ A7▪◻ AA✦★ D8➢ DF←→↑↓↖↗↙↘ E8➔ EF⇦⇨⇧⇩ FB✗✓☒☑
"""
_FONTS = {
    "symbol": {code: sign for code, sign in enumerate(_SYMBOL, 0x20) if sign > " "},
    "wingdings": {
        code: sign
        for run in _WINGDINGS.split()
        for code, sign in enumerate(run[2:], int(run[:2], 16))
    },
}


def has_symbols(text: str) -> bool:
    """Whether characters of a symbol font stand in `text`."""
    return any(_FIRST <= c <= _LAST for c in text)


def as_signs(text: str, font: str) -> str:
    """`text` in a font of that name, characters of symbol fonts as signs where they are known.

    >>> as_signs("\\uf061 \\uf0ff", "Symbol"), as_signs("\\uf0fc", "Wingdings")
    ('α \\uf0ff', '✓')
    """
    known = {0x20: " ", **_FONTS.get(font.lower(), {})}
    return "".join(known.get(ord(c) - 0xF000, c) if has_symbols(c) else c for c in text)


def unknown_signs(text: str) -> tuple[str, ...]:
    """A warning if characters without a meaning are left in `text`."""
    left = sum("\ue000" <= c <= "\uf8ff" for c in text)
    if not left:
        return ()
    return (f"characters of symbol fonts whose meaning is not known: {left}",)
