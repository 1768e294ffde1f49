"""The page of a community fit: pictures and tables, with what they mean."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

from fedmiss.community.pictures import all_pictures
from fedmiss.community.settings import CommunitySettings
from fedmiss.community.tables import Tables
from fedmiss.report.build import write_figures
from fedmiss.report.html import assets, environment, write_html
from fedmiss.report.sections import Cell, Column, HtmlTable, cell, range_cell, table_of
from fedmiss.report.words import MINUS, count, number, share

TERMS = {"duration": "hours", "distance": "kilometres", "observers": "observers"}


def write_page(
    tmp: Path, tables: Tables, settings: CommunitySettings, warnings: list[str], date: str
) -> None:
    """Write ``index.html`` and ``figures/`` into a folder."""
    plots = all_pictures(tables)
    write_figures(plots, tmp / "figures")
    html = (
        environment()
        .get_template("community/page.html.j2")
        .render(
            title=settings.title, date=date, n_sites=count(tables.lists.J), n_species=count(tables.lists.S),
            n_lists=count(tables.lists.site.size), rank=tables.fit.rank, counts=settings.model == "counts",
            headline=_headline(tables), warnings=warnings, plots=plots,
            maps=[plot for name, plot in plots.items() if name.startswith("axis-")],
            species=_species(tables), strongest=_strongest(tables), responses=_responses(tables), tried=_tried(tables),
            paper=_paper(tables),
            facts=_facts(tables, settings),
            flow=[(step, f"{count(rows)}{f' ({note})' if note else ''}") for step, rows, note in tables.lists.flow],
            **assets(),
        )
    )  # fmt: skip
    write_html(html, tmp / "index.html")


def _headline(tables: Tables) -> str:
    named = {1: "One axis", 2: "Two axes", 3: "Three axes", 4: "Four axes", 5: "Five axes"}
    cells = "counts" if tables.fit.fit.settings.family == "poisson" else "checklists"
    if not any(candidate.rank for candidate in tables.fit.tried):
        return "Every species by itself: no axes were tried."
    if not tables.fit.rank:
        beyond = "beyond the covariates " if tables.fit.responses else ""
        return (
            f"The species of these sites say nothing of each other {beyond}that left-out {cells} would show."
        )
    beside = "covariates and levels" if tables.fit.responses else "levels"
    one, gain = "s" if tables.fit.rank == 1 else "", tables.gain
    if math.isnan(gain):  # of an organisation whose own least number keeps its sites out of all folds
        return f"No {cells} of these sites were left out and predicted: how near the axes come to them is not known."
    # A number of axes that was asked for may be worse than none.
    does = f"take{one} {share(gain)} off" if gain >= 0 else f"add{one} {share(-gain)} to"
    return (
        f"{named.get(tables.fit.rank, f'{tables.fit.rank} axes')} that species follow together {does} "
        f"the deviance of left-out {cells}, beside the {beside} of site and species alone."
    )


def _species(tables: Tables) -> HtmlTable:
    columns: list[Column] = [
        ("Species", lambda r: Cell(tables.names[r.species])),
        ("Sites", lambda r: cell(count, r.n_sites)),
        ("Checklists", lambda r: cell(count, r.n_lists)),
        ("Birds", lambda r: cell(count, r.birds)),
    ]
    if tables.fit.rank:  # else there is nothing to gain from
        columns.append(("Deviance taken off", lambda r: cell(_signed, r.gain)))
    return table_of("Species", tables.species, columns, "All columns are in species.csv.")


def _signed(value: float) -> str:
    """A share, or minus one, in per cent."""
    return f"{MINUS}{share(-value)}" if value < 0 else share(value)


def _correlation(value: float) -> str:
    return f"{value:+.2f}".replace("-", MINUS)


def _strongest(tables: Tables) -> HtmlTable | None:
    """The strongest associations whose interval leaves out 0, twelve of either sign."""
    table = tables.associations[(tables.associations["lower"] > 0) | (tables.associations["upper"] < 0)]
    if table.empty:
        return None
    order = table.sort_values("correlation", ascending=False)
    positive, negative = order[order["correlation"] > 0].head(12), order[order["correlation"] < 0].tail(12)
    return table_of(
        "Strongest associations",
        pd.concat([positive, negative]),
        [
            ("Species", lambda r: Cell(tables.names[r.species])),
            ("Other species", lambda r: Cell(tables.names[r.other])),
            ("Correlation", lambda r: cell(_correlation, r.correlation)),
            ("95 % interval", lambda r: range_cell(r.lower, r.upper, _correlation)),
        ],
        "The strongest of either sign whose interval leaves out 0; all pairs are in associations.csv.",
    )


def _responses(tables: Tables) -> HtmlTable | None:
    """How many species respond to each covariate, and which the most."""
    if tables.responses.empty:
        return None
    rows = []
    for name, part in tables.responses.groupby("covariate", sort=False):
        sure = part[(part["lower"] > 0) | (part["upper"] < 0)].sort_values("response")
        up, down = sure[sure["response"] > 0], sure[sure["response"] < 0]
        words = [
            ", ".join(tables.names[bird] for bird in most) or "none"
            for most in (up["species"][::-1][:4], down["species"][:4])
        ]
        rows.append(
            [Cell(str(name)), cell(count, len(up)), Cell(words[0]), cell(count, len(down)), Cell(words[1])]
        )
    columns = ["Covariate", "Species with more", "the most", "Species with fewer", "the most"]
    note = "Species whose interval leaves out 0; every response is in responses.csv."
    return HtmlTable("Responses to the sites' covariates", columns, rows, note)


def _tried(tables: Tables) -> HtmlTable:
    """Every model tried: axes, spread, and its deviance on left-out cells."""
    return table_of(
        "Models tried",
        tables.fit.choice.table.groupby("candidate")[["rank", "deviance"]].mean(),
        [
            ("Axes", lambda r: cell(count, r.rank)),
            ("1 / size", lambda r: cell(number, tables.fit.tried[r.Index].inverse_size or 0.0)),
            ("Deviance of a left-out cell", lambda r: Cell(number(r.deviance, 4), r.deviance)),
        ],
    )


def _paper(tables: Tables) -> HtmlTable | None:
    """The paper's algorithm beside the model of this page."""
    paper = tables.paper
    if paper is None:
        return None
    rows = [
        [Cell(words), Cell(number(value, 4), value), Cell(_signed(1.0 - value / paper.none), value)]
        for words, value in (
            ("levels of site and species alone", paper.none),
            (f"this page's model, {count(tables.fit.rank)} axes", paper.chosen),
            (
                f"FedMissEM, {count(paper.theta.V.shape[1])} factors, ridge {number(paper.ridge)}",
                paper.deviance,
            ),
        )
    ]
    note = (
        "Deviance on the same left-out cells. FedMissEM has no levels, covariates, effort of a cell or spread of counts "
        f"of its own, and makes no intervals. After {count(paper.rounds)} rounds its objective is "
        f"{number(paper.objective, 5)}; the "
        f"quick solver of the same objective, which made the choice, ends at {number(paper.optimum, 5)}. Factors: "
        "fedmissem.csv."
    )
    columns = ["Model", "Deviance of a left-out cell", "Taken off"]
    return HtmlTable("The paper's algorithm 7", columns, rows, note)


def _season(tables: Tables, settings: CommunitySettings) -> str:
    if settings.season == "none":
        return "not looked at, as asked for (--season none)"
    if tables.season.gain is None:
        if settings.model == "presence":
            return "not looked at for presence"
        one = len(set(tables.lists.month % 12 // 3)) < 2
        why = "all lists are of one quarter of the year" if one else "not in studies between organisations"
        return f"not looked at: {why}"
    if not tables.season.taken:
        return "quarters of the year do not predict left-out counts clearly better"
    return (
        f"each species by quarter, within sites: {share(tables.season.gain)} off the deviance of left-out counts "
        "(seasons.csv); expected counts are the mean of the quarters"
    )


def _facts(tables: Tables, settings: CommunitySettings) -> list[tuple[str, str]]:
    fit = tables.fit.fit
    effort = ", ".join(
        f"{TERMS.get(key, key)}: power {number(term, 2)}" for key, term in tables.effort.terms.items()
    )
    kind = (
        "negative binomial counts"
        if fit.settings.family == "poisson"
        else "found or not found on a checklist"
    )
    return [
        ("Cells", f"{kind} of site and species"),
        (
            "Axes",
            f"{tables.fit.rank}"
            + "".join(f"; axis {i + 1} {share(float(part))}" for i, part in enumerate(tables.axes.share)),
        ),
        *(
            [("1 / size", number(fit.settings.inverse_size or 0.0))]
            if fit.settings.family == "poisson"
            else []
        ),
        ("Effort", effort or "every complete checklist counts alike"),
        ("Season", _season(tables, settings)),
        ("Covariates", ", ".join(tables.fit.responses) or "none"),
        ("Converged", "yes" if fit.fit.converged else f"no: {fit.fit.stop_reason}"),
    ]
