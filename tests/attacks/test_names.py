"""Names as nobody should choose them: sites, regions, observers and species, from the table to the report."""

import csv
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedmiss.etl.ingest import IngestSettings, ingest
from fedmiss.etl.panel import PanelSettings, make_panel
from fedmiss.files import read_manifest
from fedmiss.group_names import group_folders
from fedmiss.pipeline.fitting import fit_panel
from fedmiss.pipeline.imputing import impute_panel
from fedmiss.pipeline.settings import FitSettings
from fedmiss.report.analysis import ReportSettings
from fedmiss.report.build import build_report
from tests.attacks.command import number

pytestmark = pytest.mark.slow
ALWAYS = [
    "..", ".", "../../etc/passwd", "a/b", "a\\b", "C:\\x", "~", "$HOME", "`id`", "$(id)", "CON", "nul.txt", "Ä", "Ö", "東京",
    "عربي", "\u202eevil", "e\u0301", "\u00e9", "=1+1", "+A1", "-A1", "@SUM(A1)", "<script>alert(1)</script>",
    '"><img src=x>', "$x_{", "$", "\\frac", "{{ 7*7 }}", "{% raw %}", "%s%n", "%2e%2e", "NaN", "NA x", "null", "0", "1e999",
    "x" * 300, "é" * 200, "a\tb", "a;b", "a,b", 'a"b', "a'b", "blank  inside", "😀", "ﬀ", "İ", "ß", "SS", "north", "North",
    "unknown", "All", "manifest.json", "a\x1b[31mb",
]  # fmt: skip
B = "Ciconia $x$ <b>=1"
SIGNS = list("abcXYZ 0129.-_~/\\:*?\"'<>|$%&@=+#{}[]()`^;,!äßé東ع😀")


def names(n: int) -> list[str]:
    """Return n different names, the worst ones first, without blanks around them (those are no part of a name)."""
    rng = np.random.default_rng(2026)
    out = dict.fromkeys(name.strip() for name in ALWAYS)
    while len(out) < n:
        out["".join(rng.choice(SIGNS, int(rng.integers(1, 24)))).strip() or "x"] = None
    return list(out)[:n]


@pytest.fixture(scope="module")
def chain(tmp_path_factory) -> tuple[Path, list[str]]:
    root, hostile = tmp_path_factory.mktemp("names"), names(200)
    rows = [
        {"who": f"{name}|{k % 2}", "plot": name, "region": name, "day": f"{2015 + k}-05-1{k}", "n": (i + k) % 5, "bird": B}
        for i, name in enumerate(hostile)
        for k in range(4)
    ]  # fmt: skip
    pl.DataFrame(rows).write_csv(root / "t.csv")
    columns = {
        "observer": "who", "site": "plot", "date": "day", "count": "n", "region": "region", "species": "bird",
    }  # fmt: skip
    ingest(
        [root / "t.csv"],
        root / "records",
        IngestSettings(column_map=columns, spellings="apart"),
        keep_cache=False,
    )
    make_panel(root / "records", root / "panel", PanelSettings(group_by="region", sites="all"))
    fit_panel(root / "panel", root / "fit", FitSettings(model="quasi", rank="0", bootstrap=number(50, 10)))
    impute_panel(root / "panel", root / "fit", root / "imputed")
    build_report(
        root / "panel", root / "fit", root / "imputed", root / "report", ReportSettings(date="2026-01-01")
    )
    return root, hostile


def test_every_name_keeps_its_visits_and_its_own_group(chain):
    root, hostile = chain
    assert {p.name for p in root.iterdir()} == {"t.csv", "records", "panel", "fit", "imputed", "report"}
    sites = pl.read_parquet(root / "panel" / "sites.parquet")
    assert sorted(sites["site_id"]) == sorted(hostile)
    for name, folder in group_folders(hostile).items():
        visits = pl.read_parquet(root / "panel" / "groups" / folder / "visits.parquet")
        assert visits.height == 4
        assert set(visits["observer_id"]) == {f"{name}|0", f"{name}|1"}
    assert len(list((root / "panel" / "groups").iterdir())) == len(hostile)
    for folder in ("records", "panel", "fit", "imputed", "report"):
        read_manifest(root / folder, verify=True)


def test_nothing_in_the_report_runs(chain):
    root, _ = chain
    page = (root / "report" / "index.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "<img src=x>" not in page
    assert "<b>=1" not in page
    cells = 0
    for path in (root / "report").rglob("*.csv"):
        with open(path, encoding="utf-8", newline="") as stream:
            for row in csv.reader(stream):
                for cell in row:
                    cells += 1
                    assert not re.match(r"[=+@\t\r]|-(?![\d.]|inf|nan|$)", cell) or _number(cell), (
                        path,
                        cell,
                    )
    assert cells > 1000


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
