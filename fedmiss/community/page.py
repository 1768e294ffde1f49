"""The page of a community fit: pictures and tables, with what they mean."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from fedmiss.community.pictures import all_pictures
from fedmiss.community.settings import CommunitySettings
from fedmiss.community.tables import Tables
from fedmiss.report.build import write_figures
from fedmiss.report.html import assets, environment
from fedmiss.report.sections import Cell, HtmlTable
from fedmiss.report.words import count, number, records, share

__all__ = ["write_page"]

TERMS = {"duration": "hours", "distance": "kilometres", "observers": "observers"}


def write_page(tmp: Path, t: Tables, settings: CommunitySettings, warnings: list[str], date: str) -> None:
    """Write ``index.html`` and ``figures/`` into a folder."""
    plots = all_pictures(t)
    write_figures(plots, tmp / "figures")
    html = (
        environment()
        .get_template("community/page.html.j2")
        .render(
            title=settings.title, date=date, n_sites=count(t.lists.J), n_species=count(t.lists.S),
            n_lists=count(t.lists.site.size), rank=t.fit.rank, counts=settings.model == "counts",
            headline=_headline(t), warnings=warnings, plots=plots,
            maps=[p for n, p in plots.items() if n.startswith("axis-")],
            species=_species(t), strongest=_strongest(t), responses=_responses(t), tried=_tried(t), paper=_paper(t),
            facts=_facts(t),
            flow=[(step, f"{count(n)}{f' ({note})' if note else ''}") for step, n, note in t.lists.flow], **assets(),
        )
    )  # fmt: skip
    (tmp / "index.html").write_text(html, encoding="utf-8")


def _headline(t: Tables) -> str:
    named = {1: "One axis", 2: "Two axes", 3: "Three axes", 4: "Four axes", 5: "Five axes"}
    cells = "counts" if t.fit.fit.settings.family == "poisson" else "checklists"
    if not any(c.rank for c in t.fit.tried):
        return "Every species by itself: no axes were tried."
    if not t.fit.rank:
        return f"The species of these sites say nothing of each other that left-out {cells} would show."
    beside = "covariates and levels" if t.fit.responses else "levels"
    take = "takes" if t.fit.rank == 1 else "take"
    return (
        f"{named.get(t.fit.rank, f'{t.fit.rank} axes')} that species follow together {take} {share(t.gain)} off the "
        f"deviance of left-out {cells}, beside the {beside} of site and species alone."
    )


def _species(t: Tables) -> HtmlTable:
    rows = [
        [
            Cell(r.common_name or r.species), Cell(count(r.n_sites), r.n_sites), Cell(count(r.n_lists), r.n_lists),
            Cell(count(r.birds), r.birds), Cell(share(r.gain) if r.gain >= 0 else f"−{share(-r.gain)}", r.gain),
        ]
        for r in records(t.species)
    ]  # fmt: skip
    columns = ["Species", "Sites", "Checklists", "Birds", "Deviance taken off"]
    if not t.fit.rank:  # nothing to gain from
        columns, rows = columns[:-1], [r[:-1] for r in rows]
    return HtmlTable("Species", columns, rows, note="All columns are in species.parquet.")


def _correlation(value: float) -> Cell:
    return Cell(f"{value:+.2f}".replace("-", "−"), value)


def _strongest(t: Tables) -> HtmlTable | None:
    """The strongest associations whose interval leaves out 0, twelve of either sign."""
    table = t.associations[(t.associations["lower"] > 0) | (t.associations["upper"] < 0)]
    if table.empty:
        return None
    order = table.sort_values("correlation", ascending=False)
    positive, negative = order[order["correlation"] > 0].head(12), order[order["correlation"] < 0].tail(12)
    place = {name: i for i, name in enumerate(t.lists.species)}
    rows = [
        [
            Cell(t.named(place[r.species])), Cell(t.named(place[r.other])), _correlation(r.correlation),
            Cell(f"{_correlation(r.lower).text} to {_correlation(r.upper).text}", r.lower),
        ]
        for r in records(pd.concat([positive, negative]))
    ]  # fmt: skip
    columns = ["Species", "Other species", "Correlation", "95 % interval"]
    note = "The strongest of either sign whose interval leaves out 0; all pairs are in associations.parquet."
    return HtmlTable("Strongest associations", columns, rows, note=note)


def _responses(t: Tables) -> HtmlTable | None:
    """How many species respond to each covariate, and which the most."""
    if t.responses.empty:
        return None
    place, rows = {name: i for i, name in enumerate(t.lists.species)}, []
    for name, part in t.responses.groupby("covariate", sort=False):
        sure = part[(part["lower"] > 0) | (part["upper"] < 0)].sort_values("response")
        up, down = sure[sure["response"] > 0], sure[sure["response"] < 0]
        words = [
            ", ".join(t.named(place[s]) for s in names) or "none"
            for names in (up["species"][::-1][:4], down["species"][:4])
        ]
        rows.append(
            [
                Cell(str(name)),
                Cell(count(len(up)), len(up)),
                Cell(words[0]),
                Cell(count(len(down)), len(down)),
                Cell(words[1]),
            ]
        )
    columns = ["Covariate", "Species with more", "the most", "Species with fewer", "the most"]
    return HtmlTable(
        "Responses to the sites' covariates", columns, rows,
        note="Species whose interval leaves out 0; every response is in responses.parquet.",
    )  # fmt: skip


def _tried(t: Tables) -> HtmlTable:
    """Every model tried: axes, spread, and its deviance on left-out cells."""
    mean = t.fit.choice.table.groupby("candidate")[["rank", "deviance"]].mean()
    rows = []
    for i, r in mean.iterrows():
        held = t.fit.tried[int(str(i))].inverse_size
        rows.append(
            [
                Cell(count(r["rank"]), r["rank"]),
                Cell(number(held or 0.0), held or 0.0),
                Cell(number(r["deviance"], 4), r["deviance"]),
            ]
        )
    return HtmlTable("Models tried", ["Axes", "1 / size", "Deviance of a left-out cell"], rows)


def _paper(t: Tables) -> HtmlTable | None:
    """The paper's algorithm beside the model of this page."""
    p = t.paper
    if p is None:
        return None
    rows = [
        [Cell(words), Cell(number(value, 4), value), Cell(share_off(value, p.none), value)]
        for words, value in (
            ("levels of site and species alone", p.none),
            (f"this page's model, {count(t.fit.rank)} axes", p.chosen),
            (f"FedMissEM, {count(p.theta.V.shape[1])} factors, ridge {number(p.ridge)}", p.deviance),
        )
    ]
    note = (
        "Deviance on the same left-out cells. FedMissEM has no levels, covariates, effort of a cell or spread of counts "
        f"of its own, and makes no intervals. After {count(p.rounds)} rounds its objective is {number(p.objective, 5)}; the "
        f"quick solver of the same objective, which made the choice, ends at {number(p.optimum, 5)}. Factors: "
        "fedmissem.parquet."
    )
    return HtmlTable(
        "The paper's algorithm 7", ["Model", "Deviance of a left-out cell", "Taken off"], rows, note=note
    )


def share_off(value: float, of: float) -> str:
    """How much less, or more, as a share."""
    off = 1.0 - value / of
    return share(off) if off >= 0 else f"−{share(-off)}"


def _season(t: Tables) -> str:
    if t.season.gain is None:
        return "not looked at: lists of one quarter of the year, presence, or a study between organisations"
    if not t.season.taken:
        return "quarters of the year do not predict left-out counts clearly better"
    return (
        f"each species by quarter, within sites: {share(t.season.gain)} off the deviance of left-out counts "
        "(seasons.parquet); expected counts are the mean of the quarters"
    )


def _facts(t: Tables) -> list[tuple[str, str]]:
    c = t.fit.fit
    effort = ", ".join(f"{TERMS.get(k, k)}: power {v:.2f}" for k, v in t.effort.terms.items())
    kind = (
        "negative binomial counts" if c.settings.family == "poisson" else "found or not found on a checklist"
    )
    return [
        ("Cells", f"{kind} of site and species"),
        (
            "Axes",
            f"{t.fit.rank}"
            + "".join(f"; axis {i + 1} {share(float(s))}" for i, s in enumerate(t.axes.share)),
        ),
        ("1 / size", number(c.settings.inverse_size or 0.0)),
        ("Effort", effort or "every complete checklist counts alike"),
        ("Season", _season(t)),
        ("Covariates", ", ".join(t.fit.responses) or "none"),
        ("Converged", "yes" if c.fit.converged else f"no: {c.fit.stop_reason}"),
    ]
