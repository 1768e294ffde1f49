"""Laws of the panel: groups, axes, observed-index sets, whatever the records are."""

import re
from collections.abc import Iterable
from datetime import date, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmiss.errors import ConfigError, InputError
from fedmiss.etl.ingest import IngestSettings, ingest
from fedmiss.etl.months import month_axis, panel_months
from fedmiss.etl.panel import PanelSettings, assign_groups, make_panel
from fedmiss.files import MANIFEST, SECRET, read_manifest
from fedmiss.group_names import group_folders, group_name
from fedmiss.pipeline.panels import open_panel
from tests.folders import content

VISIT = st.tuples(
    st.integers(0, 5),  # observer
    st.integers(0, 4),  # site
    st.dates(date(2018, 1, 1), date(2020, 12, 31)),
    st.sampled_from(["0", "0", "1", "3", "12", "X"]),
)


def ingested(folder: Path, header: str, rows: Iterable[Iterable[object]], **more: object) -> Path:
    """Ingest a plain table whose columns have familiar names."""
    folder.mkdir(parents=True)
    lines = [header, *(",".join(map(str, row)) for row in rows)]
    (folder / "t.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    settings = IngestSettings(column_map={"auto": ""}, **more)  # type: ignore[arg-type]
    ingest([folder / "t.csv"], folder / "records", settings, keep_cache=False)
    return folder / "records"


def records(folder: Path, rows: list[tuple[int, int, date, str]], step: int = 1) -> Path:
    """Ingest visits, the last first where ``step`` is -1."""
    written = [(f"o{o}", f"s{s}", d, c, f"v{k}", "AB"[s % 2]) for k, (o, s, d, c) in enumerate(rows)][::step]
    return ingested(folder, "observer,site,date,count,visit,region", written, species=("Wood Stork",))


def panel(records: Path | list[Path], out: Path, **more: object) -> Path:
    return make_panel(records, out, PanelSettings(**{"sites": "all", **more}))  # type: ignore[arg-type]


def table(folder: Path, name: str) -> pl.DataFrame:
    """A table of all groups, with the group of each row."""
    return pl.concat(
        [pl.read_parquet(g / f"{name}.parquet").with_columns(group=pl.lit(g.name)) for g in groups(folder)]
    )


def visits(folder: Path) -> pl.DataFrame:
    return table(folder, "visits")


def groups(folder: Path) -> list[Path]:
    return sorted((folder / "groups").iterdir())


ROWS = [
    (k % 6, (k * k) % 5, date(2018, 1, 1) + timedelta(days=17 * k % 1000), ("0", "2", "X", "0", "7")[k % 5])
    for k in range(60)
]
SUMS = ["n_visits", "n_counted", "n_detected", "count_sum"]


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.lists(VISIT, min_size=1, max_size=40), st.integers(1, 4), st.integers(0, 3))
def test_laws_of_any_panel(rows, n_groups, seed):
    """Groups share no observer and lose no visit; Omega_c is sorted and unique; sums do not depend on the groups."""
    seed = seed if n_groups > 1 else 0  # one group draws nothing, and another seed is refused
    observers = {f"o{o}" for o, *_ in rows}
    counted = [(o, s, d, int(c)) for o, s, d, c in rows if c != "X"]
    with TemporaryDirectory() as name:
        root = Path(name)
        source = records(root / "in", rows)
        if len(observers) < n_groups:
            with (
                pytest.raises(ConfigError, match=f"--groups {len(observers)} or less")
                if counted
                else pytest.raises((ConfigError, InputError))
            ):
                panel(source, root / "p", groups=n_groups, seed=seed)
            assert not (root / "p").exists()
            return
        if not counted:
            with pytest.raises(InputError, match=r"none of its .* has a count"):
                panel(source, root / "p", groups=n_groups, seed=seed)
            return
        made = panel(source, root / "p", groups=n_groups, seed=seed)
        v, c = visits(made), table(made, "cells")
        sites, months = pl.read_parquet(made / "sites.parquet"), pl.read_parquet(made / "months.parquet")

        # every visit once, in the group of its observer, and groups of even size
        assert sorted(v["checklist_id"]) == sorted(f"v{k}|s{s}|{d}" for k, (_, s, d, _) in enumerate(rows))
        by_group = v.group_by("group").agg(pl.col("observer_id").unique())
        assert sum(len(o) for o in by_group["observer_id"]) == len(observers) == v["observer_id"].n_unique()
        assert by_group.height == n_groups
        sizes = [len(o) for o in by_group["observer_id"]]
        assert max(sizes) - min(sizes) <= 1

        # Omega_c: sorted, unique, and what the visits say
        for group in groups(made):
            mine = pl.read_parquet(group / "cells.parquet")
            keys = list(zip(mine["site_index"], mine["month_index"], strict=True))
            assert keys == sorted(set(keys))
            own = pl.read_parquet(group / "visits.parquet")
            assert set(keys) == set(zip(own["site_index"], own["month_index"], strict=True))
        again = v.group_by("group", "site_index", "month_index").agg(
            pl.len().cast(pl.Int64).alias("n_visits"), pl.col("count").sum().alias("count_sum")
        )
        joined = c.join(again, on=["group", "site_index", "month_index"], suffix="_v")
        assert joined.height == c.height == again.height
        assert (joined["n_visits"] == joined["n_visits_v"]).all()
        assert (joined["count_sum"] == joined["count_sum_v"]).all()

        # round trip to the site x month matrix of the table that was typed in
        matrix = np.zeros((sites.height, months.height), dtype=int)
        np.add.at(
            matrix, (c["site_index"].to_numpy(), c["month_index"].to_numpy()), c["count_sum"].to_numpy()
        )
        typed = np.zeros_like(matrix)
        site = {s: j for j, s in enumerate(sites["site_id"])}
        month = {m: k for k, m in enumerate(months["month"])}
        for _, s, d, n in counted:
            typed[site[f"s{s}"], month[f"{d:%Y-%m}"]] += n
        assert (matrix == typed).all()
        assert read_manifest(made)["results"]["birds"] == typed.sum()

        # the sum over groups is the cell table of one group
        one = table(panel(source, root / "one"), "cells")
        total = (
            c.group_by("site_index", "month_index")
            .agg(pl.col(SUMS).cast(pl.Int64).sum())
            .sort("site_index", "month_index")
        )
        assert total.equals(one.select("site_index", "month_index", pl.col(SUMS).cast(pl.Int64)))


@settings(deadline=None)
@given(st.lists(st.dates(date(1990, 1, 1), date(2030, 12, 31)), min_size=1, max_size=30))
def test_the_month_axis_has_no_gap_within_the_season(dates):
    months, gaps, left_out = month_axis(pl.Series(dates))
    names = months["month"].to_list()
    season = sorted({d.month for d in dates})
    assert names == sorted(set(names))
    assert names[0] == f"{min(dates):%Y-%m}"
    assert names[-1] == f"{max(dates):%Y-%m}"
    assert months["month_index"].to_list() == list(range(len(names)))
    present = {f"{d:%Y-%m}" for d in dates}
    assert present <= set(names)
    assert gaps == [n for n in names if n not in present]
    for y in range(min(dates).year, max(dates).year + 1):
        for m in range(1, 13):
            inside = f"{min(dates):%Y-%m}" <= f"{y}-{m:02d}" <= f"{max(dates):%Y-%m}"
            assert (f"{y}-{m:02d}" in names) == (inside and m in season)
    assert months["month_of_year"].to_list() == [int(n[5:]) for n in names]
    assert months["year"].to_list() == [int(n[:4]) for n in names]
    if len(names) == 1 or len(season) == 12:
        assert left_out == ""


@pytest.mark.parametrize(("stray", "said"), [((2005, 6), True), ((2005, 4), False), (None, False)])
def test_a_visit_amid_the_months_without_visits_keeps_no_winter_apart_in_silence(stray, said):
    """The fit goes by all months of the axis, the report by those that most years have."""
    winters = [date(y + (m < 9), m, 5) for y in range(2001, 2013) for m in (9, 10, 11, 12, 1, 2, 3)]
    warnings = []
    panel_months(pl.Series([*winters, *([date(*stray, 1)] if stray else [])]), warnings, yearly=False)
    assert any("1 of 85 visits, in months that most years do not have" in w for w in warnings) == said


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (date(2109, 6, 15), "lies after 20.., this year, .* up to 2012-06-15 \\(`fedmiss ingest --end`"),
        (date(1900, 1, 1),
         "lies 101 years apart from all others, .* from 2001-06-15 \\(`fedmiss ingest --start`"),
        (date(2016, 6, 15), ""),
    ],
)  # fmt: skip
def test_visits_after_this_year_or_far_from_all_others_are_told(odd, said):
    warnings = []
    usual = [date(y, 6, 15) for y in range(2001, 2013) for _ in range(5)]
    panel_months(pl.Series([*usual, odd]), warnings, yearly=True)
    found = [w for w in warnings if re.search("1 of 61 visits .* and stretches the panel", w)]
    assert len(found) == bool(said)
    assert not said or re.search(said, found[0])


def test_strange_dates_at_both_ends_are_told_each_for_itself():
    """A row of 1900 was not named while one of 2200 was there, and five visits stretched a panel to one month."""
    usual = [date(y, 6, 15) for y in range(2001, 2013) for _ in range(5)]
    warnings = []
    panel_months(pl.Series([*usual, date(2200, 6, 1), date(1900, 1, 1)]), warnings, yearly=False)
    first, last = (w for w in warnings if "the panel to" in w)
    assert first == (
        "1 of 62 visits (1900-01-01) lies 101 years apart from all others, and stretches the panel to 1,350 calendar "
        "months. If this date is mistyped, or stands for an unknown one, correct it, or keep only visits from 2001-06-15 "
        "(`fedmiss ingest --start`)."
    )
    assert re.match(r"1 of 62 visits \(2200-06-01\) lies after 20.* to 2,389 .* up to 2012-06-15", last)
    warnings = []
    panel_months(pl.Series([date(2200, 6, 1)] * 5), warnings, yearly=False)
    assert len(warnings) == 1
    assert re.fullmatch(
        r"5 of 5 visits \(2200-06-01\) lie after 20\d\d, this year\. If these dates are mistyped, or stand for unknown "
        r"ones, correct them\.",
        warnings[0],
    )


def test_the_order_of_rows_does_not_matter(tmp_path):
    met = pl.DataFrame(
        {"observer_id": [f"o{o}" for o, *_ in ROWS], "checklist_id": [f"v{k}" for k in range(len(ROWS))]}
    )
    a = assign_groups(met, PanelSettings(groups=3, seed=4))
    b = assign_groups(met.reverse(), PanelSettings(groups=3, seed=4)).reverse()
    assert a.equals(b)
    first, last = records(tmp_path / "a", ROWS), records(tmp_path / "b", ROWS, step=-1)
    one, two, other = (
        content(panel(source, tmp_path / name, groups=3, seed=seed), ".parquet")
        for source, name, seed in ((first, "p1", 0), (last, "p2", 0), (first, "p3", 5))
    )
    assert one == two
    assert one != other, "another seed deals the observers anew"


def test_a_site_with_places_far_apart_is_told(tmp_path):
    """Where latitude and longitude are swapped in one row the mean of them was taken without a word."""
    rows = "a,2010,3,48.1,10.5\na,2011,4,10.5,48.1\nb,2010,3,47,9\nb,2011,4,47.2,9\nc,2010,1,60,179.9\nc,2011,1,60,-179.7\n"
    rows += "d,2010,1,78,15\nd,2011,1,78,16.2\n"
    (tmp_path / "t.csv").write_text("site,year,count,latitude,longitude\n" + rows)
    ingest([tmp_path / "t.csv"], tmp_path / "r", IngestSettings(species=("Lark",)), keep_cache=False)
    said = read_manifest(make_panel(tmp_path / "r", tmp_path / "p"))["warnings"]
    assert any(s.startswith("1 site has places more than 100 km apart (a); its place is") for s in said)
    sites = pl.read_parquet(tmp_path / "p" / "sites.parquet").sort("site_id")
    np.testing.assert_allclose(sites["longitude"], [29.3, 9.0, -179.9, 15.6])  # on the 180th meridian too


def test_a_panel_is_one_group_unless_more_are_asked_for(tmp_path):
    source = records(tmp_path / "in", ROWS)
    made = make_panel(source, tmp_path / "p", PanelSettings(sites="all"))
    assert [g.name for g in groups(made)] == ["g01"]
    with pytest.raises(ConfigError, match="--seed does nothing here: there is one group"):
        PanelSettings(seed=3)
    assert PanelSettings(groups=2, seed=3).seed == 3
    with pytest.raises(ConfigError, match="--groups does nothing here: --group-by region makes the groups"):
        PanelSettings(groups=3, group_by="region")


def test_groups_by_a_column(tmp_path):
    source = records(tmp_path / "in", ROWS)
    made = panel(source, tmp_path / "p", group_by="region")
    assert [g.name for g in groups(made)] == ["A", "B"]
    sites = pl.read_parquet(made / "sites.parquet")
    joined = visits(made).join(sites, on="site_index")
    assert (joined["region"] == joined["group"]).all()
    by_observer = panel(source, tmp_path / "q", group_by="observer_id")
    assert [g.name for g in groups(by_observer)] == [f"o{k}" for k in range(6)]
    for column in ("count", "detected", "_source", "weather"):
        with pytest.raises(ConfigError, match=column):
            panel(source, tmp_path / "never", group_by=column)


def test_several_records_folders_make_one_group_each(tmp_path):
    clubs = []
    for number, name in enumerate(("north", "south", "west")):
        rows = [(o + 10 * number, s, d, c) for o, s, d, c in ROWS[number * 20 : number * 20 + 20]]
        clubs.append(records(tmp_path / name, rows).rename(tmp_path / f"records-{name}"))
    made = panel(clubs, tmp_path / "p")
    assert [g.name for g in groups(made)] == ["records-north", "records-south", "records-west"]
    v = visits(made)
    assert v.height == 60
    assert (v.group_by("group").len()["len"] == 20).all()
    inputs = read_manifest(made)["inputs"]
    assert {k.split("/")[0] for k in inputs} == {"records-north", "records-south", "records-west"}
    backwards = panel(clubs[::-1], tmp_path / "back")
    assert content(made, ".parquet") == content(backwards, ".parquet")


def test_the_flow_adds_up_and_sites_without_the_bird_are_told(tmp_path):
    rows = [(o, 9 if s == 4 else s, d, "0" if s == 4 else c) for o, s, d, c in ROWS]
    source = records(tmp_path / "in", rows)
    made = panel(source, tmp_path / "p", sites="seen", min_visits=5)
    flow = read_manifest(made)["flow"]
    start = next(i for i, r in enumerate(flow) if r["step"] == "visits of the species, zeros included")
    assert sum(r["rows"] for r in flow[start:-1]) == flow[-1]["rows"] == visits(made).height
    assert visits(made).group_by("site_index").len()["len"].min() >= 5
    assert "s9" not in pl.read_parquet(made / "sites.parquet")["site_id"].to_list()


# --- names of groups, and records that come in several folders

NAMES = st.lists(
    st.one_of(
        st.text(st.characters(codec="utf-8"), max_size=12),
        st.sampled_from(["", ".", "..", "a/b", "Ä", "Ö", "unknown", "CON", "con", "nul.txt", "~", "%41", "A", "a", "=1"]),
        st.sampled_from(["x" * 400, "x" * 401, "X" * 400]),
    ),
    unique=True,
    max_size=12,
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(NAMES)
def test_every_name_of_a_group_has_a_folder_of_its_own(names):
    folders = group_folders([*names, None])
    assert len({f.casefold() for f in folders.values()}) == len(names) + 1
    for name, folder in folders.items():
        assert re.fullmatch(r"[A-Za-z0-9_.~%-]{1,152}", folder)
        assert not folder.startswith((".", "-"))
        assert not folder.endswith((".", " "))
        assert folder.partition(".")[0].casefold() not in ("con", "nul")
        if name is not None and len(folder) < 140:
            assert group_name(folder) == name


def bird_records(folder: Path, name: str, rows: Iterable[Iterable[object]]) -> Path:
    """Ingest complete visits with their species."""
    return ingested(folder / name, "visit,observer,site,date,species,count", rows, assume_complete=True)


def some(who: str, bird: str, first: int = 0) -> list[tuple[str, str, str, str, str, int]]:
    return [
        (f"S{first + k}", who, f"s{k % 3}", f"2018-{1 + k % 12:02d}-11", bird, 1 + k % 5) for k in range(24)
    ]


def test_a_species_that_one_folder_never_met_has_zeros_there(tmp_path):
    one = bird_records(tmp_path, "one", some("ann", "Wood Stork"))
    two = bird_records(tmp_path, "two", some("bob", "Limpkin", 100))
    for order in ([one, two], [two, one]):
        out = panel(order, tmp_path / f"p{order.index(one)}", species="wood stork")
        v = visits(out)
        assert set(v["group"]) == {"one-records", "two-records"}
        assert v.filter(pl.col("group") == "two-records")["count"].to_list() == [0] * 24
        assert any("no record of Wood Stork in 'two-records'" in w for w in read_manifest(out)["warnings"])
    with pytest.raises(ConfigError, match="named twice"):
        panel([one, tmp_path / "one" / ".." / "one" / "records"], tmp_path / "never", species="Limpkin")


def test_a_checklist_that_two_folders_hold_counts_once(tmp_path):
    both = some("ann", "Wood Stork")
    one = bird_records(tmp_path, "one", both)
    two = bird_records(tmp_path, "two", [*both[:10], *some("bob", "Wood Stork", 100)])
    out = make_panel([one, two], tmp_path / "p", PanelSettings(species="Wood Stork"))
    v = visits(out)
    assert v.height == 48
    assert v["checklist_id"].n_unique() == 48
    assert (v.group_by("group").len().sort("group")["len"] == 24).all()
    told = read_manifest(out)
    assert any(w.startswith("10 visits are in several of the folders") for w in told["warnings"])
    flow = [row["rows"] for row in told["flow"]]
    assert flow[-1] == told["results"]["n_visits"] == 48
    # the same ids of other visits are other visits
    later = [(v, "cid", s, "2019" + d[4:], b, n) for v, _, s, d, b, n in both]
    three = bird_records(tmp_path, "three", later)
    assert visits(make_panel([one, three], tmp_path / "q", PanelSettings(species="Wood Stork"))).height == 48


def test_one_count_above_all_others_is_told(tmp_path):
    even = some("ann", "Wood Stork")
    odd = [(*row[:-1], 2_000_000_000 if k == 5 else row[-1]) for k, row in enumerate(even)]
    for name, met, told in (("odd", odd, True), ("even", even, False)):
        made = panel(bird_records(tmp_path, name, met), tmp_path / f"p-{name}", sites="seen")
        said = [w for w in read_manifest(made)["warnings"] if "larger than all others" in w]
        assert bool(said) == told
        assert not told or "2,000,000,000 birds at s2 on 2018-06-11" in said[0]


def test_panels_of_all_species_of_the_records_have_one_secret(tmp_path):
    """Weights of replicates follow from it; who is given a group's folder, or a manifest, cannot know it."""
    birds = ("Wren", "Crow")
    rows = [(f"o{k % 3}", f"s{k % 4}", "2020-05-01", k, f"v{k}", bird) for k in range(8) for bird in birds]
    header = "observer,site,date,count,visit,species"
    kept = ingested(tmp_path / "a", header, rows)
    other = ingested(tmp_path / "b", header, rows[:-1])
    secret = {}
    for name, folder, species in (("wren", kept, "Wren"), ("crow", kept, "Crow"), ("less", other, "Wren")):
        out = panel(folder, tmp_path / name, species=species, groups=2)
        secret[name] = (out / SECRET).read_bytes()
        assert not list(out.glob(f"groups/*/{SECRET}"))
        assert secret[name].hex() not in (out / MANIFEST).read_text()
    assert secret["wren"] == secret["crow"] != secret["less"]
    own = panel(kept, tmp_path / "own", species="Wren", groups=2, secrets=True)
    assert not (own / SECRET).exists()
    assert len({path.read_bytes() for path in own.glob(f"groups/*/{SECRET}")}) == 2


def test_one_identifier_in_groups_of_several_sources_is_no_one_person(tmp_path):
    """Clubs number their observers from 1: two people would have the same weights."""
    header = "observer,site,date,count"
    rows = {name: [(1, f"{name}{s}", "2020-05-01", 3) for s in "abc"] for name in "xy"}
    clubs = [ingested(tmp_path / name, header, of, species=("Wren",)) for name, of in rows.items()]
    made = open_panel(panel(clubs, tmp_path / "both"))
    assert len(set(made.secrets().values())) == 1
    who = [name for visits in made.visits()[0].values() for name in visits.observer_id]
    assert len(who) == len(set(who)) == 2
    again = open_panel(panel(clubs[::-1], tmp_path / "again"))
    assert set(again.secrets().values()) == set(made.secrets().values())
    one = open_panel(panel(clubs[0], tmp_path / "one", group_by="site_id")).secrets()
    assert len(one) == 3
    assert len(set(one.values())) == 1, "one of the records' observers is one person in all groups"


def test_groups_whose_names_are_no_folder_names(tmp_path):
    """No region leaves the panel, and none is merged with another."""
    regions = ["..", "Ä", "Ö", "東京", "a/b", "a-b", "r" * 300, "CON", "north", "North"]
    rows = [(f"o{k}", f"s{k % 10}", date(2018, 1 + k % 12, 3), k % 4, regions[k % 10]) for k in range(120)]
    source = ingested(tmp_path / "in", "observer,site,date,count,region", rows, species=("Wood Stork",))
    made = panel(source, tmp_path / "p", group_by="region", sites="all")
    assert {p.name for p in tmp_path.iterdir()} == {"in", "p"}
    by_group = dict(visits(made).group_by("group").len().iter_rows())
    assert [by_group[folder] for folder in group_folders(regions).values()] == [12] * 10
