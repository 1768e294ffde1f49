"""``fedmiss community``: from a records folder to the folder of a community fit, with its page."""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from fedmiss.community.model import cells_of, effort_of, fit_community
from fedmiss.community.paper import factor_rows, fit_paper
from fedmiss.community.season import none_of, season_of
from fedmiss.community.settings import CommunitySettings
from fedmiss.community.tables import Tables, expected_rows, score_rows, season_rows, tables_of
from fedmiss.errors import ConfigError
from fedmiss.etl.community import Lists, read_lists
from fedmiss.etl.site_table import read_site_table
from fedmiss.files import atomic_folder, hash_file, read_manifest, write_manifest
from fedmiss.progress import progress
from fedmiss.report.tables import write_both
from fedmiss.settings import kinds_checked
from fedmiss.tables import table_writer

KIND = "community"
STAGES = 7  # what progress counts: effort, three or four steps of the fit, associations, results


@kinds_checked
def build_community(
    records: str | Path,
    out: str | Path,
    settings: CommunitySettings | None = None,
    *,
    overwrite: bool = False,
) -> Path:
    """Fit all species of the complete checklists of a records folder together; return the folder made.

    Raises
    ------
    InputError    no complete checklist, fewer than three species or five sites, a table of sites with a fault
    ConfigError   a rank that so few species cannot bear

    Examples
    --------
    >>> import fedmiss, numpy as np, pandas as pd
    >>> rng = np.random.default_rng(1)
    >>> site = np.repeat([f"s{j}" for j in range(12)], 3)
    >>> lists = pd.DataFrame({"site": site, "date": "2020-05-01", "observer": "Kim", "complete": 1})
    >>> birds = pd.DataFrame(rng.poisson(2.0, (36, 6)), columns=[f"Avis species{s}" for s in range(6)])
    >>> table = lists.join(birds).reset_index(names="checklist")
    >>> table = table.melt(list(table.columns[:5]), var_name="species", value_name="count")
    >>> table[table["count"] > 0].to_csv("lists.csv", index=False)
    >>> records = fedmiss.ingest(["lists.csv"], "records", fedmiss.IngestSettings(column_map={"auto": ""}))
    >>> folder = fedmiss.community.build_community("records", "community", fedmiss.community.CommunitySettings(rank=0))
    >>> fedmiss.tables.read_table("community/species.parquet", "community_species").num_rows
    6
    """
    s, source, out = settings or CommunitySettings(), Path(records), Path(out)
    with (
        atomic_folder(out, KIND, overwrite=overwrite, inputs=[source]) as tmp,
        progress("community", STAGES) as show,
    ):
        lists = read_lists(source, min_sites=s.min_sites, counted=s.model == "counts")
        known, said = covariates_of(s.site_table, lists)
        if s.model == "presence" and s.effort not in ("auto", "none"):
            raise ConfigError("--model presence counts lists, whatever their effort; leave --effort out.")
        effort = effort_of(lists, s.effort if s.model == "counts" else "none")
        done = 1
        show(done)

        def watch(what: str) -> None:
            nonlocal done
            done += 1
            show(min(done, STAGES - 2))

        cells, season = cells_of(lists, effort, s.model), none_of(lists)
        if s.season == "auto" and s.model == "counts":
            season, cells = season_of(lists, effort, cells, folds=s.folds, seed=s.seed)
        fit = fit_community(cells, s, covariates=known, watch=watch)
        tables = tables_of(lists, fit, effort, season=season, watch=lambda part: show(STAGES - 2 + part))
        if s.fedmissem:
            tables = replace(tables, paper=fit_paper(fit, max_rank=s.max_rank, seed=s.seed, watch=watch))
        write_folder(tmp, tables, s, source, s.site_table, said)
        show(STAGES)
    return out


def write_folder(
    tmp: Path,
    tables: Tables,
    settings: CommunitySettings,
    records: Path,
    site_table: str | Path | None,
    said: list[str],
) -> None:
    """Write tables, page and manifest of a community into its folder."""
    manifest = read_manifest(records, "records")  # whoever read the lists has checked the files
    warnings = [*tables.lists.warnings, *said, *_said(tables, with_covariates=site_table is not None)]
    for name in ("species", "sites", "loadings", "responses", "associations", "visits"):
        write_both(getattr(tables, name), tmp, name, f"community_{name}")
    write_both(season_rows(tables), tmp, "seasons", "community_seasons")
    if tables.paper is not None:
        factors = factor_rows(
            tables.paper, tables.sites["site_id"].to_numpy(), np.array(tables.lists.species, dtype=object)
        )
        write_both(factors, tmp, "fedmissem", "community_fedmissem")
    table_writer(tmp / "expected.parquet", "community_expected", [expected_rows(tables)])
    table_writer(tmp / "scores.parquet", "community_scores", score_rows(tables))
    from fedmiss.community.page import write_page  # matplotlib takes a second to load

    write_page(tmp, tables, settings, warnings, dt.date.today().isoformat())
    write_manifest(
        tmp,
        KIND,
        settings=asdict(replace(settings, site_table=Path(site_table).name if site_table else None)),
        inputs={name: manifest["files"][name]["sha256"] for name in ("records.parquet", "checklists.parquet")}
        | ({"site table": hash_file(site_table)} if site_table else {}),
        results=_results(tables),
        flow=[{"step": step, "rows": number, "note": note} for step, number, note in tables.lists.flow],
        terms=manifest["terms"],
        warnings=warnings,
    )


def covariates_of(site_table: str | Path | None, lists: Lists) -> tuple[dict[str, np.ndarray], list[str]]:
    """Covariates (J,) of the sites by name, and what is worth a warning."""
    if not site_table:
        return {}, []
    table = read_site_table(site_table)
    joined = lists.sites.select("site_id").join(table.frame, on="site_id", how="left", maintain_order="left")
    out = {}
    for name in table.covariates:
        column = joined[name]
        number = column.dtype.is_numeric()
        out[name] = (
            column.to_numpy().astype(float) if number else column.fill_null("").to_numpy().astype(object)
        )
    return out, [*table.said, *table.beside(lists.sites)]


def _results(tables: Tables) -> dict[str, object]:
    return {
        "n_sites": tables.lists.J, "n_species": tables.lists.S, "n_lists": int(tables.lists.site.size),
        "birds": int(tables.species["birds"].sum()),
        "rank": tables.fit.rank, "share": [round(float(share), 4) for share in tables.axes.share],
        "inverse_size": tables.fit.fit.settings.inverse_size,
        "effort": {key: round(term, 4) for key, term in tables.effort.terms.items()},
        "responses": list(tables.fit.responses), "converged": bool(tables.fit.fit.fit.converged),
        "gain": round(tables.gain, 4),
        "visits_of_richness": tables.usual, "season": tables.season.taken, "season_gain": tables.season.gain,
        "fedmissem": None if tables.paper is None else {
            "rank": tables.paper.theta.V.shape[1], "ridge": tables.paper.ridge, "rounds": tables.paper.rounds,
            "objective": tables.paper.objective, "optimum": tables.paper.optimum,
            "deviance": {"levels": tables.paper.none, "community": tables.paper.chosen, "fedmissem": tables.paper.deviance},
        },
    }  # fmt: skip


def _said(tables: Tables, *, with_covariates: bool) -> list[str]:
    """What the user must know of this fit."""
    said = []
    if not tables.fit.fit.fit.converged:
        said.append(f"The fit did not converge ({tables.fit.fit.fit.stop_reason}); use no number of it.")
    if with_covariates and not tables.fit.responses:
        said.append(
            "The covariates do not predict left-out cells clearly better, so that no species responds to them."
        )
    if not any(candidate.rank for candidate in tables.fit.tried):
        said.append("No axes were tried: rank 0 was asked for, or there are too few species.")
    elif not tables.fit.rank:
        levels = "covariates and levels" if tables.fit.responses else "the levels"
        said.append(
            f"Other species do not predict left-out cells clearly better than {levels} of site and species alone: no "
            "axes, no associations, and nothing for trends to follow."
        )
    everywhere = [
        name
        for name, n_lists in zip(tables.names.values(), tables.species["n_lists"], strict=True)
        if n_lists == tables.lists.site.size
    ]
    if everywhere:
        said.append(
            f"On every list: {', '.join(everywhere[:4])}{' and more' if len(everywhere) > 4 else ''}."
        )
    return said
