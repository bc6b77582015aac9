import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from opguard.report.text import clean, grid, plural, render, section


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("aten.mul.Tensor", "aten.mul.Tensor"),
        ("modèle/блок", "modèle/блок"),
        ("a\x1b[31mred", "a\\x1b[31mred"),
        ("two\nlines\r\ttab", "two\\nlines\\r\\ttab"),
        ("bell\x07null\x00", "bell\\x07null\\x00"),
        ("right\u202eto left", "right\\u202eto left"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("lone\udcff", "lone\\udcff"),
        ("line\u2028paragraph\u2029", "line\\u2028paragraph\\u2029"),
    ],
)
def test_what_could_steer_a_terminal_is_escaped(text, shown):
    assert clean(text) == shown


def test_long_names_are_cut_and_the_rest_is_counted():
    assert clean("x" * 10_000) == "x" * 400 + "… (9,600 more characters)"
    assert clean("x" * 400) == "x" * 400


@given(st.text())
def test_clean_text_is_one_printable_line(text):
    shown = clean(text)
    assert len(shown.splitlines()) <= 1
    assert "\x1b" not in shown
    shown.encode("utf-8")


def test_markup_and_emoji_codes_are_text():
    text = render([Text("[red]a[/red] :smile:"), grid([("[b]", "[link=x]y[/link]")])], 80, True)
    assert "[red]a[/red] :smile:" in text
    assert "[link=x]y[/link]" in text


def test_plain_text_has_no_escape_sequences_and_fits():
    rows = [("label", "word " * 40), ("", "y" * 200)]
    text = render(section("Title", rows), 50, False)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 50
    assert text.replace(" ", "").count("y") == 200
    assert not any(line.endswith(" ") for line in text.splitlines())


def test_a_section_without_rows_is_nothing():
    assert list(section("Title", [])) == []


def test_an_unwrapped_line_stays_whole():
    line = "first divergent op: " + "o" * 200
    assert render([Text(line, no_wrap=True)], 40, False) == line + "\n"


def test_width_is_kept_between_its_bounds():
    words = Text("word " * 100)
    widths = {
        asked: max(map(len, render([words], asked, False).splitlines())) for asked in (1, 999)
    }
    assert widths[1] <= 40
    assert 100 < widths[999] <= 120


def test_plural():
    assert [plural(n, "pair") for n in (0, 1, 2000)] == ["0 pairs", "1 pair", "2,000 pairs"]
