"""Thirty documents of an invented engineering office, and what is to be found in them.

Eight project reports, eight invoices, six minutes and eight letters; `write` makes files of seven
formats of them. Names, places and figures are invented.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.message import EmailMessage
from html import escape
from pathlib import Path

from tests.document_files import paged_pdf
from tests.office_files import docx, paragraph


@dataclass(frozen=True, slots=True)
class OfficeText:
    """A document.

    Attributes:
        name: The file's name.
        text: Its lines; an empty line ends a paragraph.
        facts: Words of which a useful summary has one.
        fields: What `ngt extract` is to find, by the field's name.
        meeting: The next meeting, of minutes.
    """

    name: str
    text: str
    facts: tuple[str, ...]
    fields: Mapping[str, str] = field(default_factory=dict)
    meeting: str = ""


@dataclass(frozen=True, slots=True)
class OfficeQuestion:
    """A question, and what a right answer says; "" for one that the documents do not answer."""

    text: str
    answer: str


QUESTIONS = (
    OfficeQuestion("What did the borings at Alder Bridge find?", "peat"),
    OfficeQuestion("Who wrote the report on the Linden school roof?", "Tomas Veit"),
    OfficeQuestion("How many panels can the roof of the tram depot carry?", "380"),
    OfficeQuestion("When was the car park in Miller Street built?", "1971"),
    OfficeQuestion("What does the repair of the car park cost?", "640,000"),
    OfficeQuestion("When is the next board meeting after March?", "9 April"),
    OfficeQuestion("Which invoice is overdue?", "KB-2207"),
    OfficeQuestion("Who complains of noise from the pile driving?", "Ostrander"),
    OfficeQuestion("Which course does Jana Holm ask to attend?", "timber"),
    OfficeQuestion("What is the price of the steel beams?", "14,300"),
    OfficeQuestion("What is the capital of France?", ""),
)
PROJECT_FIELDS = "client, author, report_date date, cost, recommendation"
INVOICE_FIELDS = "invoice_number, customer, invoice_date date, due_date date, total float"
MEETING_QUESTION = "When is the next meeting?"


def _report(
    name: str, title: str, fields: Sequence[str], body: str, facts: tuple[str, ...]
) -> OfficeText:
    client, author, written, iso, cost, recommendation = fields
    text = (
        f"{title}\n\nClient: {client}\nAuthor: {author}\nDate: {written}\n\n{body}\n\n"
        f"Recommendation: {recommendation}"
    )
    expected = {
        "client": client,
        "author": author,
        "report_date": iso,
        "cost": cost,
        "recommendation": recommendation,
    }
    return OfficeText(name, text, facts, expected)


REPORTS = (
    _report(
        "alder-bridge.md",
        "# Alder Bridge: survey of the ground",
        (
            "Ludlow County",
            "Marta Kiel",
            "12 February 2025",
            "2025-02-12",
            "2.1 million",
            "Found the piers on bored piles of 14 metres.",
        ),
        "The bridge over the Alder carries 9,000 vehicles a day. Four borings found five metres of"
        " peat above dense gravel.\nThe new piers cost 2.1 million pounds with all works.",
        ("peat", "bored piles"),
    ),
    _report(
        "linden-school.docx",
        "Linden school: condition of the roof",
        (
            "Town of Linden",
            "Tomas Veit",
            "3 March 2025",
            "2025-03-03",
            "310,000",
            "Replace the roof of the hall before the winter.",
        ),
        "Rain enters the hall at the north gutter. Two of the eleven trusses are rotten at their"
        " feet.\nA new roof costs 310,000 pounds.",
        ("trusses", "roof of the hall", "north gutter"),
    ),
    _report(
        "tram-depot.pdf",
        "Tram depot: solar power",
        (
            "Vale Tramways",
            "Marta Kiel",
            "20 January 2025",
            "2025-01-20",
            "185,000",
            "Mount the panels on the east bays first.",
        ),
        "The roof of the tram depot can carry 380 panels without any strengthening. They yield"
        " 150 MWh a year.\nThe plant costs 185,000 pounds.",
        ("380 panels", "east bays"),
    ),
    _report(
        "miller-street.txt",
        "Car park in Miller Street: inspection",
        (
            "Brook Parking Ltd",
            "Tomas Veit",
            "17 April 2025",
            "2025-04-17",
            "640,000",
            "Close the upper deck until it is repaired.",
        ),
        "The car park was built in 1971 and has 220 places. Salt has reached the steel of the upper"
        " deck.\nThe repair costs 640,000 pounds.",
        ("upper deck", "Salt"),
    ),
    _report(
        "heat-network.html",
        "Heat network for Quarry Hill",
        (
            "Quarry Hill Homes",
            "Ines Brandt",
            "8 May 2025",
            "2025-05-08",
            "4.6 million",
            "Build the network in two stages from 2026.",
        ),
        "The network heats 610 flats from one heat pump at the river. It saves 900 tonnes of carbon"
        " dioxide a year.\nBoth stages cost 4.6 million pounds.",
        ("610 flats", "heat pump", "two stages"),
    ),
    _report(
        "flood-wall.md",
        "# Flood wall at Osier Lane",
        (
            "Rivers Board",
            "Ines Brandt",
            "26 May 2025",
            "2025-05-26",
            "1.3 million",
            "Raise the wall by 60 centimetres.",
        ),
        "The flood of 2019 stood 40 centimetres above the wall. The wall is sound, and its base can"
        " bear more.\nRaising it costs 1.3 million pounds.",
        ("60 centimetres", "flood of 2019"),
    ),
    _report(
        "library.docx",
        "Library at Fern Square: floors",
        (
            "Town of Linden",
            "Jana Holm",
            "11 June 2025",
            "2025-06-11",
            "95,000",
            "Keep the heavy shelves off the second floor.",
        ),
        "The second floor bears 2.5 kilonewtons a square metre, and full shelves need 6.0.\nSteel"
        " below the floor would cost 95,000 pounds.",
        ("heavy shelves", "second floor"),
    ),
    _report(
        "water-tower.txt",
        "Water tower on Gorse Hill",
        (
            "Vale Water",
            "Jana Holm",
            "30 June 2025",
            "2025-06-30",
            "72,000",
            "Paint the tank and renew its ladder.",
        ),
        "The tower of 1934 is in good health. The tank rusts at its seams, and the ladder is"
        " loose.\nPainting and a ladder cost 72,000 pounds.",
        ("rusts", "Paint the tank", "ladder"),
    ),
)


def _invoice(
    name: str, number: str, customer: str, dates: Sequence[str], lines: Sequence[str], total: str
) -> OfficeText:
    issued, issued_iso, due, due_iso = dates
    text = (
        f"Invoice {number}\n\nCustomer: {customer}\nInvoice date: {issued}\nDue date: {due}\n\n"
        + "\n".join(lines)
        + f"\n\nTotal: {total} pounds"
    )
    expected = {
        "invoice_number": number,
        "customer": customer,
        "invoice_date": issued_iso,
        "due_date": due_iso,
        "total": total.replace(",", ""),
    }
    return OfficeText(name, text, (f"Total: {total}", total), expected)


_JANUARY = ("14 January 2025", "2025-01-14", "13 February 2025", "2025-02-13")
_MARCH = ("4 March 2025", "2025-03-04", "3 April 2025", "2025-04-03")
_MAY = ("19 May 2025", "2025-05-19", "18 June 2025", "2025-06-18")
INVOICES = (
    _invoice(
        "KB-2201.txt",
        "KB-2201",
        "Ludlow County",
        _JANUARY,
        ("Borings at Alder Bridge, 4 at 1,850 = 7,400", "Report = 2,600"),
        "10,000",
    ),
    _invoice(
        "KB-2202.pdf",
        "KB-2202",
        "Town of Linden",
        _MARCH,
        ("Inspection of the roof, 12 hours at 95 = 1,140", "Lift, 2 days at 310 = 620"),
        "1,760",
    ),
    _invoice(
        "KB-2203.pdf",
        "KB-2203",
        "Vale Tramways",
        _JANUARY,
        ("Calculations, 44 hours at 105 = 4,620", "Drawings, 9 sheets at 140 = 1,260"),
        "5,880",
    ),
    _invoice(
        "KB-2204.docx",
        "KB-2204",
        "Brook Parking Ltd",
        _MAY,
        ("Cores of concrete, 18 at 75 = 1,350", "Laboratory = 900"),
        "2,250",
    ),
    _invoice(
        "KB-2205.html",
        "KB-2205",
        "Quarry Hill Homes",
        _MAY,
        ("Study of the heat network = 12,400", "Meetings, 3 at 450 = 1,350"),
        "13,750",
    ),
    _invoice(
        "KB-2206.xlsx",
        "KB-2206",
        "Rivers Board",
        _MAY,
        ("Survey of the wall = 3,900", "Model of the flood = 5,200"),
        "9,100",
    ),
    _invoice(
        "KB-2207.txt",
        "KB-2207",
        "Vale Water",
        _MARCH,
        ("Inspection of the tower = 2,350", "This invoice is overdue since 4 April 2025."),
        "2,350",
    ),
    _invoice(
        "KB-2208.pdf",
        "KB-2208",
        "Town of Linden",
        _MAY,
        ("Floors of the library, 16 hours at 95 = 1,520", "Travel = 80"),
        "1,600",
    ),
)


def _minutes(name: str, title: str, body: str, meeting: str, facts: tuple[str, ...]) -> OfficeText:
    text = f"{title}\n\n{body}\n\nThe next meeting is on {meeting}."
    return OfficeText(name, text, facts, meeting=meeting)


MINUTES = (
    _minutes(
        "board-february.md",
        "# Board meeting, 5 February 2025",
        "Present: Brandt, Holm, Kiel, Veit.\nThe board agreed to buy a second drilling rig for"
        " 120,000 pounds.\nThe office in Linden is let until 2030.",
        "5 March 2025",
        ("drilling rig", "let until 2030"),
    ),
    _minutes(
        "board-march.docx",
        "Board meeting, 5 March 2025",
        "Present: Brandt, Kiel, Veit.\nTwo engineers leave in May, and three are sought.\nThe"
        " rig was ordered and comes in June.",
        "9 April 2025",
        ("engineers", "ordered"),
    ),
    _minutes(
        "board-april.txt",
        "Board meeting, 9 April 2025",
        "Present: Brandt, Holm, Kiel.\nThe bank balance is 81,000 pounds.\nThe board agreed"
        " to raise the rates for hours to 105 pounds.",
        "7 May 2025",
        ("81,000", "raise the rates"),
    ),
    _minutes(
        "site-alder.html",
        "Site meeting at Alder Bridge, 16 June 2025",
        "The pile driving starts at eight o'clock from now on.\nThe detour through Mill Lane"
        " stays open until September.",
        "30 June 2025",
        ("pile driving", "detour"),
    ),
    _minutes(
        "site-library.pdf",
        "Site meeting at the library, 20 June 2025",
        "The shelves of the archive were moved to the cellar.\nThe lift stays out of service"
        " for two weeks.",
        "4 July 2025",
        ("cellar", "lift"),
    ),
    _minutes(
        "team-may.md",
        "# Team meeting, 14 May 2025",
        "All reports are to have a summary of one page.\nThe plotter is broken and is not"
        " replaced.",
        "11 June 2025",
        ("one page", "plotter"),
    ),
)


LETTERS = (
    OfficeText(
        "noise.eml",
        "To the engineers of Alder Bridge\n\nThe pile driving wakes my children"
        " at six every morning. Please start it later, or never.\n\nP. Ostrander, Mill Lane",
        ("wakes", "start it later"),
    ),
    OfficeText(
        "beams.eml",
        "Offer of steel beams\n\nWe offer 22 beams for the library within six"
        " weeks. The price of the steel beams is 14,300 pounds, delivered.\n\nGrove Steel",
        ("14,300", "22 beams"),
    ),
    OfficeText(
        "course.txt",
        "To the head of the office\n\nI ask for leave to attend the course on"
        " timber bridges in Graz from 6 to 10 October. It costs 1,150 euros.\n\nJana Holm",
        ("timber bridges", "1,150"),
    ),
    OfficeText(
        "thanks.docx",
        "Dear Mr Veit\n\nThe school thanks you for the quick inspection after"
        " the storm. The hall could be used again on Monday.\n\nA. Roth, head teacher",
        ("thanks you", "used again"),
    ),
    OfficeText(
        "lease.pdf",
        "Lease of the office\n\nThe rent rises to 2,900 pounds a month from"
        " January 2026. All other terms stay as they are.\n\nLinden Estates",
        ("2,900", "rent rises"),
    ),
    OfficeText(
        "application.html",
        "Application\n\nI have drawn bridges for seven years and would"
        " like to work on yours. I could begin in August.\n\nSamir Haddad",
        ("seven years", "begin in August"),
    ),
    OfficeText(
        "complaint.txt",
        "Invoice KB-2204\n\nYour laboratory tested twelve cores, and you"
        " charge for eighteen. Please send a right invoice.\n\nBrook Parking Ltd",
        ("eighteen", "right invoice"),
    ),
    OfficeText(
        "insurance.eml",
        "Insurance of the rig\n\nThe rig is insured from its delivery for"
        " 120,000 pounds. The yearly premium is 1,980 pounds.\n\nNorth Mutual",
        ("1,980", "insured"),
    ),
)
FOLDERS = {"reports": REPORTS, "invoices": INVOICES, "minutes": MINUTES, "letters": LETTERS}


def write(folder: Path) -> None:
    """Write the thirty documents into a folder for each kind."""
    for kind, texts in FOLDERS.items():
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for text in texts:
            _write(folder / kind / text.name, text.text)


def _write(path: Path, text: str) -> None:
    writers: Mapping[str, Callable[[str], bytes]] = {
        ".docx": _docx,
        ".eml": _mail,
        ".html": _html,
        ".pdf": _pdf,
    }
    if path.suffix == ".xlsx":
        _workbook(path, text)
    else:
        path.write_bytes(writers.get(path.suffix, str.encode)(text))


def _docx(text: str) -> bytes:
    return docx("".join(paragraph(escape(line)) for line in text.splitlines()))


def _html(text: str) -> bytes:
    blocks = [escape(block).replace("\n", "<br>") for block in text.split("\n\n")]
    return ("<html><body>" + "".join(f"<p>{b}</p>" for b in blocks) + "</body></html>").encode()


def _pdf(text: str) -> bytes:
    return paged_pdf([text])


def _mail(text: str) -> bytes:
    subject, _, body = text.partition("\n\n")
    message = EmailMessage()
    message["Subject"], message["From"], message["To"] = subject, "a@example.org", "b@example.org"
    message.set_content(body)
    return bytes(message)


def _workbook(path: Path, text: str) -> None:
    from openpyxl import Workbook  # here: the other formats do without

    book = Workbook()
    sheet = book.worksheets[0]
    for row, line in enumerate(filter(None, text.splitlines()), 1):
        for column, cell in enumerate(line.split(": ", 1), 1):
            sheet.cell(row, column, cell)
    book.save(path)
