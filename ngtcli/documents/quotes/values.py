"""Find the values that a text states, by rules: numbers, dates, choices, truths and names.

Offsets count characters of the text. If a text states several values, a model chooses among them,
which is not done here.
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
# English words that begin sentences. A name does not begin with one of them.
_SENTENCE_STARTERS = frozenset(
    "a after all also although an and any are as at be because been before but by can do does each"
    " every for from had has have he her here his how i if in into is it its may most my no not of"
    " on one or our since she should so some such than that the their then there these they this"
    " those though to under until was we were what when where which while who why will with yes you"
    " your".split()
)
# Words that begin letters. No name begins with one of them either.
_LETTER_STARTERS = frozenset(
    "thank thanks please dear hello hi regards sincerely yours kind best warm enclosed attached"
    " regarding unfortunately however following further see note re subject".split()
)
_CLAUSE_LENGTH = 60  # characters around a value that may belong to its clause (guess)
_STEM_LENGTH = 5  # letters that words of one stem share (guess)
# A sentence, or a line before an empty line or a line with a label.
_SENTENCE = re.compile(
    r"\S(?:.(?!(?<=[.!?])\s+[^\W\da-z])(?!\n\s*\n)(?!\n[^\n:]{1,40}:))*.?", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class ValueMatch:
    """The part `text[start:end]` of a text, which states `value`; dates are YYYY-MM-DD."""

    start: int
    end: int
    value: Any


def find_values(kind: str, choices: Sequence[Any], text: str) -> list[ValueMatch]:
    """Find the values of one type that a text states, in its order; strings are names.

    A part of a date is neither a number nor a name.

    Args:
        kind: The type of a field: "int", "float", "date", "choice" or "str".
        choices: The values of a "choice".
        text: The text to search.

    >>> text = "It was built by Guido van Rossum. The 61,000 tons were paid on March 3rd, 2020."
    >>> [[m.value for m in find_values(kind, (), text)] for kind in ("str", "date", "int")]
    [['Guido van Rossum'], ['2020-03-03'], [61000]]
    """
    dates = sorted(_find_dates(text), key=lambda match: match.start)
    matches: list[ValueMatch] = []
    if kind == "date":
        return [match for match in dates if match.value]
    if kind == "choice":
        for choice in choices:
            matches += _find_choice(choice, text)
        return sorted(matches, key=lambda match: (match.start, -match.end))
    if kind in ("int", "float"):
        for number in numbers(text):
            if kind == "float" or isinstance(number.value, int):
                matches.append(ValueMatch(number.start, number.end, number.value))
    elif kind == "str":
        matches += _find_capitalized(text)
    in_dates = {offset for match in dates for offset in range(match.start, match.end)}
    return [match for match in matches if match.start not in in_dates]


def _find_dates(text: str) -> Iterator[ValueMatch]:
    """Find dates; the value of a day that is in no calendar is ""."""
    for pattern in _DATES:
        for m in pattern.finditer(text):
            groups = m.groupdict()
            if groups.get("name"):
                month = _MONTH_NUMBER[m["name"].lower()[:3]]
            else:
                month = int(m["m"])
            value = ""
            with suppress(ValueError):  # no day of the calendar
                value = date(int(m["y"]), month, int(m["d"])).isoformat()
            yield ValueMatch(*m.span(), value)


# Words in the clause before a value that negate it.
_NOBODY = r"nobody|no[- ]one|none|neither|never|not"
_NOT = re.compile(
    rf"\b(?:{_NOBODY}|nothing|nowhere|no(?! doubt\b)|nor|without|cannot|hardly|barely)\b|n[’'ʼ]t\b",
    re.IGNORECASE,
)
# Words in the clause before a value which say that it does not hold yet, or not for sure.
_NOT_YET = re.compile(
    r"\b(?:to be|yet to|will|would|shall|should|must|may|might|can|could|if|unless|until|till|when"
    r"|once|whether|before|after|as soon as|please)\b",
    re.IGNORECASE,
)
# Words that leave open whether something holds: they refused to pay, they deny the agreement.
_UNSURE = re.compile(
    r"\b(?:refus|declin|reject|fail)\w*|\bden(?:y|ies|ied|ying|ial)\b", re.IGNORECASE
)
# Fewer words negate a value after it: "paid by nobody", but "paid without delay" affirms.
_NOT_AFTER = re.compile(rf"\b(?:{_NOBODY}|if|unless)\b|n[’'ʼ]t\b", re.IGNORECASE)
_CLAUSE = re.compile(r"[.;:!?,\n()]|\b(?:and|but)\b")
_DENIED = re.compile(r"\s*[:?]\s*(?:no|false|not)\b", re.IGNORECASE)
_TRUTHS = {"yes": True, "true": True, "no": False, "false": False}
# Not "No." before a number, "no one" or "no doubt".
_TRUTH = re.compile(
    r"\W*(?:(yes|true)\b|(no|false)\b(?=\s*$|\s+longer\b|\s*[^\w\s](?!\s*\d)))", re.IGNORECASE
)
_OF_LABEL = re.compile(r"\w*[*_ \t]*[:=|][*_ \t|]*(?=[^\s|])")


def _is_affirmed(text: str, start: int, end: int) -> bool:
    """Return whether neither the clause around `text[start:end]` nor a "no" after it denies it."""
    before = _clause_before(text, start)
    after = _clause_after(text, end)
    is_negated = _NOT.search(before) or _NOT_AFTER.search(after) or _DENIED.match(text, end)
    return not (is_negated or _UNSURE.search(before) or _NOT_YET.search(before))


def _clause_before(text: str, end: int) -> str:
    before = text[max(0, end - _CLAUSE_LENGTH) : end]
    clause_start = 0
    for separator in _CLAUSE.finditer(before):
        clause_start = separator.end()
    return before[clause_start:]


def _clause_after(text: str, start: int) -> str:
    after = text[start : start + _CLAUSE_LENGTH]
    separator = _CLAUSE.search(after)
    return after[: separator.start()] if separator else after


def find_truths(name: str, text: str) -> list[ValueMatch]:
    """Find whether a text says that `name` holds: by yes or no, or by all words of the name.

    The list has at most one match. It is empty if the text is unsure: the thing does not hold
    yet, a label has another value than yes or no, or another clause before it has a negation.

    >>> [m.value for m in find_truths("agreed", "They have not agreed.")]
    [False]
    >>> find_truths("agreed", "They will have agreed by May."), find_truths("agreed", "It rains.")
    ([], [])
    """
    answer = _TRUTH.match(text)
    if answer:
        start, end = answer.span(answer.lastindex or 0)
        return [ValueMatch(start, end, _TRUTHS[text[start:end].lower()])]

    words = _find_words(name, text)
    if not words:
        return []
    start = max(word.start() for word in words)
    end = _word_end(text, max(word.end() for word in words))
    if _DENIED.match(text, end):
        return [ValueMatch(0, len(text), False)]
    label = _OF_LABEL.match(text, end)
    if label:
        answer = _TRUTH.match(text, label.end())
        return [ValueMatch(0, len(text), bool(answer[1]))] if answer else []

    clause = _clause_before(text, start)
    is_unsure = _UNSURE.search(text[:start]) or _UNSURE.search(text, end)
    if is_unsure or _NOT_YET.search(clause) or _NOT_AFTER.search(_clause_after(text, end)):
        return []
    is_denied = bool(_NOT.search(clause))
    if not is_denied and _NOT.search(text[:start]):  # Nobody, we are told, has paid.
        return []
    return [ValueMatch(0, len(text), not is_denied)]


def _find_words(name: str, text: str) -> list[re.Match[str]]:
    """Find each word of a name in a text, by its stem; [] unless all of them are there."""
    matches = []
    for word in re.findall(r"[^\W_]+", name.lower()):
        if word in _SENTENCE_STARTERS:
            continue
        match = re.search(rf"\b{re.escape(word[:_STEM_LENGTH])}", text, re.IGNORECASE)
        if match is None:
            return []
        matches.append(match)
    return matches


def _word_end(text: str, offset: int) -> int:
    """The end of the word at an offset."""
    while offset < len(text) and text[offset].isalnum():
        offset += 1
    return offset


def _find_choice(choice: Any, text: str) -> Iterator[ValueMatch]:
    """Find a choice where a text affirms it."""
    pattern = rf"(?<!\w)(?<!\w-){_words_pattern(str(choice))}(?!\w)"
    for m in re.finditer(pattern, text, re.IGNORECASE):
        if _is_affirmed(text, *m.span()):
            yield ValueMatch(*m.span(), choice)


def _find_capitalized(text: str) -> Iterator[ValueMatch]:
    """Find runs of capitalized words that are no labels, without words that begin a sentence."""
    for m in _NAME.finditer(text):
        if text.startswith(":", m.end()):  # a label
            continue
        before = text[max(0, m.start() - 9) : m.start()].rstrip(" \t")
        begins_sentence = not before or before[-1] in ".!?\n"
        starters = _SENTENCE_STARTERS
        if not begins_sentence:  # within a sentence May and Will are names
            starters = starters - {"may", "will"}
        for word in re.finditer(r"\S+", m[0]):
            if word[0].lower() in starters | _LETTER_STARTERS:
                continue
            start, end = m.start() + word.start(), m.end()
            if _SHORT.search(text[start : end + 1]):  # Reed Ltd.
                end += 1
            yield ValueMatch(start, end, text[start:end])
            break


_NUMBER_WORDS = frozenset("no nr num number id code ref reference".split())
_CODE = re.compile(r"(?:no|nr|num|number|id|code|ref|reference)?[ \t.:#]*", re.IGNORECASE)


def find_names(name: str, text: str) -> list[ValueMatch]:
    """Find the names that a text states for a field, without words that only name the field.

    If the field is a number, its values have digits, which may be alone after such a word.

    >>> [m.value for m in find_names("invoice number", "Invoice KB-2201")]
    ['KB-2201']
    >>> [m.value for m in find_names("invoice number", "Invoice date: 4 March 2025")]
    []
    >>> [m.value for m in find_names("invoice number", "Invoice no. 2201 of 4 March 2025")]
    ['2201']
    """
    field_words = re.findall(r"[^\W_]+", name.lower())
    is_number = not _NUMBER_WORDS.isdisjoint(field_words)
    matches = []
    for match in find_values("str", (), text):
        value_words = [
            word
            for word in re.finditer(r"\S+", match.value)
            if not _names_field(word[0], field_words)
        ]
        if not value_words:
            continue
        if is_number and not re.search(r"\d", match.value):
            continue
        start = value_words[0].start()
        if start and not re.search(r"\d", value_words[0][0]):
            start = 0  # City of London, Bank Austria
        matches.append(ValueMatch(match.start + start, match.end, match.value[start:]))
    if is_number and not matches:
        code = _find_code(field_words, text)
        return [code] if code else []
    return matches


def _find_code(field_words: Sequence[str], text: str) -> ValueMatch | None:
    """Find the first word with a digit that follows a word of a field's name."""
    dates = [(match.start, match.end) for match in _find_dates(text)]
    for word in re.finditer(r"[^\W\d_]+", text):
        if not _names_field(word[0], field_words):
            continue
        label = _CODE.match(text, word.end())
        code = re.compile(r"[\w/-]*\d[\w/-]*").match(text, label.end() if label else 0)
        if code and not any(start <= code.start() < end for start, end in dates):
            return ValueMatch(code.start(), code.end(), code[0])
    return None


def _names_field(word: str, field_words: Sequence[str]) -> bool:
    """Return whether a word is one of a field's name, or a word for "number"."""
    plain = word.strip(".,:#").lower()
    if plain in _NUMBER_WORDS:
        return not _NUMBER_WORDS.isdisjoint(field_words)
    stem = plain[:_STEM_LENGTH]
    return any(stem == field_word[:_STEM_LENGTH] for field_word in field_words)


def _words_pattern(text: str) -> str:
    """A pattern for the words of a text, with any white space, "_" or "-" between them."""
    return r"[\s_-]+".join(map(re.escape, re.split(r"[\s_-]+", text.strip("_- "))))


# Words that labels consist of: other words before them belong to the value before the label.
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


def find_labelled(name: str, text: str) -> list[tuple[int, int]]:
    """Find the values after a label of this name, or after the name and "is"; (start, end) each.

    The label may have up to three more words before the name. A value ends before the next label
    and before two spaces; it is empty if a label has none.

    >>> text = "Due date: 5 May\\nSender:  A. Reed\\nThe sum of it is 5 pounds. Goodbye."
    >>> [text[slice(*find_labelled(name, text)[0])] for name in ("sender", "date", "sum")]
    ['A. Reed', '5 May', '5 pounds']
    >>> text = "Customer: Jonas Reyes Invoice no.: 1005"
    >>> text[slice(*find_labelled("customer", text)[0])]
    'Jonas Reyes'
    """
    text = _with_plain_lines(text)
    words = _words_pattern(name)
    label = rf"{words}[*_]*[ \t]*([:=|])[*_ \t|]*([^\n]*)"
    patterns = (
        rf"^[^\w\n]*{label}",  # at the beginning of a line
        rf"^[^\w\n]*(?:\w+[ \t]+){{1,3}}{label}",  # after other words of the label
        rf"(?<![\w-]){label}",  # anywhere in a line
    )
    for pattern in patterns:
        values = [
            (m.start(2), m.start(2) + _value_length(m[2], m[1] == "|"))
            for m in re.finditer(pattern, text, re.IGNORECASE | re.MULTILINE)
        ]
        if values:
            return values

    subject = rf"\b{words}\b[^.:\n]{{0,60}}?\b(?:is|are|was|were)\s+"
    predicate = r"(\S.*?)(?=[.;]?\s*\Z|[.;]\s)"
    sentences = re.finditer(f"(?s:{subject}{predicate})", text, re.IGNORECASE | re.MULTILINE)
    return [(m.start(1), m.start(1) + len(m[1].rstrip())) for m in sentences]


def _value_length(line: str, is_cell: bool) -> int:
    """The length of a label's value in `line`, the text after the label, maybe a table's cell."""
    is_cell = is_cell or line.rstrip().endswith("|")
    ends = []
    gap = (_CELL_END if is_cell else _GAP).search(line)
    if gap:
        ends.append(gap.start())
    label = _next_label(line)
    if label is not None:
        ends.append(label)
    if not ends:
        return len(line.rstrip())
    value = line[: min(ends)].rstrip(",;|·- \t")
    return len(value if _SHORT.search(value) else value.rstrip(". "))


def _next_label(line: str) -> int | None:
    """Find the start of the next label in a line, with all words that belong to it.

    A word with a colon may as well belong to a title. It is a label if a sign is before it, or
    if it is a word that labels consist of.
    """
    for m in _NEXT_LABEL.finditer(line):
        start = m.start()
        while True:
            before = re.search(r"(\S+)[ ]\Z", line[max(0, start - 30) : start])
            if before is None or before[1].lower().rstrip(".") not in _LABEL_WORDS:
                break
            start -= len(before[0])
        words = m[0].rstrip(": ").lower().replace(".", "").split()
        follows_sign = line[max(0, start - 3) : start].rstrip().endswith((",", ";", ".", "|"))
        if start > 0 and (follows_sign or words[0] in _LABEL_WORDS):
            return start
    return None


def is_label(text: str) -> bool:
    """Return whether a text has only labels, without a value."""
    return bool(re.fullmatch(r"(?:\s*[^\W\d_][^\n:]{0,39}:\s*)+", text))


def _with_plain_lines(text: str) -> str:
    """Replace every character that ends a line by "\\n"; offsets stay the same."""
    return text.translate(_LINE_ENDS)


_LINE_ENDS = dict.fromkeys(map(ord, "\u2028\u2029\x85\f\v"), "\n")


def split_sentences(text: str, words: str = "") -> list[tuple[int, int]]:
    """Split a text into sentences and lines with labels; return (start, end) of each.

    With `words`, only sentences that have one of them, or a word of the same stem.
    """
    text = _with_plain_lines(text)
    stems = set()
    for word in re.findall(r"[^\W_]+", words.lower()):
        if word not in _SENTENCE_STARTERS:
            stems.add(word[:_STEM_LENGTH])
    spans = []
    for m in _SENTENCE.finditer(text):
        sentence_words = re.findall(r"[^\W_]+", m[0].lower())
        if not words or any(word[:_STEM_LENGTH] in stems for word in sentence_words):
            spans.append((m.start(), m.start() + len(m[0].rstrip())))
    return spans


def find_verbatim(value: str, text: str, start: int, end: int) -> tuple[int, int] | None:
    """Find the first whole words in `text[start:end]` that are `value`; white space may differ.

    >>> text = "At the\\ntide of the tides"
    >>> find_verbatim("the tide", text, 0, 25), find_verbatim("ide", "tide", 0, 4)
    ((3, 11), None)
    """
    words = value.split()
    if not words:
        return None
    letter = rf"(?![{UNSPACED}])\w"
    before = r"(?<!\w)" if re.match(letter, words[0]) else ""
    after = r"(?!\w)" if re.match(letter, words[-1][-1]) else ""
    pattern = re.compile(before + r"\s+".join(map(re.escape, words)) + after)
    m = pattern.search(text, start, end)
    return m.span() if m else None
