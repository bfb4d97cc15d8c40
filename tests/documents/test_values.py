"""Values that rules find in a text, and ambiguous ones that they leave out."""

import json
from typing import Any

import pytest

from ngtcli.config import Layer
from ngtcli.documents.load import Document
from ngtcli.documents.quotes.values import find_labelled, find_names, find_truths, find_values
from ngtcli.documents.selection import Excerpt
from ngtcli.drafting.steps import Step, Token
from ngtcli.engine.batch.extract import Asking, Extraction
from ngtcli.engine.events import Ended
from ngtcli.engine.request import Tasks
from ngtcli.prompts.splitting import Part


def numbers_in(text: str) -> list[Any]:
    return [match.value for match in find_values("float", (), text)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1'234.50", 1234.5),
        ("1’234.50", 1234.5),
        ("CHF 1’234.50", 1234.5),
        ("1\u00a0234.50", 1234.5),
        ("1\u202f234,50", 1234.5),
        ("1\u2009234", 1234),
        ("1'234'567.89", 1234567.89),
        ("1,234,567.89", 1234567.89),
        ("1.234.567,89", 1234567.89),
        ("1.234,50", 1234.5),
        ("12,50 EUR", 12.5),
        ("€ 12,50", 12.5),
        ("61,000 tons", 61000),
        ("(1,234.50)", -1234.5),
        ("($5)", -5),
        ("(1956)", 1956),
        ("minus 5", -5),
        ("−5", -5),
        ("-$5", -5),
        ("$-5", -5),
        ("2.5 million", 2_500_000),
        ("1 billion", 10**9),
        ("3 thousand", 3000),
        ("0.125", 0.125),
        ("1234.567", 1234.567),
        ("+5", 5),
        ("5円", 5),
        ("3 March 2025 100 trees", 100),
        ("5-year plan", 5),
    ],
)
def test_numbers_are_read_as_they_are_written(text: str, value: float) -> None:
    assert numbers_in(text) == [value]
    assert numbers_in(f"Total: {text}.") == [value]


@pytest.mark.parametrize(
    "text",
    [
        "12 345",
        "1 234.50",
        "1/2",
        "2 1/2",
        "3-4",
        "3 – 4",
        "1.5e6",
        "1.2345e3",
        "10^6",
        "1,234.50^1",
        "10⁶",
        "2½",
        "12,34,567.50",
        "1.500",
        "1.234 Stück",
        "EUR 1.500",
        "1.500,--",
        "12,50",
        "2024-02-30",
        "30.02.2024",
        "10:30",
        "HB-1041",
        "555-1234",
        "~5",
        "<5",
        "–5",
        "(12)",
        "1,234.50-",
        "5 hundred",
        "2 dozen",
        "3 Mio",
        "3 x 4",
        "2×10",
        "24/7",
        "v2",
        ".5",
    ],
)
def test_a_part_of_a_number_is_no_number(text: str) -> None:
    assert numbers_in(text) == []
    assert numbers_in(f"Total: {text} of all") == []


def test_months_are_words_of_their_own() -> None:
    text = "Marble 12, 2020 tiles were laid in Decker 5, 2019; Sept. 5, 2020 and 3 Mar 2021."
    assert [match.value for match in find_values("date", (), text)] == ["2020-09-05", "2021-03-03"]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("The invoice is paid.", ["paid"]),
        ("Status: open", ["open"]),
        ("It has not been paid yet, it is still open.", ["open"]),
        ("The invoice is not paid.", []),
        ("The invoice is unpaid.", []),
        ("It isn't paid.", []),
        ("It isn’t paid.", []),
        ("It was pre-paid.", []),
        ("It is no longer open.", []),
        ("It is to be paid by May.", []),
        ("It will be paid.", []),
        ("If it is paid, we go on.", []),
        ("Paid: no", []),
        ("The invoice is yet to be paid; nobody paid it.", []),
        ("They have yet to paid.", []),
        ("Nobody has paid.", []),
        ("No one paid.", []),
        ("None of it was paid.", []),
        ("Nothing was paid.", []),
        ("Neither of them paid.", []),
        ("It was paid by nobody.", []),
        ("It was paid by none of them; it is open.", ["open"]),
        ("She denied that it was paid.", []),
        ("They refused what was paid.", []),
        ("They failed to have it paid.", []),
        ("It hasn't been paid.", []),
        ("It is paid if the cheque clears.", []),
        ("It was paid without delay.", ["paid"]),
        ("It was paid, not lent.", ["paid"]),
        ("The total is 12.50.", []),
    ],
)
def test_a_choice_is_one_that_the_text_affirms(text: str, values: list[str]) -> None:
    assert [match.value for match in find_values("choice", ("paid", "open"), text)] == values


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("They agreed.", [True]),
        ("They have not agreed.", [False]),
        ("yes", [True]),
        ("No.", [False]),
        ("They will have agreed by May.", []),
        ("The total is 12.50.", []),
        ("Nobody has agreed.", [False]),
        ("No one agreed.", [False]),
        ("no", [False]),
        ("None of it was agreed.", [False]),
        ("Nothing was agreed.", [False]),
        ("Neither of them agreed.", [False]),
        ("It isn’t agreed.", [False]),
        ("It isn't agreed.", [False]),
        ("It was agreed by nobody.", []),
        ("They refused what was agreed.", []),
        ("He denies that they agreed.", []),
        ("They failed to agree.", []),
        ("They have yet to agree.", []),
        ("Agreed: n/a", []),
        ("Agreed: unknown", []),
        ("Agreed: yes", [True]),
        ("Agreed: No", [False]),
        ("Agreed: not yet", [False]),
        ("Agreed | n/a", []),
        ("Agreed? No", [False]),
        ("Nobody, we are told, has agreed.", []),
        ("No. 5 is what they agreed.", []),
        ("No doubt they agreed.", [True]),
        ("No one objected, they agreed.", []),
        ("They agreed without delay.", [True]),
        ("They agreed, not knowing it.", [True]),
        ("They agreed if it pays.", []),
        ("yes, by May", [True]),
        ("no (see below)", [False]),
    ],
)
def test_a_text_affirms_or_denies_a_truth(text: str, values: list[bool]) -> None:
    assert [match.value for match in find_truths("agreed", text)] == values


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("customer", "Customer: Ana Ruiz, Total: 12.50, Due: 3 May 2025", ["Ana Ruiz"]),
        ("total", "Customer: Ana Ruiz, Total: 12.50, Due: 3 May 2025", ["12.50"]),
        ("customer", "Customer: Jonas Reyes Invoice no.: 1005", ["Jonas Reyes"]),
        ("customer", "Customer: Jonas Reyes Due Date: 5 May", ["Jonas Reyes"]),
        ("customer", "Customer: Reed Ltd., Total: 5", ["Reed Ltd."]),
        ("author", "Author: Miriam Halden. Client: Ludgrave", ["Miriam Halden"]),
        ("customer", "Customer: Ana Ruiz  Page 3", ["Ana Ruiz"]),
        ("customer", "Customer: Ana Ruiz\tPage 3", ["Ana Ruiz"]),
        ("customer", "| Customer: | Ana Ruiz |", ["Ana Ruiz"]),
        ("customer", "Stores\u2028Customer: Tom\u2028Total: 5", ["Tom"]),
        ("customer", "Stores\x85Customer: Tom\x85Total: 5", ["Tom"]),
        ("customer", "Stores\fCustomer: Tom\fTotal: 5", ["Tom"]),
        ("customer", "Customer:\nTotal:\nDue:", [""]),
        ("time", "Time: 10:30, Place: Tarn", ["10:30"]),
        ("customer", "Customer | Ana Ruiz | 5", ["Ana Ruiz"]),
        ("title", "Title: Protocols: Structural subtyping", ["Protocols: Structural subtyping"]),
        ("title", "Title: Wheel Variants: Package Format", ["Wheel Variants: Package Format"]),
        ("title", "Title: Union types as X | Y", ["Union types as X | Y"]),
    ],
)
def test_the_value_of_a_label_ends_before_the_next_one(
    name: str, text: str, values: list[str]
) -> None:
    assert [text[start:end] for start, end in find_labelled(name, text)] == values


def test_the_first_words_of_a_letter_are_no_name() -> None:
    text = "Thank you for the 51 trees. Our customer May Lin of Reed & Sons Ltd. came."
    assert [match.value for match in find_values("str", (), text)] == [
        "May Lin of Reed & Sons Ltd."
    ]


def questions_about(text: str, schema: str) -> Asking:
    """The questions about a text for a model that only quotes."""
    flags = {"schema": schema, "ask_fields": True}
    tasks = Tasks.resolved([Layer("flag", flags)], None, ("extract",))
    return Asking(Extraction.of(tasks), Document("a.txt", text))


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("status paid|open", "Customer: Ana Ruiz\nTotal: 12.50"),
        ("status paid|open", "The invoice is not paid."),
        ("colour red|green|blue", "Customer: Ana Ruiz\nTotal: 12.50"),
        ("agreed bool", "Customer: Ana Ruiz\nTotal: 12.50"),
        ("insured bool", "Insured: n/a"),
        ("insured bool", "Customer: Ana Ruiz, Insured: n/a, Total: 12.50"),
        ("insured bool", "| Insured | n/a |"),
        ("total float", "Total: 12 345\n\nWe came with 3 carts."),
        ("total float", "Total: 1.5e6\nDue: 2024-02-30"),
        ("total float", "Total: 1.234 pieces of 7"),
        ("customer", "Customer:\nTotal:\nDue:"),
        ("customer", "Customer: " + "Ana " * 1000),
    ],
)
def test_a_field_is_null_and_no_model_is_asked_if_no_rule_is_sure(field: str, text: str) -> None:
    questions = questions_about(text, field)
    assert not questions.open
    (row,) = questions.rows()
    assert list(row["values"].values()) == [None]
    assert list(row["probability"].values()) == [None]


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("customer", "Customer: Ana Ruiz, Total: 12.50", "Ana Ruiz"),
        ("total float", "Customer: Ana Ruiz, Total: 1'234.50", 1234.5),
        ("status paid|open", "It has not been paid yet, it is still open.", "open"),
        ("agreed bool", "Agreed: no", False),
        ("due date", "We met. It is due on 3 May 2025.", "2025-05-03"),
    ],
)
def test_a_value_that_rules_take_has_a_probability(field: str, text: str, value: object) -> None:
    (row,) = questions_about(text, field).rows()
    (name,) = row["values"]
    assert row["values"][name] == value
    assert 0 < row["probability"][name] < 1
    assert row["sources"][name]["quote"]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "number"}, 12.5),
        ({"type": "number", "maximum": 5}, None),
        ({"type": "number", "multipleOf": 5}, None),
        ({"type": "string", "maxLength": 3}, None),
        ({"type": "string", "pattern": "^[a-z]+$"}, None),
        ({"anyOf": [{"type": "number", "minimum": 12}, {"type": "null"}]}, 12.5),
    ],
)
def test_a_value_that_its_schema_does_not_allow_is_null(
    schema: dict[str, Any], value: float | None
) -> None:
    (row,) = questions_about("Total: 12.50", object_schema("total", schema)).rows()
    assert row["values"] == {"total": value}


def object_schema(name: str, schema: dict[str, Any]) -> str:
    """The JSON Schema of an object with one property."""
    return json.dumps({"type": "object", "properties": {name: schema}, "required": [name]})


def items_in_rows(answers: list[str]) -> list[str]:
    """Extract a table from a text in parts, for which these are the answers; return its items."""
    flags = {"schema_multi": "item, price float", "ask_fields": False}
    tasks = Tasks.resolved([Layer("flag", flags)], None, ("extract",))
    text = "coffee 3.50\ncoffee 3.50\ntea 2.00"
    document = Document("invoice.txt", text)
    task: Any = None  # from which no prompt is made
    parts = [Part(task, (document,), (Excerpt(0, 0, len(text)),)) for _ in answers]
    questions = Asking(Extraction.of(tasks), document, parts if len(parts) > 1 else ())

    work = questions.work(lambda _: None)
    requests = next(work)
    assert len(requests) == len(answers)
    steps = [Step(tokens=(Token(1, answer),), nodes=0) for answer in answers]
    with pytest.raises(StopIteration) as end:
        work.send([Ended(finish_reason="stop", steps=(step,)) for step in steps])
    return [row["values"]["item"] for row in end.value.value]


def test_equal_rows_stay_and_rows_repeated_by_two_parts_are_merged() -> None:
    coffee = '{"item": "coffee", "price": 3.5}'
    tea = '{"item": "tea", "price": 2}'
    three_rows = f'{{"items": [{coffee}, {coffee}, {tea}]}}'
    two_rows = f'{{"items": [{tea}, {coffee}]}}'
    assert items_in_rows([three_rows]) == ["coffee", "coffee", "tea"]
    assert items_in_rows([three_rows, two_rows]) == ["coffee", "coffee", "tea"]
    assert items_in_rows([two_rows, three_rows]) == ["tea", "coffee", "coffee"]


@pytest.mark.parametrize(
    ("pattern", "text", "is_valid"),
    [
        (r"^\p{L}[\p{L} ]+$", "Jürgen Reyes", True),
        (r"^\p{L}[\p{L} ]+$", "12.50", False),
        ("^(a+)+$", "a" * 60 + "!", False),  # Python's `re` tries 2**60 ways
        ("^(a+)+$", "a" * 60, True),
        ("ey", "Ana Reyes", True),  # anywhere in the text
        (r"^\d+$", "٣٤", False),  # digits are 0 to 9
        ('^"x" é$', '"x" é', True),
        ("^.{5}$", "Ana", False),
    ],
)
def test_a_pattern_checks_values_by_rules_as_it_checks_answers(
    pattern: str, text: str, is_valid: bool
) -> None:
    schema = {"anyOf": [{"type": "string", "pattern": pattern}, {"type": "null"}]}
    (row,) = questions_about(f"Customer: {text}", object_schema("customer", schema)).rows()
    assert row["values"] == {"customer": text if is_valid else None}


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("invoice number", "Invoice KB-2201", ["KB-2201"]),
        ("invoice number", "Invoice number KB-2201", ["KB-2201"]),
        ("invoice no", "Invoice No. 2201/25", ["2201/25"]),
        ("invoice number", "Invoice # 2201", ["2201"]),
        ("invoice number", "Invoice date: 14 January 2025", []),
        ("invoice number", "Invoice 14 January 2025", []),
        ("invoice number", "Inspection of the tower. This invoice is overdue.", []),
        ("invoice number", "INVOICE", []),
        ("order id", "Order AX-7", ["AX-7"]),
        ("bank", "Bank Austria", ["Bank Austria"]),
        ("city", "City of London", ["City of London"]),
        ("customer", "Customer", []),
        ("author", "It is by Marta Kiel.", ["Marta Kiel"]),
    ],
)
def test_a_word_that_names_a_field_is_not_its_value(
    name: str, text: str, values: list[str]
) -> None:
    matches = find_names(name, text)
    assert [match.value for match in matches] == values
    assert all(text[match.start : match.end] == match.value for match in matches)
