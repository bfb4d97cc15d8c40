"""Values that a text states, found by rules: numbers, dates, choices, names; and where they stand.

Offsets count characters of the text. Which of several values is meant a model decides.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import Any

from ngtcli.documents.quotes.numbers import numbers
from ngtcli.documents.text import UNSPACED

_MONTHS = (
    "january february march april may june july august september october november december".split()
)
_MONTH = rf"(?P<name>{'|'.join(_MONTHS)}|(?:{'|'.join(m[:3] for m in _MONTHS)}|sept)\b\.?)"
_MONTH_NUMBER = {name[:3]: number for number, name in enumerate(_MONTHS, 1)}
_DATES = [
    re.compile(rf"(?<![\w-]){form}(?![\w-])", re.IGNORECASE | re.ASCII)
    for form in (
        r"(?P<y>\d{4})[-/.](?P<m>\d{1,2})[-/.](?P<d>\d{1,2})",
        r"(?P<d>\d{1,2})\. ?(?P<m>\d{1,2})\. ?(?P<y>\d{4})",
        rf"(?P<d>\d{{1,2}})(?:st|nd|rd|th)?[ -]+(?:of +)?{_MONTH},?[ -]+(?P<y>\d{{4}})",
        rf"{_MONTH} +(?P<d>\d{{1,2}})(?:st|nd|rd|th)?,? +(?P<y>\d{{4}})",
    )
]
_CAPITAL = r"(?=[^\W\d_])(?![a-zß-öø-ÿ])[\w.'’-]*\w"
_NAME = re.compile(
    rf"(?<!\w){_CAPITAL}(?:[ \t]+(?:(?:de|van|von|der|of|the|for|and|&)[ \t]+)*{_CAPITAL})*"
)
_SMALL = frozenset(  # words of English with which sentences begin; none begins a name here
    "a after all also although an and any are as at be because been before but by can do does each"
    " every for from had has have he her here his how i if in into is it its may most my no not of"
    " on one or our since she should so some such than that the their then there these they this"
    " those though to under until was we were what when where which while who why will with yes you"
    " your".split()
)
# Words with which letters begin, and never a name.
_GREETINGS = frozenset(
    "thank thanks please dear hello hi regards sincerely yours kind best warm enclosed attached"
    " regarding unfortunately however following further see note re subject".split()
)
_NEAR = 60  # characters before a value in which its clause begins; guess
_STEM = 5  # letters that words of one stem share; guess
# A sentence, or a line behind which one with a label or an empty one follows.
_PIECE = re.compile(
    r"\S(?:.(?!(?<=[.!?])\s+[^\W\da-z])(?!\n\s*\n)(?!\n[^\n:]{1,40}:))*.?", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Found:
    """`text[start:end]` states `value`; of a date that is YYYY-MM-DD."""

    start: int
    end: int
    value: Any


def stated(kind: str, choices: Sequence[Any], text: str) -> list[Found]:
    """The values of a field's type that a text states, in its order; of a string these are names.

    What is part of a date is neither number nor name.

    >>> text = "It was built by Guido van Rossum. The 61,000 tons were paid on March 3rd, 2020."
    >>> [[one.value for one in stated(kind, (), text)] for kind in ("str", "date", "int")]
    [['Guido van Rossum'], ['2020-03-03'], [61000]]
    """
    dates = sorted(_dates(text), key=lambda one: one.start)
    match kind:
        case "int" | "float":
            every = [
                Found(one.start, one.end, one.value)
                for one in numbers(text)
                if kind == "float" or isinstance(one.value, int)
            ]
        case "date":
            return [one for one in dates if one.value]
        case "choice":
            every = [one for choice in choices for one in _choices(choice, text)]
            return sorted(every, key=lambda one: (one.start, -one.end))
        case _:
            every = [*_names(text)] if kind == "str" else []
    within = {at for one in dates for at in range(one.start, one.end)}
    return [one for one in every if one.start not in within]


def _dates(text: str) -> Iterator[Found]:
    """Dates; of days that no calendar has the value is ""."""
    for m in (m for form in _DATES for m in form.finditer(text)):
        name, month = m.groupdict().get("name"), m.groupdict().get("m")
        number = _MONTH_NUMBER[name.lower()[:3]] if name else int(month or 0)
        value = ""
        with suppress(ValueError):  # no day of the calendar
            value = date(int(m["y"]), number, int(m["d"])).isoformat()
        yield Found(*m.span(), value)


# Within a clause, words before a value that turn it round, or with which it is not so yet.
_NOBODY = r"nobody|no[- ]one|none|neither|never|not"
_NOT = re.compile(
    rf"\b(?:{_NOBODY}|nothing|nowhere|no(?! doubt\b)|nor|without|cannot|hardly|barely)\b|n[’'ʼ]t\b",
    re.IGNORECASE,
)
_NOT_YET = re.compile(
    r"\b(?:to be|yet to|will|would|shall|should|must|may|might|can|could|if|unless|until|till|when"
    r"|once|whether|before|after|as soon as|please)\b",
    re.IGNORECASE,
)
# Words with which it is unsure what is so: they refused what was agreed, they deny that it is.
_UNSURE = re.compile(
    r"\b(?:refus|declin|reject|fail)\w*|\bden(?:y|ies|ied|ying|ial)\b", re.IGNORECASE
)
# Behind a value there are fewer: paid by nobody, but also paid without delay.
_NOT_BEHIND = re.compile(rf"\b(?:{_NOBODY}|if|unless)\b|n[’'ʼ]t\b", re.IGNORECASE)
_CLAUSE = re.compile(r"[.;:!?,\n()]|\b(?:and|but)\b")
_DENIED = re.compile(r"\s*[:?]\s*(?:no|false|not)\b", re.IGNORECASE)
_TRUTHS = {"yes": True, "true": True, "no": False, "false": False}
# "No." before a number, "no one" and "no doubt" answer nothing.
_TRUTH = re.compile(
    r"\W*(?:(yes|true)\b|(no|false)\b(?=\s*$|\s+longer\b|\s*[^\w\s](?!\s*\d)))", re.IGNORECASE
)
_OF_LABEL = re.compile(r"\w*[*_ \t]*[:=|][*_ \t|]*(?=[^\s|])")


def _is_affirmed(text: str, start: int, end: int) -> bool:
    """Whether the clause around a stretch, and an answer behind it, leave it as it says."""
    before, behind = _clause(text, start), _clause_behind(text, end)
    is_turned = _NOT.search(before) or _NOT_BEHIND.search(behind) or _DENIED.match(text, end)
    return not (is_turned or _UNSURE.search(before) or _NOT_YET.search(before))


def _clause(text: str, end: int) -> str:
    before = text[max(0, end - _NEAR) : end]
    return before[max((m.end() for m in _CLAUSE.finditer(before)), default=0) :]


def _clause_behind(text: str, start: int) -> str:
    behind = text[start : start + _NEAR]
    m = _CLAUSE.search(behind)
    return behind[: m.start()] if m else behind


def truths(name: str, text: str) -> list[Found]:
    """Whether a text says that what has this name is so: by yes or no, or by all its words.

    Nothing is found where it is unsure: what is not so yet, a label with another value than yes or
    no, a negation in another clause before it.

    >>> [one.value for one in truths("agreed", "They have not agreed.")]
    [False]
    >>> truths("agreed", "They will have agreed by May."), truths("agreed", "It rains.")
    ([], [])
    """
    if m := _TRUTH.match(text):
        at = m.span(m.lastindex or 0)
        return [Found(*at, _TRUTHS[text[slice(*at)].lower()])]
    words = [word[:_STEM] for word in re.findall(r"[^\W_]+", name.lower()) if word not in _SMALL]
    found = [re.search(rf"\b{re.escape(word)}", text, re.IGNORECASE) for word in words]
    places = [m for m in found if m]
    if not places or len(places) < len(words):
        return []
    start, end = max(m.start() for m in places), max(m.end() for m in places)
    end = _word_end(text, end)
    if _DENIED.match(text, end):
        return [Found(0, len(text), False)]
    if m := _OF_LABEL.match(text, end):
        answer = _TRUTH.match(text, m.end())
        return [Found(0, len(text), bool(answer[1]))] if answer else []
    clause = _clause(text, start)
    is_unsure = _UNSURE.search(text[:start]) or _UNSURE.search(text, end)
    if is_unsure or _NOT_YET.search(clause) or _NOT_BEHIND.search(_clause_behind(text, end)):
        return []
    is_denied = bool(_NOT.search(clause))
    if not is_denied and _NOT.search(text[:start]):  # Nobody, we are told, has paid.
        return []
    return [Found(0, len(text), not is_denied)]


def _word_end(text: str, at: int) -> int:
    """The end of the word that a place is in."""
    while at < len(text) and text[at].isalnum():
        at += 1
    return at


def _choices(choice: Any, text: str) -> Iterator[Found]:
    """Where a text says one of the choices, unless it denies it, or that it is so yet."""
    for m in re.finditer(rf"(?<!\w)(?<!\w-){_words(str(choice))}(?!\w)", text, re.IGNORECASE):
        if _is_affirmed(text, *m.span()):
            yield Found(*m.span(), choice)


def _names(text: str) -> Iterator[Found]:
    """Runs of capitalized words, without small ones that begin a sentence; no labels."""
    for m in _NAME.finditer(text):
        before = text[max(0, m.start() - 9) : m.start()].rstrip(" \t")
        begins = not before or before[-1] in ".!?\n"
        # In a sentence May and Will are names.
        small = _SMALL if begins else _SMALL - {"may", "will"}
        large = (
            one for one in re.finditer(r"\S+", m[0]) if one[0].lower() not in small | _GREETINGS
        )
        if (first := next(large, None)) and not text.startswith(":", m.end()):
            start, end = m.start() + first.start(), m.end()
            end += bool(_SHORT.search(text[start : end + 1]))  # Reed Ltd.
            yield Found(start, end, text[start:end])


_NUMBER_WORDS = frozenset("no nr num number id code ref reference".split())
_CODE = re.compile(r"(?:no|nr|num|number|id|code|ref|reference)?[ \t.:#]*", re.IGNORECASE)


def named(name: str, text: str) -> list[Found]:
    """The names that a text states for a field, without words that only name the field.

    Those of a field that is a number have digits, which may stand behind such a word alone.

    >>> [one.value for one in named("invoice number", "Invoice KB-2201")]
    ['KB-2201']
    >>> [one.value for one in named("invoice number", "Invoice date: 4 March 2025")]
    []
    >>> [one.value for one in named("invoice number", "Invoice no. 2201 of 4 March 2025")]
    ['2201']
    """
    words = re.findall(r"[^\W_]+", name.lower())
    is_number = not _NUMBER_WORDS.isdisjoint(words)
    every = []
    for one in stated("str", (), text):
        own = [word for word in re.finditer(r"\S+", one.value) if not _names_field(word[0], words)]
        if not own:
            continue
        if is_number and not re.search(r"\d", one.value):
            continue
        start = own[0].start()
        if start and not re.search(r"\d", own[0][0]):
            start = 0  # City of London, Bank Austria
        every.append(Found(one.start + start, one.end, one.value[start:]))
    if is_number and not every:
        dates = [(one.start, one.end) for one in _dates(text)]
        for word in re.finditer(r"[^\W\d_]+", text):
            if not _names_field(word[0], words):
                continue
            behind = _CODE.match(text, word.end())
            code = re.compile(r"[\w/-]*\d[\w/-]*").match(text, behind.end() if behind else 0)
            if code and not any(start <= code.start() < end for start, end in dates):
                every.append(Found(code.start(), code.end(), code[0]))
                break
    return every


def _names_field(word: str, words: Sequence[str]) -> bool:
    """Whether a word of a text is one of those of a field's name, or stands for "number"."""
    plain = word.strip(".,:#").lower()
    if plain in _NUMBER_WORDS:
        return not _NUMBER_WORDS.isdisjoint(words)
    return any(plain[:_STEM] == own[:_STEM] for own in words)


def _words(text: str) -> str:
    """A pattern of a text's words, whatever stands between them."""
    return r"[\s_-]+".join(map(re.escape, re.split(r"[\s_-]+", text.strip("_- "))))


# Words of which labels are made, so that the name before one is no part of it.
_LABEL_WORDS = frozenset(
    "account address amount amounts attn author balance bank billing client company contact"
    " contract cost currency customer date day delivery department due email e-mail fax from"
    " gross invoice issue issued item mail mobile name net number no order page paid payment"
    " phone po postal price project quantity reference ref sender ship shipping state status"
    " subject subtotal sum tax tel telephone terms title to total type unit vat vendor".split()
)
_SMALL_TAIL = r"(?:[ ](?:[a-zß-öø-ÿ]{1,12}\.?|[IVX]+)){0,2}"  # "Invoice no.", "Date of birth"
_NEXT_LABEL = re.compile(rf"(?<=\s){_CAPITAL}\.?{_SMALL_TAIL}[ ]?:(?=\s|$)")
_GAP = re.compile(r"[ ]{2,}|\t")
_CELL_END = re.compile(r"[ ]{2,}|\t|\|")
_SHORT = re.compile(r"\b(?:Ltd|Inc|Co|Corp|Bros|Jr|Sr)\.\Z")


def labelled(name: str, text: str) -> list[tuple[int, int]]:
    """Where a text stands behind a label of this name, or of more words that end in it, or "is".

    It ends before the next label, and before two spaces; it is empty where a label has nothing.

    >>> text = "Due date: 5 May\\nSender:  A. Reed\\nThe sum of it is 5 pounds. Goodbye."
    >>> [text[slice(*labelled(name, text)[0])] for name in ("sender", "date", "sum")]
    ['A. Reed', '5 May', '5 pounds']
    >>> text = "Customer: Jonas Reyes Invoice no.: 1005"
    >>> text[slice(*labelled("customer", text)[0])]
    'Jonas Reyes'
    """
    text = _with_plain_lines(text)
    label = rf"{_words(name)}[*_]*[ \t]*([:=|])[*_ \t|]*([^\n]*)"
    said = rf"\b{_words(name)}\b[^.:\n]{{0,60}}?\b(?:is|are|was|were)\s+"
    ends = r"(\S.*?)(?=[.;]?\s*\Z|[.;]\s)"
    for form in (
        rf"^[^\w\n]*{label}",
        rf"^[^\w\n]*(?:\w+[ \t]+){{1,3}}{label}",
        rf"(?<![\w-]){label}",
    ):
        found = re.finditer(form, text, re.IGNORECASE | re.MULTILINE)
        places = [(m.start(2), m.start(2) + _length(m[2], m[1] == "|")) for m in found]
        if places:
            return places
    found = re.finditer(f"(?s:{said}{ends})", text, re.IGNORECASE | re.MULTILINE)
    return [(m.start(1), m.start(1) + len(m[1].rstrip())) for m in found]


def _length(line: str, is_cell: bool) -> int:
    """The length of a label's value in what stands behind the label, which may be a cell."""
    is_cell |= line.rstrip().endswith("|")
    gap = (_CELL_END if is_cell else _GAP).search(line)
    ends = [gap.start()] if gap else []
    label = _next_label(line)
    if label is not None:
        ends.append(label)
    if not ends:
        return len(line.rstrip())
    value = line[: min(ends)].rstrip(",;|·- \t")
    return len(value if _SHORT.search(value) else value.rstrip(". "))


def _next_label(line: str) -> int | None:
    """Where the next label of a line begins, with the words of labels before its last one.

    A word with a colon may be of a title: it is a label behind a sign, or as a word of labels.
    """
    for m in _NEXT_LABEL.finditer(line):
        begin = m.start()
        while before := re.search(r"(\S+)[ ]\Z", line[max(0, begin - 30) : begin]):
            if before[1].lower().rstrip(".") not in _LABEL_WORDS:
                break
            begin -= len(before[0])
        words = m[0].rstrip(": ").lower().replace(".", "").split()
        is_behind_sign = line[max(0, begin - 3) : begin].rstrip().endswith((",", ";", ".", "|"))
        if begin > 0 and (is_behind_sign or words[0] in _LABEL_WORDS):
            return begin
    return None


def is_label(piece: str) -> bool:
    """Whether a stretch of text is labels alone, without a value."""
    return bool(re.fullmatch(r"(?:\s*[^\W\d_][^\n:]{0,39}:\s*)+", piece))


def _with_plain_lines(text: str) -> str:
    """The text, as long as before, with \\n for every sign that ends a line."""
    return text.translate(_LINE_ENDS)


_LINE_ENDS = dict.fromkeys(map(ord, "\u2028\u2029\x85\f\v"), "\n")


def pieces(text: str, words: str = "") -> list[tuple[int, int]]:
    """Sentences, and lines with a label: those with one of `words`, by its beginning, or all."""
    text = _with_plain_lines(text)
    own = {word[:_STEM] for word in re.findall(r"[^\W_]+", words.lower()) if word not in _SMALL}
    return [
        (m.start(), m.start() + len(m[0].rstrip()))
        for m in _PIECE.finditer(text)
        if not words or any(w[:_STEM] in own for w in re.findall(r"[^\W_]+", m[0].lower()))
    ]


def place_of(value: str, text: str, start: int, end: int) -> tuple[int, int] | None:
    """Where a value stands first, word for word: white space may differ, and words are whole.

    >>> place_of("the tide", "At the\\ntide of the tides", 0, 25), place_of("ide", "tide", 0, 4)
    ((3, 11), None)
    """
    if not (words := value.split()):
        return None
    letter = rf"(?![{UNSPACED}])\w"
    before = r"(?<!\w)" if re.match(letter, words[0]) else ""
    after = r"(?!\w)" if re.match(letter, words[-1][-1]) else ""
    form = re.compile(before + r"\s+".join(map(re.escape, words)) + after)
    m = form.search(text, start, end)
    return m.span() if m else None
