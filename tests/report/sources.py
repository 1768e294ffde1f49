"""Where each number of a report's page comes from: its values, from the CSV files, and the sentences they stand in.

A sentence of the page whose numbers are not described here is a number without a source, and a test fails.
"""

import json
from pathlib import Path

import numpy as np
import pandas as pd

from fedmiss.seasons import first_month

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

_BYTES = {"kB": 1e3, "MB": 1e6, "GB": 1e9}
_WAYS = (
    ("Passed by the groups to the fit (of one person's groups nothing leaves the computer)", "up"),
    ("Passed to the groups", "down"),
)
# {name}: a number as rounded, {#name}: exactly, {*name}: a list of years, {_}: words
SENTENCES = [
    # head and foot
    "fedmiss {#v1}.{#v2}.{#v3}",
    "trend report · {#y0}-{#m0} to {#y1}-{#m1} · {#sites} sites · made on {#d1}-{#d2}-{#d3} with",
    "({#d1}). ",
    "trend report, {#from_year} to {#to_year}. Made on {#d1}-{#d2}-{#d3} with",
    # headline
    "from {#from_year} to {#to_year}: {slope} % per year (95 % interval {slope_lo} % to {slope_hi} %)",
    "from {#from_year} to {#to_year}: {slope} % per year (no interval available)",
    "the trend from {#from_year} to {#to_year} is uncertain",
    "{slope} % per year (95 % interval {slope_lo} % to {slope_hi} %)",
    "{slope} % per year (no interval available)",
    "Over the whole period that is {whole} % (95 % interval {whole_lo} % to {whole_hi} %)",
    "Over the whole period that is {whole} % (no interval available)",
    "for {#from_year} to {#to_year}, because",
    "since {#from_year}: {_}",
    "changes above 5 % per year are excluded",
    "95 of 100 such intervals",
    ", at {#sites} sites",
    "a decline of more than 5 % per year",
    "an increase of more than 5 % per year",
    "It rests on {#visits_with_count} visits with a count",
    "It rests on {#visits} visits",
    "by {#observers} observers",
    ", held by {#groups} group",
    "in {#years_used} of {#years} years, of",
    "Index and trend are of {#years_used} of {#years} years: {share_used} % of their {#cells_used} site-{_} were counted, "
    "and {share_imputed} % of the total comes from those that were not",
    "In {#to_year} the estimated total over all sites, in the mean month of the season, was {last} {unit} "
    "(95 % interval {last_lo} to {last_hi})",
    "In {#to_year} the estimated total over all sites, in the mean month of the season, was {last} {unit} (no interval",
    "Without it (TRIM's convention): 95 % interval {narrow_lo} % to {narrow_hi} % per year",
    "scatter about their line by an estimated {year_sd} %",
    # caveats
    "Sites with {_} {unit} were visited more often (rank correlation {visits_and_birds} over "
    "{#visits_and_birds_sites} sites)",
    "Sites that were visited more have {_} fitted trends (rank correlation {visits_and_trend} over "
    "{#visits_and_trend_sites} sites)",
    "Sites that were first visited later have {_} fitted trends (rank correlation {first_visit_and_trend} over "
    "{#first_visit_and_trend_sites} sites",
    "{#late_n} of {#late_of} sites were first visited in {#late_year} or later, and {late_found} % of them had {unit} in "
    "the first year. Of the total of the years before, {late_share} % is what the model expects there.",
    "had come, the trend is {late_if} % per year",
    "{#early_n} of {#early_of} sites were last visited in {#early_year} or before: {early_found} % of them had {unit} in "
    "the last year, {early_otherwise} % in the years before.",
    "If they stayed empty, the trend is {early_if} % per year",
    "{#late_n} of {#late_of} sites were first visited in {#late_year} or later, and the class",
    "{#early_n} of {#early_of} sites were last visited in {#early_year} or before, and the class",
    "Sites whose last visit is longer ago have {_} fitted trends (rank correlation {last_visit_and_trend} over "
    "{#last_visit_and_trend_sites} sites)",
    "over the period counted {_} drift {drift} % {_} the fitted ones",
    "The fitted totals miss the counts of {*years_missed}{_}by more than 20 %",
    "{*years_thin} ha{_} fewer than {#year_needs_cells} site-months at {#year_needs_sites} sites counted",
    "{#thin} years ({#thin_first} to {#thin_last}) have fewer than {#year_needs_cells} site-months at {#year_needs_sites}",
    "What is said is of {#from_year} to {#to_year}.",
    "has ratios near 1, without a drift",
    "lie more than a fifth away from 1, and no drift",
    "The base is {#base}, the first year with enough counts for one; {#first_used} has fewer",
    "The base is {#base}, the first year that found the species",
    "the class or an alert depends on {_}, when next to no visit without a find was reported",
    "None of the {_} visits of {_} found the species: how near to 0 the total came",
    "None of the {#visits_none} visits of {#none_from} to {#none_to} found the species: how near to 0 the totals",
    "{#visits_without_number} of the {#visits_that_found} visits that found the species have no number (X). Nothing takes",
    "moves the trend by about {no_number_percent_per_year} % per year. Compare presence",
    "SE) with years − 2 degrees of freedom",
    "Only {share_zero} % of the visits record",
    "{share_cells} % of the site-months were counted. The rest",
    "{#months_unseen} of {#months} months {_} no count at any site",
    "imputed whole. {#withheld} visits were withheld.",
    "{*years_incomplete} lack{_} some months of the season",
    "{*years_empty} ha{_} no count and",
    "there are {#replicates} bootstrap replicates; an interval needs 20",
    "Only {#replicates} bootstrap replicates were made; intervals need 20",
    "the predicted total is {predicted_over_counted} times the counted",
    "{#sites_repeated} site{_} counted in two or more years; a class needs 5",
    "From {#season_half} on, {season_moved} % of the counts lie in other months",
    "only {#years_linked} of {#years_used} years {_} linked by sites",
    "only {#years_sharing_months} of {#years_used} years have a month of the year",
    "the median year has {median_cells} site-months with a count; a class needs 10",
    # figures: constants
    "its 95 % interval",
    "Bars: 95 % interval of each year's index.",
    "Bars are 95 % intervals.",
    "a decline above 25 % or 50 % over the window whose 95 % interval does not include 0.",
    "(counted in fewer than {#years_for_a_class} years, no interval, or no class of all sites together)",
    "TRIM, model 3",
    "Gaussian on log1p",
    "in TRIM's model 3",
    "10 and beyond in full colour",
    "which is 0 at a solution",
    "a ratio of 1 is unbiased",
    "the first that predicts worse by 10 % than the best",
    # figures: numbers
    "Index of the mean total over all {#sites} sites{_}, {#base} = 100.",
    "index ({#base} = 100)",
    "trend {slope} % per year ({slope_lo} % to {slope_hi} %)",
    "trend {slope} % per year",
    "Pale bars, not in the trend: {*years_out}",
    "ot in the trend: {#n_years_out} years ({#first_out} to {#last_out})",
    "Line of the yearly index from {#from_year} to {#to_year}: it ends at {last_index} with {#base} = 100",
    "{imputed_min} % to {imputed_max} % of a year's total is imputed",
    "It need not pass through 100 in the base year",
    "Smoothed index: {smooth_first} in {#from_year}, {smooth_last} in {#to_year}, with {#base} = 100",
    "LOESS curve (span {loess_span}, {_}; {#loess_iterations} robust iterations)",
    "Not drawn, above the frame: {#hidden_months} month",
    "LOESS curve from {curve_first} {unit} in {#curve_y0}-{#curve_m0} to {curve_last} {unit} in {#curve_y1}-{#curve_m1}",
    "sites without a count per month, between {#missing_min} and {#missing_max} of {#sites}",
    "highest in {_}with {peak} {unit}",
    "highest in {_}, week {#peak_week}, with {week_peak} {unit}",
    "(days to 7, 14, 21 and the end)",
    "A week with fewer than 10 counts",
    "year, where there are 5; few counts widen it by chance.",
    "{#map_sites} sites in {#hexagons} hexagons of {hexagon_km} km",
    "Map of {#map_sites} sites in {#hexagons} hexagons: {#hexagons_down} of them decline; the median change is "
    "{hexagon_median} % per year",
    "Map of {#map_sites} sites in {#hexagons} hexagons, by visits",
    "Map of {#map_sites} sites",
    "{#off_map} of {#sites} sites have no coordinates and are not on it",
    "Positions are rounded to {coarse_map} degrees",
    "Matrix of {#rows_drawn} sites by {#months} months; {share_drawn} % of its cells were counted",
    "The {#rows_drawn} most often counted of {#sites} sites",
    "{#rows_drawn} sites, largest at the top",
    "The {#sites_listed} largest of {#sites} sites",
    "Values beyond ±{reach} % are drawn at the edge",
    "the {#regions_drawn} largest of {#regions_with_years}",
    "The {#regions_listed} largest of {#regions} regions",
    "Held-out deviance of {#candidates} candidates; lowest, {best_deviance} per visit, for {_} with rank {#best_rank}",
    "Convergence over {#rounds} rounds: the {_} goes from {h_first} to {h_last}; {mb} MB were sent",
    # model
    "along {#rank} common pattern",
    "follow {#rank} common pattern",
    "repeated {#replicates} times with other weights",
    "interaction of rank {#rank}",
    "Rank of the interaction of sites and time: {#rank}",
    "Penalty on the factors: {penalty}",
    "Dispersion: {dispersion}",
    "Effective number of parameters: {edf}",
    "Objective at the end: {objective}",
    "(0 at a solution): {h_norm}",
    "Rounds: {#rounds}",
    "Groups: {#groups}",
    "Participation: {participation}",
    "Exchanges between the groups, whole job: {#exchanges}",
    *(f"{words}: {{{u.lower()}_{way}}} {u}" for words, way in _WAYS for u in _BYTES),
    "Bootstrap replicates: {#replicates}",
    # data
    "Months: {#panel_y0}-{#panel_m0} to {#panel_y1}-{#panel_m1}, {#months} in all",
    "Sites: {#sites}, {#map_all} with coordinates",
    "Visits: {#visits}; {#visits_with_count} with a count, {#visits_with_zero} that found none",
    "counted: {#counted}",
    "Site-months with a count: {#cells_counted} of {#cells} ({share_cells} %)",
    "Sites counted in two or more years: {#sites_repeated}",
    "time spent on {known_duration_minutes} % of visits",
    "distance travelled on {known_distance_km} % of visits",
    "size of the party on {known_n_observers} % of visits",
    "time of day on {known_start_minutes} % of visits",
    "protocol on {known_protocol} % of visits",
    "1 when sites with more of the one have more of the other, 0 when they have nothing to do with each other. "
    "Numbers are compared at sites visited so often that a mean one would give 3 finds. Clear: at "
    "least 0.3 either way, and by chance in fewer than 1 of 1,000 panels.",
    "Student quantiles of years − 2 degrees of freedom",
    # how to read it
    "at least {#year_needs_cells} site-months at {#year_needs_sites} sites were counted in it; the base, when none is "
    "named, is the first year with at least {#base_needs_cells} site-months at {#base_needs_sites} sites",
    "the 95 % interval lies beyond ±5 % per year",
    "when it excludes 0 only",
    "when it includes 0 and stays within ±5 %",
    "when they lie beyond 1.05 or 0.95, moderate when they exclude 1 only, stable when they stay within 0.95 and 1.05",
    "from {#replicates} bootstrap replicates",
    "It speaks of the {#sites} sites in the panel",
]


def csv(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, keep_default_na=True)


class Sources:
    """The CSV files of a report, and the values that the sentences of its page take from them."""

    def __init__(self, report: Path) -> None:
        self.tables = {p.stem: csv(p) for p in (report / "tables").glob("*.csv")}
        self.figures = {p.stem: csv(p) for p in (report / "figures").glob("*.csv")}
        self.manifest = json.loads((report / "manifest.json").read_text(encoding="utf-8"))
        self.facts = dict(self.tables["facts"].itertuples(index=False))

    @property
    def years(self):
        return self.tables["yearly"]

    def values(self) -> dict:
        """Return name -> number (or list of years), from the tables; from ``facts.csv`` only what no other knows."""
        return self.facts | self._head() | self._trend() | self._data() | self._figures() | self._model()

    def _head(self):
        months, visits = self.tables["monthly"]["month"], self.tables["monthly"]["visits"]
        visited = months[visits > 0]
        date, version = self.manifest["settings"]["date"], self.manifest["fedmiss"]
        ends = ("y0", "m0", "y1", "m1")
        keys = ("v1", "v2", "v3", "d1", "d2", "d3", *ends, *(f"panel_{end}" for end in ends))
        texts = (visited.iloc[0], visited.iloc[-1], months.iloc[0], months.iloc[-1])
        parts = [*version.split("."), *date.split("-"), *"-".join(texts).split("-")]
        return dict(zip(keys, (int(p) for p in parts), strict=True))

    def _trend(self):
        y, t = self.years, self.tables["trend"].iloc[0]
        used = y[y["used"]]
        monthly, half = self.tables["monthly"], used["year"].iloc[len(used) // 2] if len(used) else np.inf
        counted = self.tables["season"].query("n_years > 0")["month_of_year"]
        year = monthly["year"] + (monthly["month_of_year"] >= first_month(np.unique(counted)))
        counts = monthly[year.isin(used["year"])].pivot_table(
            "observed", "month_of_year", year >= half, "sum", 0
        )
        apart = (counts / counts.sum()).T.diff().iloc[-1].abs().sum() / 2 if len(counts) else 0.0
        out = {
            "season_half": half, "season_moved": 100 * apart,
            **{
                f"whole{end}": 100 * ((1 + t[f"percent{column}"] / 100) ** (t["to_year"] - t["from_year"]) - 1)
                for end, column in (("", "_per_year"), ("_lo", "_lo"), ("_hi", "_hi"))
            },
            "slope": t["percent_per_year"], "slope_lo": t["percent_lo"], "slope_hi": t["percent_hi"],
            "change_lo": t["change_lo"], "change_hi": t["change_hi"], "narrow_lo": t["percent_lo_sampling"],
            "narrow_hi": t["percent_hi_sampling"], "year_sd": 100 * np.expm1(t["year_sd"]),
            "years": len(y), "years_used": len(used), "from_year": t["from_year"], "to_year": t["to_year"],
            "years_incomplete": list(y.loc[~y["complete"], "year"]),
            "years_empty": list(y.loc[y["complete"] & ~y["used"], "year"]),
            "years_out": list(y.loc[~y["used"], "year"]),
            "n_years_out": (~y["used"]).sum(), "first_out": y.loc[~y["used"], "year"].min(),
            "last_out": y.loc[~y["used"], "year"].max(),
            "cells_used": used["cells"].sum(), "share_used": 100 * used["cells_observed"].sum() / used["cells"].sum(),
            "imputed_min": 100 * y["imputed_share"].min(), "imputed_max": 100 * y["imputed_share"].max(),
            "share_imputed": 100 * (used["imputed_share"] * used["total"]).sum() / used["total"].sum(),
        }  # fmt: skip
        if len(used):
            first, _, upto = str(t["base"]).partition("-")
            base, last = (
                used["total"][used["year"].between(int(first), int(upto or first))].mean(),
                used.iloc[-1],
            )
            out |= {
                "from_year": used["year"].iloc[0], "to_year": last["year"], "base": int(first),
                "change": 100 * (last["total"] / base - 1), "last_index": 100 * last["total"] / base,
                "last": last["total"], "last_lo": last["total_lo"], "last_hi": last["total_hi"],
            }  # fmt: skip
        thin = list(y.loc[y["complete"] & ~y["used"] & (y["cells_observed"] > 0), "year"])
        out |= {"years_thin": thin, "thin": len(thin)}
        if thin:
            out |= {"thin_first": thin[0], "thin_last": thin[-1]}
        for r in self.tables["entries"].itertuples():
            values = {
                "n": r.n_sites, "of": r.sites, "year": r.year, "found": 100 * r.found,
                "otherwise": 100 * r.otherwise,
            }  # fmt: skip
            values |= {"share": 100 * r.share, "if": 100 * np.expm1(r.slope_if)}
            kind = "late" if r.what == "first visits" else "early"
            out |= {f"{kind}_{name}": value for name, value in values.items()}
        out |= self._fit_of_years()
        for r in self.tables["visits"].itertuples():
            name = r.compared.replace(" ", "_")
            out |= {name: r.correlation, f"{name}_sites": r.n_sites}
        s = self.tables["smooth_index"]
        if len(s):
            out |= {"smooth_first": s["smooth"].iloc[0], "smooth_last": s["smooth"].iloc[-1]}
        return out

    def _fit_of_years(self):
        t = self.tables["fitted"]
        t = t[(t["ratio"] > 0) & (t["ratio_se"] > 0)]
        if len(t) < 3:
            return {}
        slope = np.polyfit(t["year"], np.log(t["ratio"]), 1, w=1 / t["ratio_se"])[0]
        far = t[(t["ratio"] - 1).abs() > np.maximum(0.2, 3 * t["ratio_se"])]
        return {
            "drift": 100 * abs(np.expm1(slope * (t["year"].iloc[-1] - t["year"].iloc[0]))),
            "years_missed": list(far["year"].head(4)),
        }

    def _data(self):
        t, f = self.tables, self.facts
        cells, counted = len(t["sites"]) * len(t["monthly"]), t["monthly"]["observed"].sum()
        visits = t["groups"]["visits"].sum()
        located = t["sites"]["latitude"].notna().sum()
        return {
            "sites": len(t["sites"]), "months": len(t["monthly"]), "cells": cells, "cells_counted": counted,
            "share_cells": 100 * counted / cells, "groups": len(t["groups"]), "visits": visits,
            "visits_with_count": t["groups"]["counted"].sum(),
            "share_zero": 100 * f["visits_with_zero"] / visits,
            "months_unseen": (t["monthly"]["observed"] == 0).sum(),
            "withheld": -t["flow"].loc[t["flow"]["step"] == "visits withheld", "rows"].sum(),
            "sites_repeated": (t["sites"]["years_counted"] >= 2).sum(),
            "median_cells": self.years.loc[self.years["used"], "cells_observed"].median(),
            "first_used": self.years.loc[self.years["used"], "year"].min(),
            "regions": len(t["regions"]), "regions_listed": min(len(t["regions"]), 60),
            "map_all": located, "off_map": len(t["sites"]) - located,
            "sites_listed": min(len(t["sites"]), 150),
        }  # fmt: skip

    def _figures(self):
        g, out = self.figures, {}
        if "monthly" in g:
            c = g["monthly"]
            drawn = c.dropna(subset=["smooth"])
            bound = np.nanquantile(c["total"], 0.995) * 1.25
            out |= {
                "missing_min": c["missing"].min(), "missing_max": c["missing"].max(),
                "hidden_months": (c["total"] > bound).sum(),
            }  # fmt: skip
            if len(drawn):
                (y0, m0), (y1, m1) = (drawn["month"].iloc[i].split("-") for i in (0, -1))
                out |= {
                    "curve_first": drawn["smooth"].iloc[0], "curve_last": drawn["smooth"].iloc[-1],
                    "curve_y0": int(y0), "curve_m0": int(m0), "curve_y1": int(y1), "curve_m1": int(m1),
                }  # fmt: skip
        if "season" in g:
            out["peak"] = g["season"]["total"].max()
        if "weeks" in g:
            best = g["weeks"].loc[g["weeks"]["total"].idxmax()]
            out |= {"peak_week": best["week"], "week_peak": best["total"]}
        if "map" in g:
            m = g["map"]
            out["map_sites"] = m["n_sites"].sum() if "width_km" in m else len(m)
            if "width_km" in m:
                out |= {
                    "hexagons": len(m), "hexagon_km": m["width_km"].iloc[0],
                    "hexagons_down": (m["percent_per_year"] < 0).sum(), "hexagon_median": m["percent_per_year"].median(),
                }  # fmt: skip
            out |= {
                f"class_{k}": n for k, n in g["map"].get("trend_class", pd.Series()).value_counts().items()
            }
        heat = g["heatmap"]
        out |= {"rows_drawn": heat["site_index"].nunique(), "share_drawn": 100 * heat["observed"].mean()}
        if "regions" in g:
            out["regions_drawn"] = len(g["regions"])
            out["regions_with_years"] = (
                self.tables["regions"][
                    "percent_lo" if self.facts["bootstrap_replicates"] else "percent_per_year"
                ]
                .notna()
                .sum()
            )
            out["reach"] = 1.5 * np.nanquantile(np.abs(g["regions"]["percent_per_year"]), 0.9) + 5
        if "cv" in g:
            best = g["cv"].sort_values("deviance").iloc[0]
            out |= {"candidates": len(g["cv"]), "best_deviance": best["deviance"], "best_rank": best["rank"]}
        if "convergence" in g:
            c = g["convergence"]
            h = np.sqrt(c["h_norm2"])
            sent = (c["bytes_up"] + c["bytes_down"]).sum() / 1e6
            out |= {"h_first": h.iloc[0], "h_last": h.iloc[-1], "mb": sent}
        return out

    def _model(self):
        f = self.facts
        shares = ("explained_", "occupied_", "new_observer", "share_of_part_", "known_")
        out = {k: 100 * v for k, v in f.items() if k.startswith(shares) or k.endswith("share_of_others")}
        shift = self.tables["trials"]["shift"].dropna()
        if len(shift):
            out["shift_most"] = 100 * np.expm1(shift[shift.abs().idxmax()])
        off = self.tables["sensitivity"].set_index("what")
        if "recorded effort off by half" in off.index:
            row = off.loc["recorded effort off by half"]
            out |= {"effort_adds": row["effort_percent"], "effort_off": row["percent_per_year"]}
            out |= {"effort_lo": row["percent_lo"], "effort_hi": row["percent_hi"]}
        for way in ("up", "down"):
            out |= {f"{u.lower()}_{way}": f.get(f"bytes_{way}", np.nan) / size for u, size in _BYTES.items()}
        replicates = self.tables["draws"]["draw"].nunique()
        return out | {"replicates": replicates}

    def sentences(self, unit: str = "birds") -> list[str]:
        """Return the sentences to look for, those with names of regions, classes, periods and months among them."""
        out = []
        for r in self.tables["changepoints"].itertuples():
            out.append(f"{r.year}; a bend within two years of it is found in {{bend_{r.Index}}} %")
        for r in self.tables["periods"].itertuples():
            if "complete year" in str(r.reason):
                words = "is 1 complete year" if r.n_years == 1 else f"are {r.n_years} complete years"
                out.append(f"there {words} with counts; a class needs 5")
            out.append(f"{r.from_year} to {r.to_year}: {r.trend_class} ({{period_{r.Index}}} % per year)")
        for r in self.tables["regions"].itertuples():
            out += [f"{r.region} {{region_{r.Index}}} % per year", f"{r.region} ({r.n_sites})"]
        ranks = sorted(int(v) for k, v in self.facts.items() if k.startswith("average_rank_"))
        if len(ranks) > 1:
            words = f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}, with equal weights"
            out += [words, *(f"{words}; what differs between them is told of rank {rank}" for rank in ranks)]
        parts = sorted(k for k in self.facts if k.startswith("share_of_part_"))
        each = "; ".join(f"{{~}} ({{{k}}} % of the total)" for k in parts)
        out.append(
            f"The groups fall into {{#parts_without_common_region}} parts that have no region in common: {each}"
        )
        out.append(
            "the trend would be {without_finds_only_percent} % per year (95 % interval {without_finds_only_percent_lo} % to "
            "{without_finds_only_percent_hi} %)"
        )
        for year in sorted({k.split("_")[2] for k in self.facts if k.startswith("finds_only_")}):
            own = f"finds_only_{year}"
            out.append(
                f"{{#{own}_finds}} of {{#{own}_visits}} visits of {year} found the species, of those of other years "
                f"{{{own}_share_of_others}} %"
            )
        for name in self.figures.get("map", pd.DataFrame()).get("trend_class", pd.Series(dtype=str)).unique():
            out += [f"{{#class_{name}}} {name}", f"{name} ({{#class_{name}}})"]
        out += [f"{k.removeprefix('effort_')} {{{k}}}" for k in self.facts if k.startswith("effort_")]
        out += [
            f"({{{k}}} % of the variance between sites)" for k in self.facts if k.startswith("explained_")
        ]
        out += [
            "standard deviation {observer_sd} on the link scale",
            "a new observer counts {new_observer} % of what",
            "come a year later differ by {later_observers_percent} % in what",
            "lost with a probability of {occupied_lost} %, an empty one gained with {occupied_gained} %; {occupied_first} %",
            "about {sites_occupied_start} were occupied in its first year, {sites_occupied_end} in its last",
            "by itself it changes counts by {effort_adds} % a year",
            "changes the trend most, by {shift_most} % per year",
            "the trend may be {effort_off} % per year (95 % interval {effort_lo} % to {effort_hi} %)",
        ]
        if "beside" in self.figures:
            out.append(
                "{trim_percent} % per year (95 % interval {trim_percent_lo} % to {trim_percent_hi} %), {_}, "
                "overdispersion {trim_overdispersion}"
            )
        base = str(self.tables["trend"]["base"].iloc[0])
        base = base if "-" in base else "{#base}"
        return out + [s.replace("{unit}", unit).replace("{#base}", base) for s in SENTENCES]

    def all_values(self) -> dict:
        more = {f"bend_{i}": 100 * v for i, v in self.tables["changepoints"]["support"].items()}
        more |= {f"period_{i}": v for i, v in self.tables["periods"]["percent_per_year"].items()}
        more |= {f"region_{i}": v for i, v in self.tables["regions"]["percent_per_year"].items()}
        return self.values() | more
