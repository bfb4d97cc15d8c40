"""Numbers are shown as spreadsheets show them in each format.

What is wanted was seen in LibreOffice, or is in Excel's documentation of formats.
"""

# ruff: noqa: E501 - a table
import datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ngtcli.documents.formats.number_format import BUILT_IN, format_number, format_text

MONEY = '_("$"* #,##0.00_);_("$"* \\(#,##0.00\\);_("$"* "-"??_);_(@_)'


@pytest.mark.parametrize(
    ("code", "value", "text"),
    [
        ("0", 2.5, "3"),
        ("0", -0.4, "0"),
        ("0.00", 2.675, "2.68"),
        ("0.00", 1.005, "1.01"),
        ("#,##0", 1234567.8, "1,234,568"),
        ("#,##0.00", -1234.5, "-1,234.50"),
        ("0%", 0.075, "8%"),
        ("0.0%", 0.075, "7.5%"),
        ("0.00%;[Red]-0.00%", -0.0125, "-1.25%"),
        ("00000", 1067, "01067"),
        ("000-0000", 5551234, "555-1234"),
        ("(###) ###-####", 5551234567, "(555) 123-4567"),
        ("[<=9999999]###-####;(###) ###-####", 5551234, "555-1234"),
        ("[<=9999999]###-####;(###) ###-####", 5551234567, "(555) 123-4567"),
        ("000-00-0000", 123456789, "123-45-6789"),
        ('"0"000000000', 441234567, "0441234567"),
        ("#,##0;(#,##0)", -1234, "(1,234)"),
        ('0;-0;"none"', 0, "none"),
        ("+0;-0;0", 12, "+12"),
        ('"$"#,##0.00', 1234.5, "$1,234.50"),
        ("#,##0.00 [$€-407]", 1234.5, "1,234.50 €"),
        ("[$£-809]#,##0", 1250, "£1,250"),
        ('#,##0 "EUR"', 1250, "1,250 EUR"),
        (MONEY, -3, "$ (3.00)"),
        (MONEY, 0, "$ -"),
        ("_-* #,##0.00_-", 12, "12.00"),
        ('0.00" kg"', 12.5, "12.50 kg"),
        ("\\#0", 5, "#5"),
        ("0.0,", 12345, "12.3"),
        ('0.0,,"M"', 1234567, "1.2M"),
        (".00", 0.3, ".30"),
        ("#.##", 0.5, ".5"),
        ("?.??", 1.5, "1.5"),
        ("0.###", 1.25, "1.25"),
        ("#", 0, ""),
        ("0.00E+00", 1234.5, "1.23E+03"),
        ("0.00E+00", 0.00012, "1.20E-04"),
        ("##0.0E+0", 12345, "12.3E+3"),
        ("0E+0", 9.9, "1E+1"),
        ("# ?/?", 0.5, "1/2"),
        ("# ?/?", 1.5, "1 1/2"),
        ("# ?/?", 3, "3"),
        ("# ?/?", 0, "0"),
        ("# ??/??", 3.14159, "3 14/99"),
        ("?/?", 1.5, "3/2"),
        ("# ?/8", 2.375, "2 3/8"),
        ("# ?/?", 1.999, "2"),
        ("# ??/100", 0.25, "25/100"),
        ('[>1000]"many";[<0]"debt";0', 2000, "many"),
        ('[>1000]"many";[<0]"debt";0', -5, "debt"),
        ('[>1000]"many";[<0]"debt";0', 7, "7"),
        ("0.00", 1e30, f"1{'0' * 30}.00"),
        ("0.00E+00", 1e300, "1.00E+300"),
        (";;;", 5, ""),
        ('"yes";"no";"zero"', -2, "no"),
        ("General", 0.1 + 0.2, "0.3"),
        ('General" pcs"', 3, "3 pcs"),
        ("[Blue]0", 5, "5"),
        ("@", 12, "12"),
        ("0.0?", 1.0, "1.0"),
    ],
)
def test_numbers_are_written_in_their_format(code: str, value: float, text: str) -> None:
    assert format_number(value, code) == text


DAY = 46096  # 15 March 2026


@pytest.mark.parametrize(
    ("code", "value", "text"),
    [
        ("h:mm", 7 / 24 + 5 / 1440, "7:05"),
        ("hh:mm:ss", 0.5, "12:00:00"),
        ("h:mm AM/PM", 0.75, "6:00 PM"),
        ("h:mm A/P", 0.25, "6:00 A"),
        ("[h]:mm", 1.2604166667, "30:15"),
        ("[h]:mm:ss", 1.5, "36:00:00"),
        ("[mm]:ss", 0.5, "720:00"),
        ("[ss]", 1 / 1440, "60"),
        ("mm:ss", 61 / 86400, "01:01"),
        ("mm:ss.0", 61.26 / 86400, "01:01.3"),
        ("h:mm:ss", 0.99999999, "0:00:00"),
        ("[h]:mm", -0.5, "-12:00"),
        ("yyyy-mm-dd", DAY, "2026-03-15"),
        ("mm/dd/yyyy", DAY, "2026-03-15"),
        ("dd.mm.yyyy", DAY, "2026-03-15"),
        ("d/m/yy;@", DAY, "2026-03-15"),
        ("dd.mm.yyyy hh:mm", DAY + 0.6041666667, "2026-03-15 14:30"),
        ("ddd dd/mm/yyyy", DAY, "Sun 2026-03-15"),
        ("yyyy-mm-dd h:mm:ss", DAY, "2026-03-15"),
        ("ddd dd/mm/yyyy h:mm", DAY, "Sun 2026-03-15"),
        ("h:mm d/m/yy", DAY, "2026-03-15"),
        ("yyyy-mm-dd h:mm:ss", DAY + 0.25, "2026-03-15 6:00:00"),
        ("d-mmm-yy", DAY, "15-Mar-26"),
        ("mmm yyyy", DAY, "Mar 2026"),
        ("dddd, d. mmmm yyyy", DAY, "Sunday, 15. March 2026"),
        ("[$-F800]dddd, mmmm dd, yyyy", DAY, "Sunday, March 15, 2026"),
        ("mm/yy", DAY, "03/26"),
        ("[$-407]d. mmm", DAY, "15. Mar"),
        ('yyyy"年"m"月"', DAY, "2026年3月"),
        ("mmmmm", DAY, "M"),
        ('[h]" h "mm" min"', 1.25, "30 h 00 min"),
        ("yyyy", 1, "1900"),
        ("d mmm yyyy", 60, "29 Feb 1900"),
        ("d mmm yyyy", 61, "1 Mar 1900"),
        ("d mmm yyyy", 1, "1 Jan 1900"),
        ("d mmm", -1, "-1"),
        ("yyyy-mm-dd", 1e10, "10000000000"),
    ],
)
def test_dates_and_times_are_written_in_their_format(code: str, value: float, text: str) -> None:
    assert format_number(value, code) == text


def test_dates_of_workbooks_that_count_from_1904() -> None:
    assert format_number(0, "yyyy-mm-dd", True) == "1904-01-01"


@pytest.mark.parametrize(("serial", "from_1904"), [(2_958_465.9999999, False), (2_957_004, True)])
def test_dates_after_the_year_9999_stay_numbers(serial: float, from_1904: bool) -> None:
    text = format_number(serial, "yyyy-mm-dd hh:mm:ss", from_1904)
    assert text == f"{serial:.15g}"
    assert format_number(DAY - 1462, "d mmm yyyy", True) == "15 Mar 2026"


@pytest.mark.parametrize(
    ("number", "value", "text"),
    [
        (9, 0.5, "50%"),
        (14, DAY, "2026-03-15"),
        (22, DAY + 0.5, "2026-03-15 12:00"),
        (12, 0.5, "1/2"),
        (20, 0.5, "12:00"),
        (44, -1234.5, "$ (1,234.50)"),
        (43, 0, "-"),
        (46, 1.5, "36:00:00"),
        (37, -5, "(5)"),
        (17, DAY, "Mar-26"),
        (49, 7, "7"),
        (50, DAY, "2026-03-15"),
    ],
)
def test_built_in_formats(number: int, value: float, text: str) -> None:
    assert format_number(value, BUILT_IN[number]) == text


@pytest.mark.parametrize(
    ("code", "text", "shown"),
    [
        ("General", "Ada", "Ada"),
        ('"Dr "@', "Ada", "Dr Ada"),
        ("@", "Ada", "Ada"),
        ("0.00", "Ada", "Ada"),
        ('0;-0;0;"text: "@', "Ada", "text: Ada"),
        (";;;", "Ada", ""),
        ("0;0;0;", "Ada", ""),
        ("yyyy;@", "Ada", "Ada"),
    ],
)
def test_texts_are_written_in_their_format(code: str, text: str, shown: str) -> None:
    assert format_text(text, code) == shown


@given(st.dates(datetime.date(1900, 3, 1), datetime.date(9999, 12, 31)))
def test_serial_numbers_are_the_days_that_datetime_counts(date: datetime.date) -> None:
    serial = (date - datetime.date(1899, 12, 30)).days
    assert format_number(serial, "dd/mm/yyyy") == date.isoformat()


@given(st.integers(-(10**14), 10**14))
def test_thousands_are_separated_as_in_python(number: int) -> None:
    assert format_number(number, "#,##0") == f"{number:,}"
    assert format_number(number, "#,##0;-#,##0") == f"{number:,}"


@given(st.floats(allow_nan=False), st.text(st.sampled_from('0#?.,%/E+-;@"\\[]h:msyd_*$ a<>=1')))
@example(9.999999999999995e27, "0")
@example(1e308, "00.00?")
@example(1e-300, "0." + "0" * 250)
def test_any_number_is_written_in_any_format(value: float, code: str) -> None:
    assert isinstance(format_number(value, code), str)
    assert isinstance(format_text("x", code), str)
