"""The page in another language: a file of its sentences, in which numbers and names are slots.

The page is written in English. A translation file (TOML) gives each sentence in the other language, and a page made with it
lists the sentences that it lacks, ready to be filled in:

    language = "de"
    decimal = ","
    group = "."
    [sentences]
    "It rests on {1} visits with a count" = "Grundlage sind {1} Besuche mit einer Zählung"
    [words]
    "Feb" = "Februar"

Slots have the number of their place in the English sentence: numbers, months, and names of species, sites, regions, groups
and units. Words that stand in slots are translated by ``words``.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from fedmiss.errors import ConfigError
from fedmiss.parsing import parse_toml
from fedmiss.report.words import MINUS

__all__ = ["UNTRANSLATED", "Catalog", "read_catalog"]

UNTRANSLATED = "untranslated.toml"

_TOKEN = re.compile(r"<(script|style)\b.*?</\1>|<!--.*?-->|<[^>]*>|[^<]+", re.DOTALL)
_SAID = re.compile(r'\b(aria-label|alt|title|placeholder)="([^"]*)"')
_META = re.compile(r'<meta (?:name="description"|property="og:(?:title|description)")')
_SHARED = re.compile(r'\b(content)="([^"]*)"')
_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z{])")
_NUMBER = rf"(?<![\w.])[{MINUS}+-]?\d+(?:,\d{{3}})*(?:\.\d+)*(?!\w)"
_MONTHS = r"\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\b"
_SLOT = re.compile(r"\{(\d+)\}")


@dataclass(slots=True)
class Catalog:
    """A translation: sentences by their English, words that stand in slots, and how numbers are written.

    ``missing`` collects the English sentences that a page asked for and that have no translation, in order.
    """

    language: str
    sentences: dict[str, str]
    words: dict[str, str]
    decimal: str = "."
    group: str = ","
    missing: dict[str, None] = field(default_factory=dict)

    def page(self, text: str, names: Iterable[str]) -> str:
        """Return a page (HTML) in the language; what has no translation stays as it is.

        Parameters
        ----------
        names : names that may stand in sentences: of species, sites, regions, groups, the unit
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
        new = " ".join(self._sentence(s, slots) for s in _sentences(flat, slots))
        if new == flat:
            return raw
        start = text.index(core)
        return html.escape(text[:start] + new + text[start + len(core) :], quote=quote)

    def _sentence(self, text: str, slots: re.Pattern[str]) -> str:
        found = [m[0] for m in slots.finditer(text)]
        count = iter(range(1, len(found) + 1))
        english = slots.sub(lambda m: f"{{{next(count)}}}", text)
        values = [self._value(v) for v in found]
        if not re.search(r"[^\W\d_]", _SLOT.sub("", english)):  # numbers, names and signs only
            other = english
        elif not (other := self.sentences.get(english, "")):
            self.missing[english] = None
            return text
        return _SLOT.sub(lambda m: values[int(m[1]) - 1], other)

    def _value(self, text: str) -> str:
        if re.fullmatch(_NUMBER, text) and text.count(".") < 2:  # two dots: a version number
            return "".join({",": self.group, ".": self.decimal}.get(c, c) for c in text)
        return self.words.get(text, text)

    def write_missing(self, path: Path) -> None:
        """Write the sentences that have no translation, ready to be filled in."""
        lines = [
            f"# Sentences without a translation. Fill in, and move to the [sentences] of the file for {self.language}."
        ]
        lines += ["[sentences]", *(f'{_quoted(s)} = ""' for s in self.missing)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _slots(names: Iterable[str]) -> re.Pattern[str]:
    known = sorted(
        {n.strip() for n in names if len(n.strip()) > 1 and not n.strip().isdigit()},
        key=lambda n: (-len(n), n),
    )
    parts = [rf"(?<!\w){re.escape(n)}(?!\w)" for n in known]
    return re.compile("|".join([*parts, _NUMBER, _MONTHS]))


def _sentences(text: str, slots: re.Pattern[str]) -> list[str]:
    """Cut a text after the end of each sentence, never inside a name."""
    inside = [m.span() for m in slots.finditer(text)]
    out, start = [], 0
    for m in _END.finditer(text):
        if not any(a < m.start() < b for a, b in inside):
            out.append(text[start : m.start()])
            start = m.end()
    return [*out, text[start:]]


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def read_catalog(path: str | Path) -> Catalog:
    """Read a translation file.

    Raises
    ------
    ConfigError    no such file, not TOML, an unknown key, a translation with a slot that its English sentence has not
    """
    try:
        raw = parse_toml(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f'--language: there is no file {path}. Begin with one line: language = "de"'
        ) from None
    except (ValueError, OSError) as error:
        raise ConfigError(f"--language: {path} cannot be read as TOML: {error}.") from None
    known = {"language": str, "decimal": str, "group": str, "sentences": dict, "words": dict}
    for key, value in raw.items():
        if not isinstance(value, known.get(key, ())):
            raise ConfigError(
                f"--language: {path} has {key} = {str(value)[:40]!r}; it may have {', '.join(known)}; the last two "
                "are tables."
            )
    if not re.fullmatch(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*", raw.get("language", "")):
        raise ConfigError(
            f'--language: {path} must say its language as browsers know it, such as language = "de".'
        )
    for table in ("sentences", "words"):
        for english, other in raw.get(table, {}).items():
            if not isinstance(other, str):
                raise ConfigError(f"--language: {path}: the translation of {english!r} is no text.")
            strange = set(_SLOT.findall(other)) - set(_SLOT.findall(english))
            if strange:
                raise ConfigError(
                    f"--language: {path}: the translation of {english!r} has the slot {{{min(strange)}}}, which the English "
                    "sentence has not."
                )
    return Catalog(
        raw["language"],
        raw.get("sentences", {}),
        raw.get("words", {}),
        raw.get("decimal", "."),
        raw.get("group", ","),
    )
