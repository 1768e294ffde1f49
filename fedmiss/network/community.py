"""A community of species between organisations: an organisation's seat, and what it writes at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedmiss.community.outputs import usual_visits
from fedmiss.community.run import covariates_of, write_folder
from fedmiss.community.study import CommunitySeat, JointCommunity
from fedmiss.community.tables import species_rows, tables_of, visit_rows
from fedmiss.errors import listed
from fedmiss.etl.community import Lists
from fedmiss.federation.circle import Circle
from fedmiss.federation.member import Look, Member
from fedmiss.files import atomic_folder, write_manifest
from fedmiss.report.tables import write_both

if TYPE_CHECKING:
    from fedmiss.network.kits import Kit

OWN = "community"  # folder of the organisation's own community in its kit


def seat_of(
    kit: Kit,
    records: Path,
    circle: Circle,
    secret: bytes,
    *,
    look: Look | None = None,
    watch: Callable[[str, int], None] = lambda stage, exchanges: None,
    told: Callable[[Member], None] = lambda member: None,
) -> CommunitySeat:
    """An organisation's end of the job."""

    def covariates(lists: Lists) -> Mapping[str, np.ndarray]:
        return covariates_of(kit.site_table, lists)[0]

    return CommunitySeat(circle, records, secret, kit.own_sites, covariates, look, watch, told)


def write_community(kit: Kit, records: Path, j: JointCommunity) -> Path:
    """Write the organisation's own community into its kit, then the joint tables; return the folder of these."""
    if kit.result.exists():
        return kit.result
    told = (
        f"Of the study, and told nothing of: {listed(names, 4)} ({why})." for why, names in j.left_out.items()
    )
    notes = [*told, *j.notes]
    own = (
        f"Axes, loadings, associations and responses are those of {', '.join(kit.roster)} together; sites, maps, counts and "
        f"gains are those of {kit.name}."
    )
    settings = replace(
        kit.study.of_community, title=f"{kit.study.name}: {kit.name}", min_sites=kit.study.minimum
    )
    t = tables_of(j.lists, j.fit, j.effort, j.sums)
    with atomic_folder(kit.folder / OWN, "community", overwrite=True, inputs=[records]) as tmp:
        write_folder(tmp, t, settings, records, kit.site_table, [own, *notes])
    species = j.lists.species
    tables = {
        "species": species_rows(species, j.lists.common, j.numbers, j.gains),
        "loadings": t.loadings,
        "responses": t.responses,
        "associations": t.associations,
        "visits": visit_rows(j.step_sites, j.step_gains),
    }
    whole = j.gains.sum(axis=0)
    with atomic_folder(kit.result) as tmp:
        for name, table in tables.items():
            write_both(table, tmp, name, f"community_{name}")
        write_manifest(
            tmp, "joint community", settings=asdict(kit.study), inputs={"job": kit.job.hex()},
            results={
                "organisations": list(kit.roster), "n_sites": round(float(j.sums[0])), "n_lists": j.n_lists,
                "n_species": len(species), "left_out": {why: list(n) for why, n in j.left_out.items()}, "rank": j.fit.rank,
                "share": [round(float(x), 4) for x in t.axes.share], "inverse_size": j.fit.fit.settings.inverse_size,
                "effort": dict(j.effort.terms), "responses": list(j.fit.responses),
                "converged": bool(j.fit.fit.fit.converged),
                "gain": round(1 - float(whole[1] / whole[0]), 4) if whole[0] > 0 else None,
                "visits_of_richness": usual_visits(j.fit, j.sums), "richness": round(j.richness, 3),
            },
            warnings=notes,
        )  # fmt: skip
    return kit.result
