"""Text of others is shown as text: in Markdown, in HTML and on a terminal."""

import html
import re

import pytest
from attacks import ATTACKS, acts, rendered

from hf_focalcse.runs.escaping import code_block, code_span, escape_html, escape_markdown, escape_terminal
from hf_focalcse.runs.tables import Table


@pytest.mark.parametrize("text", ATTACKS)
def test_markdown_shows_it_as_text(text):
    for made in (
        escape_markdown(text),
        f"| a |\n| --- |\n| {escape_markdown(text)} |",
        f"> **Alarm:** {escape_markdown(text)}",
    ):
        assert acts(rendered(made)) == []
    shown = html.unescape(re.sub("<[^>]+>", "", rendered(escape_markdown(text)))).strip()
    if text.isascii() and not re.search("[\x00-\x09\x0b-\x1f]", text):
        assert shown == " ".join(text.split())


@pytest.mark.parametrize("text", ATTACKS)
def test_code_stays_code(text):
    for made in (code_span(text), code_block(text, "bash"), f"| a |\n| --- |\n| {code_span(text)} |"):
        page = rendered(made)
        assert acts(page) == [] and page.count("<code") == 1


@pytest.mark.parametrize("text", ATTACKS)
def test_html_and_a_terminal_show_it_as_text(text):
    assert acts(f"<p>{escape_html(text)}</p><p title='{escape_html(text)}'>x</p>") == []
    assert escape_terminal(text).isprintable()
    table = Table(["name", text], [[text, "1"]], caption=text, notes=[text])
    assert all(line.isprintable() for line in table.plain().splitlines())
    assert acts(rendered(table.markdown())) == []


def test_names_as_people_give_them_stay_as_they_are():
    for text in ("all-MiniLM-L6-v2", "--learning_rate 1e-05", "focal_m0.3_seed-1", "STS12 (MSRpar), 1.5 %"):
        assert escape_markdown(text).lstrip("\\") == text
