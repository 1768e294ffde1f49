"""Take a page apart: every piece of text that a reader meets, and every table, to set them against the CSV files."""

import math
import re
from html.parser import HTMLParser

NUMBER = r"(?:less than )?[−+-]?\d[\d,]*(?:\.\d+)?(?: × 10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)?"
_DOWN = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹−", "-0123456789-")
_INLINE = {"b", "i", "a", "span", "code", "tspan", "button", "label", "option", "select", "input", "br"}
_SAID = ("aria-label", "alt", "title", "content", "placeholder")
_VOID = {"meta", "link", "input", "img", "br", "hr", "path", "use", "line", "circle", "rect", "polyline"}


class Page(HTMLParser):
    """``blocks``: (tag, text) of every piece of text and of every attribute that is read aloud; ``tables``: caption -> rows.

    A row is a list of ``(text, data-sort)``; the first row is the head. Style and script are left out.
    """

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[tuple[str, str]] = []
        self.tables: dict[str, list[list[tuple[str, str | None]]]] = {}
        self._stack: list[str] = []
        self._text, self._sort = "", None
        self._rows: list[list[tuple[str, str | None]]] | None = None
        self._caption = ""
        self.feed(html)
        self._flush("body")

    def _flush(self, tag: str) -> None:
        text, self._text = re.sub(r"\s+", " ", self._text).strip(), ""
        if not text or {"style", "script"} & set(self._stack):
            return
        if self._rows is not None and tag in ("th", "td"):
            self._rows[-1].append((text, self._sort))
        else:
            self.blocks.append((tag, text))

    def handle_starttag(self, tag, attrs):
        said = dict(attrs)
        if tag == "meta" and said.get("name") == "viewport":
            return
        for name in _SAID:
            if said.get(name) and not (tag == "meta" and "http-equiv" in said):
                self.blocks.append((f"{tag}[{name}]", said[name]))
        if tag in _INLINE:
            return
        self._flush(self._stack[-1] if self._stack else "body")
        if tag == "table":
            self._rows = []
        elif tag == "tr" and self._rows is not None:
            self._rows.append([])
        elif tag in ("td", "th"):
            self._sort = said.get("data-sort")
        if tag not in _VOID:
            self._stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in _VOID and tag not in _INLINE:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        if tag in _INLINE or tag not in self._stack:
            return
        if tag == "caption":
            self._caption = re.sub(r"\s+", " ", self._text).strip()
        if tag in ("td", "th") and not self._text.strip() and self._rows:
            self._rows[-1].append(("", self._sort))
        self._flush(tag)
        if tag == "table" and self._rows is not None:
            self.tables[self._caption] = self._rows
            self._rows = None
        while self._stack.pop() != tag:
            pass

    def handle_data(self, data):
        self._text += data


def value_of(printed: str) -> float:
    """Return the number that a text prints."""
    text = printed.removeprefix("less than ").replace(",", "").replace(" × 10", "e").translate(_DOWN)
    return float(text)


def agrees(printed: str, value: float, *, whole: bool = False) -> bool:
    """Return True when ``printed`` is ``value`` rounded as printed (3 significant digits at the least; whole: exact).

    CSV files have six significant digits, so half a unit of the last printed digit is taken a thousandth wider.
    """
    if value is None or not math.isfinite(value):
        return False
    shown = value_of(printed)
    if printed.startswith("less than "):
        return 0 < value < shown
    if whole:
        return shown == value
    mantissa = printed.split(" × ")[0]
    decimals = len(mantissa.split(".")[1]) if "." in mantissa else 0
    unit = 10.0**-decimals
    if " × 10" in printed:
        unit *= 10.0 ** int(printed.split(" × 10")[1].translate(_DOWN))
    elif decimals == 0 and abs(shown) >= 1000:
        unit = 10.0 ** (len(str(int(abs(shown)))) - 3)
    return abs(shown - value) <= 0.5 * unit * 1.01 + 1e-6 * abs(value)


class Sentences:
    """Sentences with slots: ``{name}`` is a number of the tables, ``{#name}`` exactly so, ``{*name}`` a list of years.

    ``{_}`` stands for words without a digit, ``{~}`` for names, which may have some, but no bracket.
    """

    def __init__(self, sentences, values):
        self.values = values
        self._known = [self._compile(s) for s in sentences]
        self.met: set[str] = set()

    @staticmethod
    def _compile(sentence):
        parts, names = [], []
        for piece in re.split(r"(\{[^}]+\})", sentence):
            if not piece.startswith("{"):
                parts.append(re.escape(piece))
            elif piece == "{_}":
                parts.append(r"[^\d]*?")
            elif piece == "{~}":
                parts.append(r"[^()]*?")
            else:
                names.append(piece[1:-1])
                many = r"((?:\d{4}|, | and |\.\.\.)+)"
                parts.append(many if names[-1].startswith("*") else f"({NUMBER})")
        return sentence, re.compile("".join(parts)), names

    def left(self, text: str) -> str:
        """Return what is left of a text when every sentence whose numbers agree is taken out; raise where one does not."""
        for sentence, pattern, names in self._known:
            for found in list(pattern.finditer(text)):
                wrong = [n for n, g in zip(names, found.groups(), strict=True) if not self._agrees(n, g)]
                assert not wrong, (
                    f"{found[0]!r}: {wrong} is {[self.values.get(w.lstrip('#*')) for w in wrong]}"
                )
                self.met.add(sentence)
                text = text.replace(found[0], " ", 1)
        return text

    def _agrees(self, name, printed):
        value = self.values.get(name.lstrip("#*"), math.nan)
        if name.startswith("*"):
            years = [int(y) for y in re.findall(r"\d{4}", printed)]
            return years == list(value)[: len(years)] and (len(years) == len(value) or "..." in printed)
        return agrees(printed, value, whole=name.startswith("#"))
