r"""The page in another language: a catalogue of gettext (``.po``), in which numbers and names are slots.

The page is written in English. A catalogue gives each sentence in the other language, and a page made with it lists the
sentences that it lacks, as a catalogue ready to be filled in:

    msgid ""
    msgstr ""
    "Language: de\n"
    "X-Decimal: ,\n"
    "X-Group: .\n"

    #, python-brace-format
    msgid "It rests on {1} visits with a count."
    msgstr "Grundlage sind {1} Besuche mit einer Zählung."

    msgctxt "word"
    msgid "Feb"
    msgstr "Februar"

    msgid "Feb"
    msgstr "Feb"

Slots have the number of their place in the English sentence: numbers, dates, months, values in quotes, and names of
species, sites, regions, groups and units. Words that stand in slots are entries with the context ``word``; a month without
it is its short name on an axis. Numbers keep their digits: only the signs for decimals (``X-Decimal``) and thousands
(``X-Group``) change. Entries that a tool marked fuzzy or obsolete do not count.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fedmiss.errors import ConfigError
from fedmiss.progress import note
from fedmiss.report.words import MINUS
from fedmiss.resources import resource

if TYPE_CHECKING:
    from fedmiss.report.findings import Findings

UNTRANSLATED = "untranslated.po"
OWN_SITES = ": own sites of "  # in the title of a group's own page, before its name

_TOKEN = re.compile(r"<(script|style)\b.*?</\1>|<!--.*?-->|<[^>]*>|[^<]+", re.DOTALL)
_SAID = re.compile(r'\b(aria-label|alt|title|placeholder)="([^"]*)"')
_META = re.compile(r'<meta (?:name="description"|property="og:(?:title|description)")')
_SHARED = re.compile(r'\b(content)="([^"]*)"')
_END = re.compile(r"(?<=[.!?])\s+(?=\S)")
_NUMBER = rf"(?<![\w.])[{MINUS}+-]?\d+(?:,\d{{3}})*(?:\.\d+)*(?: × 10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)?(?!\w)"
_DATE = r"(?<![\w.-])\d{4}-\d\d(?:-\d\d)?(?![\w-])"
_QUOTED = r"""(?<![^\s(])(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(?=[;:,.)]|$)"""  # a user's value, where a piece ends
_MONTHS = r"\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\b"
_MONTH = re.compile(_MONTHS)
# other words in slots are names and units that a user gave
_OWN = re.compile(rf"{_MONTHS}|[Bb]irds|[Oo]ccupied sites")
# one letter alone may be a word of a sentence: A site, X not counted
_NAME = re.compile(r"..+|[B-HJ-WYZ]", re.DOTALL)
_SLOT = re.compile(r"\{(\d+)\}")
_FILE = re.compile(r"fedmiss|[\w.-]+(/|\.[a-z]{2,7})")
_COLUMN = re.compile(r"[^=()]+ = [^=]+")  # what an import says of a table: site = plot
_PIECE = re.compile(r": |, |; ")


@dataclass(slots=True)
class Catalog:
    """A translation: sentences by their English, words that stand in slots, and how numbers are written.

    ``missing`` collects the English sentences that a page asked for and that have no translation, in order, ``unknown`` the
    words.
    """

    language: str
    sentences: dict[str, str]
    words: dict[str, str]
    decimal: str = "."
    group: str = ","
    missing: dict[str, None] = field(default_factory=dict)
    unknown: dict[str, None] = field(default_factory=dict)

    def page(self, text: str, names: Iterable[str]) -> str:
        """Return a page (HTML) in the language; what has no translation stays as it is.

        ``names``: names that may stand in sentences: of species, sites, regions, groups, the unit.
        """
        slots = _slots(names)

        def token(found: re.Match[str]) -> str:
            raw = found[0]
            if raw.startswith(("<script", "<style", "<!--")):
                return raw
            if raw.startswith("<"):
                said = _SHARED if _META.match(raw) else _SAID
                raw = said.sub(lambda m: f'{m[1]}="{self._said(m[2], slots, quote=True)}"', raw)
                return re.sub(r'(<html\b[^>]*\blang=)"[^"]*"', rf'\1"{self.language}"', raw)
            return self._said(raw, slots, quote=False)

        return _TOKEN.sub(token, text)

    def _said(self, raw: str, slots: re.Pattern[str], *, quote: bool) -> str:
        """One piece of text as it stands in the page, escaped; unchanged where nothing of it is translated."""
        text = html.unescape(raw)
        core = text.strip()
        if not core:
            return raw
        flat = re.sub(r"\s+", " ", core)
        new = " ".join(self._sentence(sentence, slots) for sentence in _sentences(flat, slots))
        if new == flat:
            return raw
        start = text.index(core)
        return html.escape(text[:start] + new + text[start + len(core) :], quote=quote)

    def _sentence(self, text: str, slots: re.Pattern[str]) -> str:
        # a month alone stands on an axis, where its whole name has no room: the catalogue may have a short one
        short = self.sentences.get(text) if _MONTH.fullmatch(text) else None
        other = short or self._other(text, slots)
        if other is None:  # "Classes: 3 stable, 2 uncertain." is made of pieces, in any number
            pieces = _pieces(text.removesuffix("."), slots)
            parts = [
                piece if i % 2 else self._other(piece, slots) or (_COLUMN.fullmatch(piece) and piece)
                for i, piece in enumerate(pieces)
            ]
            if len(parts) > 1 and all(parts):
                return "".join(map(str, parts)) + "." * text.endswith(".")
            english, values = _english(text, slots)
            self.missing[english] = None
            for value in values:
                self._list(value, slots)  # what it lacks is listed too
        return text if other is None else other

    def _other(self, text: str, slots: re.Pattern[str]) -> str | None:
        """The translation of a sentence with its values in place; None if there is none."""
        if _FILE.fullmatch(text):
            return text
        english, values = _english(text, slots)
        if not re.search(r"[^\W\d_]", _SLOT.sub("", english)):  # numbers, names, signs
            other = english
        elif not (other := self.sentences.get(english, "")):
            return None
        return _SLOT.sub(lambda m: self._list(values[int(m[1]) - 1], slots), other)

    def _list(self, text: str, slots: re.Pattern[str]) -> str:
        """What stands in a slot: one value, or several with commas."""
        text = slots.sub(lambda m: "\0".join(("", self._value(m[0]), "")), text)
        return "".join(
            part if i % 2 else re.sub(r"(?<= )and(?= )", lambda m: self._word(m[0]), part)
            for i, part in enumerate(text.split("\0"))
        )

    def _value(self, text: str) -> str:
        if re.fullmatch(_NUMBER, text) and text.count(".") < 2:  # two dots: a version number
            return "".join({",": self.group, ".": self.decimal}.get(letter, letter) for letter in text)
        return self._word(text) if _OWN.fullmatch(text) else self.words.get(text, text)

    def _word(self, text: str) -> str:
        if text not in self.words:
            self.unknown[text] = None
        return self.words.get(text, text)

    def write_missing(self, path: Path) -> None:
        """Write the words and sentences that have no translation, as a catalogue to be filled in."""
        head = {
            "Language": self.language,
            "MIME-Version": "1.0",
            "Content-Type": "text/plain; charset=UTF-8",
            "Content-Transfer-Encoding": "8bit",
        }
        lacking = [Entry(word, "", "word") for word in self.unknown] + [
            Entry(text, "") for text in self.missing
        ]
        path.write_text(write_po(lacking, head), encoding="utf-8")


def _slots(names: Iterable[str]) -> re.Pattern[str]:
    known = sorted(
        {name.strip() for name in names if _NAME.fullmatch(name.strip()) and not name.strip().isdigit()},
        key=lambda n: (-len(n), n),
    )
    parts = [rf"(?<!\w){re.escape(name)}(?!\w)" for name in known]
    return re.compile("|".join([_QUOTED, *parts, _DATE, _NUMBER, _MONTHS]))


def _english(text: str, slots: re.Pattern[str]) -> tuple[str, list[str]]:
    """A sentence with slots for its values, and the values; values with nothing but commas between them are one."""
    ends: list[list[int]] = []
    for match in slots.finditer(text):
        if ends and text[ends[-1][1] : match.start()] in (", ", " and ", ", and "):
            ends[-1][1] = match.end()
        else:
            ends.append([match.start(), match.end()])
    out, at = "", 0
    for i, (start, end) in enumerate(ends, start=1):
        out, at = f"{out}{text[at:start]}{{{i}}}", end
    return out + text[at:], [text[start:end] for start, end in ends]


def _pieces(text: str, slots: re.Pattern[str]) -> list[str]:
    """Cut a text at its colons, commas and semicolons, which stand between the pieces, but never inside a name."""
    return _cut(text, slots, _PIECE, lambda end, begins: True)


def _sentences(text: str, slots: re.Pattern[str]) -> list[str]:
    """Cut a text after the end of each sentence, never inside a name; one may begin with a name in small initials."""
    return _cut(
        text, slots, _END, lambda end, begins: text[end].isupper() or text[end] == "{" or end in begins
    )[::2]


def _cut(
    text: str, slots: re.Pattern[str], marks: re.Pattern[str], cuts: Callable[[int, set[int]], bool]
) -> list[str]:
    """Parts with the marks between them; ``cuts`` says of the end of a mark, and of where names begin, whether it is one."""
    inside = [match.span() for match in slots.finditer(text)]
    begins = {begin for begin, _ in inside}
    out, start = [], 0
    for match in marks.finditer(text):
        if cuts(match.end(), begins) and not any(begin <= match.start() < end for begin, end in inside):
            out += [text[start : match.start()], match[0]]
            start = match.end()
    return [*out, text[start:]]


def languages() -> list[str]:
    """Return the languages that fedmiss brings along, as browsers know them."""
    return sorted(path.stem for path in resource("reports", "languages").glob("*.po"))


def known_language(name: str) -> None:
    """Refuse a name that is no language of fedmiss's own, in the words for a catalogue that is not there.

    Raises ConfigError: no such language.
    """
    if name not in languages():
        raise _no_catalog(name)


def _no_catalog(path: str | Path) -> ConfigError:
    return ConfigError(
        f"--language: there is no file {path}; fedmiss itself has {', '.join(languages())}. Begin with a copy of "
        "one, or with a .po file whose header says its Language."
    )


def read_catalog(name: str | Path) -> Catalog:
    """Read a catalogue: one of :func:`languages`, or a ``.po`` file.

    Raises ConfigError: no such file, no ``.po`` file, no language, a slot that the English sentence has not.
    """
    path = Path(name)
    if str(name) in languages():
        path = resource("reports", "languages", f"{name}.po")
    try:
        entries = list(parse_po(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise _no_catalog(path) from None
    except (ValueError, OSError) as error:
        raise ConfigError(f"--language: {path} cannot be read as a .po file: {error}.") from None
    said = next((entry.other for entry in entries if not entry.english and not entry.context), "")
    head = dict(line.split(": ", 1) for line in said.splitlines() if ": " in line)
    language = head.get("Language", "").replace("_", "-")
    if not re.fullmatch(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*", language):
        raise ConfigError(
            f'--language: the header of {path} must say its language as browsers know it, such as "Language: de\\n".'
        )
    for entry in entries:
        strange = set(_SLOT.findall(entry.other)) - set(_SLOT.findall(entry.english))
        if strange and entry.english:
            raise ConfigError(
                f"--language: {path}, line {entry.line}: the translation of {entry.english!r} has the slot "
                f"{{{min(strange)}}}, which the English sentence has not."
            )
    known = [entry for entry in entries if entry.english and entry.other]
    return Catalog(
        language,
        {entry.english: entry.other for entry in known if not entry.context},
        {entry.english: entry.other for entry in known if entry.context == "word"},
        head.get("X-Decimal", "."),
        head.get("X-Group", ","),
    )


# -- catalogues of gettext as text; no plurals, since numbers are slots --------------------------------------


_LINE = re.compile(r'(msgctxt|msgid|msgstr)?\s*"((?:[^"\\]|\\.)*)"')
_ESCAPED = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}


def translated(page: str, language: str | None, names: Iterable[str], folder: Path) -> str:
    """Translate a page, if it has a language; write what has no translation beside it, into ``folder``."""
    if language is None:
        return page
    catalog = read_catalog(language)
    page = catalog.page(page, names)
    if n := len(catalog.missing) + len(catalog.unknown):
        catalog.write_missing(folder / UNTRANSLATED)
        lacking = (
            "1 sentence or word of the page has" if n == 1 else f"{n} sentences and words of the page have"
        )
        note(f"{lacking} no translation; see {UNTRANSLATED} beside it.")
    return page


def names_of(findings: Findings) -> list[str]:
    """Names on every page: of the species, what was counted, what is known of the sites."""
    return [
        findings.species,
        findings.common_name,
        # of presence the unit of the totals is another than that of the counts
        *(
            name
            for unit in ("birds", findings.unit, findings.settings.unit)
            for name in (unit, unit.capitalize())
        ),
        *findings.data.fact("site_covariates", default=[]),
    ]


@dataclass(frozen=True, slots=True)
class Entry:
    """One sentence: its English, its translation (a blank if there is none), its context, and its line in the file."""

    english: str
    other: str
    context: str = ""
    line: int = 0


def parse_po(text: str) -> Iterator[Entry]:
    """Read the entries of a catalogue, in order; the header is the entry with a blank English.

    Raises ValueError: a line that no catalogue has; the message names it.
    """
    parts: dict[str, str] = {}
    word, fuzzy, begun = "", False, 0
    for number, raw in enumerate([*text.removeprefix("\ufeff").splitlines(), ""], start=1):
        line = raw.strip()
        starts = line.startswith(("msgctxt", "msgid")) and "msgstr" in parts
        if "msgstr" in parts and (starts or not line or line.startswith("#")):
            if not fuzzy:
                yield Entry(parts.get("msgid", ""), parts["msgstr"], parts.get("msgctxt", ""), begun)
            parts, word, fuzzy, begun = {}, "", False, 0
        if not line or line.startswith("#"):
            fuzzy = fuzzy or (line.startswith("#,") and "fuzzy" in line)
            continue
        found = _LINE.fullmatch(line)
        if found is None or not (found[1] or word):
            raise ValueError(f"line {number} is {line[:60]!r}, which no .po file has")
        word, begun = found[1] or word, begun or number
        parts[word] = parts.get(word, "") + re.sub(r"\\(.)", lambda m: _ESCAPED.get(m[1], m[1]), found[2])
    if parts:
        raise ValueError(f"the last entry (line {begun}) has no msgstr")


def write_po(entries: Iterable[Entry], head: dict[str, str]) -> str:
    """Return a catalogue as text, with its header."""
    header = "".join(f"{key}: {value}\n" for key, value in head.items())
    out = ['msgid ""\nmsgstr ""\n' + "".join(f"{_quoted(line)}\n" for line in header.splitlines(True))]
    for entry in entries:
        flag = "#, python-brace-format\n" if "{1}" in entry.english else ""
        context = f"msgctxt {_quoted(entry.context)}\n" if entry.context else ""
        out.append(f"{flag}{context}msgid {_quoted(entry.english)}\nmsgstr {_quoted(entry.other)}\n")
    return "\n".join(out)


def _quoted(text: str) -> str:
    for sign, word in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\t", "\\t")):
        text = text.replace(sign, word)
    return f'"{text}"'
