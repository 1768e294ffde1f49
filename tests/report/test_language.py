"""The page in another language: what the file has is said in it, what it lacks is listed, and no number is lost."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace

import pytest

from fedmiss.errors import ConfigError
from fedmiss.report.build import build_report
from fedmiss.report.language import UNTRANSLATED, Catalog, read_catalog
from fedmiss.report.settings import ReportSettings

from .page import NUMBER, Page

DATE = ReportSettings(date="2026-01-02")


def catalog(**more) -> Catalog:
    return Catalog("de", more.pop("sentences", {}), more.pop("words", {}), **more)


def test_numbers_names_and_months_are_slots_and_take_their_place():
    c = catalog(
        sentences={
            "At {1} {2} of {3} {4} were seen in {5}.": "Im {5} wurden in {1} {2} von {3} {4} gesehen."
        },
        words={"Feb": "Februar", "birds": "Vögeln"},
        decimal=",",
        group=".",
    )
    page = '<html lang="en"><p>At Pond 7 &amp; Mill 1,203.5 of −2,000 birds were seen in Feb. All well.</p></html>'
    said = c.page(page, ["Pond 7 & Mill", "Pond", "birds"])
    assert said == (
        '<html lang="de"><p>Im Februar wurden in Pond 7 &amp; Mill 1.203,5 von −2.000 Vögeln gesehen. All well.</p></html>'
    )
    assert list(c.missing) == ["All well."]


def test_what_is_not_text_is_left_alone():
    c = catalog(sentences={"Sites": "Orte"}, decimal=",")
    page = '<style>p{top:1.5em}</style><script>x = "Sites"</script><!-- Sites --><path d="M 1.5"/><b title="Sites">0.2.0</b>'
    assert c.page(page, []) == page.replace('title="Sites"', 'title="Orte"')
    assert not c.missing


@pytest.mark.nightly
@pytest.mark.slow
def test_a_file_that_has_every_sentence_leaves_nothing_english(folders, tmp_path):
    plain = build_report(**folders, out=tmp_path / "plain", settings=DATE).read_text(encoding="utf-8")
    start = tmp_path / "xx.toml"
    start.write_text('language = "en"\n', encoding="utf-8")
    settings = replace(DATE, language=str(start))
    page = build_report(**folders, out=tmp_path / "none", settings=settings)
    assert page.read_text(encoding="utf-8") == plain, "an empty file changes no byte"
    lacking = tomllib.loads((page.parent / UNTRANSLATED).read_text(encoding="utf-8"))["sentences"]
    assert len(lacking) > 100
    lines = [f"{quoted(s)} = {quoted('«' + s + '»')}" for s in lacking]
    start.write_text('language = "en"\n[sentences]\n' + "\n".join(lines), encoding="utf-8")
    page = build_report(**folders, out=tmp_path / "all", settings=settings)
    assert not (page.parent / UNTRANSLATED).exists()
    text = page.read_text(encoding="utf-8")
    assert numbers(text) == numbers(plain)
    assert text.count("«") > 100


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def numbers(text: str) -> list[str]:
    return [n for _, block in Page(text).blocks for n in re.findall(NUMBER, block)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no file"),
        ("language = ", "cannot be read as TOML"),
        ('language = "German!"', "language as browsers know it"),
        ('language = "de"\nwoerter = 3', "woerter"),
        ('language = "de"\n[sentences]\n"{1} sites" = "{2} Orte"', r"slot \{2\}"),
        ('language = "de"\n[words]\nFeb = 2', "no text"),
    ],
)
def test_a_bad_file_is_refused_before_anything_is_made(folders, tmp_path, content, said):
    path = tmp_path / "de.toml"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        read_catalog(path)
    with pytest.raises(ConfigError, match=said):
        build_report(**folders, out=tmp_path / "report", settings=replace(DATE, language=str(path)))
    assert not (tmp_path / "report").exists()
