"""Names and sentences that would act where they are not escaped, and a look at what acts in a page."""

from __future__ import annotations

from html.parser import HTMLParser

from markdown_it import MarkdownIt

ATTACKS = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    "[click](javascript:alert(1))",
    "![x](http://evil.example/pixel.png)",
    "| a | b |\n|---|---|\n| c | d |",
    "# Heading\n\n- item",
    "**bold** _it_ ~~gone~~ `code` ``` fence",
    "```\n</code></pre><script>alert(1)</script>",
    "- item",
    "1. item",
    "---\nlicense: other\n---",
    "!!python/object/apply:os.system ['touch x']",
    "{alarms} {title} ${HOME} $(touch x) `touch x`",
    "$$\\href{javascript:alert(1)}{x}$$",
    "\x1b]0;title\x07\x1b[31mred\x1b[0m",
    "name\u202egnp.exe",
    "&lt;script&gt;",
    "<!-- comment",
    "<a href=javascript:alert(1)>x</a>",
)
ACTIVE = {"script", "img", "svg", "iframe", "a", "em", "strong", "s", "h1", "h2", "ul", "ol", "hr", "object", "style"}


class _Acting(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name.startswith("on") or str(value).strip().lower().startswith("javascript:"):
                self.found.append(f"<{tag} {name}={value}>")
        if tag in ACTIVE:
            self.found.append(f"<{tag}>")

    def handle_comment(self, data: str) -> None:
        self.found.append(f"<!--{data}")


def acts(page: str, allowed: tuple[str, ...] = ()) -> list[str]:
    """The elements and attributes of a page that do something."""
    parser = _Acting()
    parser.feed(page)
    own = {"<strong>"} if "<strong>Alarm:</strong>" in page else set()
    return [found for found in parser.found if found not in own | {f"<{tag}>" for tag in allowed}]


def rendered(markdown: str) -> str:
    """As GitHub and the Hub render it: HTML is taken as it is."""
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(markdown)
