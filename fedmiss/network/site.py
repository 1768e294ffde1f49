"""An organisation's end: its panel, its program with journal and masks, and its own report at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedmiss.errors import ConfigError, InputError
from fedmiss.federation import messages as msg
from fedmiss.federation.group.guard import QuestionGuard
from fedmiss.federation.group.program import GroupProgram
from fedmiss.federation.group.visits import Visits
from fedmiss.federation.hub.agree import Plan
from fedmiss.federation.hub.job import Order, run_job
from fedmiss.federation.journal import Journal
from fedmiss.federation.link import InProcess, Link
from fedmiss.federation.masks import Masks, Party, identity
from fedmiss.federation.rules import LARGEST_COUNT
from fedmiss.federation.site import Entry, SiteProgram, entries
from fedmiss.files import SECRET, read_json, write_json, write_secret
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.network.kits import Kit
from fedmiss.pipeline.panels import PanelFolder, open_panel
from fedmiss.tables import read_table

__all__ = [
    "DATA",
    "check_counts",
    "dry_run",
    "held",
    "journal_entries",
    "open_data",
    "program_of",
    "program_of_copy",
    "replayed",
    "start",
    "warm_up",
]

BEGUN = "begun.json"  # jobs that were answered here, also those whose journals are gone
DATA = "data.json"  # where the panel lies, for the process that the engine starts


def open_data(kit: Kit, data: Path) -> PanelFolder:
    """Open an organisation's panel and check that it is what the study is about."""
    panel = open_panel(data)
    if len(panel.groups) != 1:
        raise ConfigError(
            f"{data} has {len(panel.groups)} groups; an organisation brings one. Make it with "
            "`fedmiss panel RECORDS --groups 1`."
        )
    species = panel.facts.species
    if species != kit.study.species:
        raise InputError(
            f"{data} is about {species!r}, the study about {kit.study.species!r}. Make a panel of that species."
        )
    if kit.study.sites == "all" and panel.chosen_by_detection:
        raise ConfigError(
            f"{data} holds only sites where the species was seen, the study wants all. Make it with "
            "`fedmiss panel --sites all`."
        )
    return panel


def check_counts(name: str, visits: Visits) -> None:
    """Refuse a count that is too large for a masked sum of squares."""
    many = visits.count > LARGEST_COUNT
    if many.any():
        at = int(np.argmax(many))
        raise InputError(
            f"{name!r} has a visit with {visits.count[at]:,.0f} birds at site {visits.site_id[visits.site[at]]!r} (limit "
            f"{LARGEST_COUNT:,} in one visit of a study). Correct the count in the records, and make the panel again."
        )


def held(kit: Kit, panel: PanelFolder) -> Visits:
    """The organisation's visits in the study's season and months; checklist ids only where they are compared."""
    visits = next(iter(panel.visits(effort=kit.study.fit.effort != "none")[0].values()))
    if kit.study.duplicates and visits.checklist is None:
        ids = read_table(panel.groups[0] / "visits.parquet", "visits", columns=["checklist_id"]).to_pandas()
        visits = replace(visits, checklist=ids["checklist_id"].to_numpy(object))
    check_counts(kit.name, visits)
    order = kit.study.order()
    keep = np.ones(visits.site.size, dtype=bool)
    if kit.study.season:
        keep &= np.isin(visits.month % 12 + 1, kit.study.season)
    if order.plan.months is not None:
        keep &= np.isin(visits.month, order.plan.months)
    return visits if keep.all() else visits.take(keep)


def program_of(
    kit: Kit,
    data: Path,
    look: Callable[[int, list[msg.Message], list[msg.Answer]], None] | None = None,
    refused: Callable[[Exception], None] | None = None,
) -> SiteProgram:
    """The organisation's program for the approved job, brought to where its journal ends.

    ``look`` and ``refused`` as of :class:`SiteProgram`.

    Raises
    ------
    ConfigError    the job is not approved, the data have changed since it began, or its journal is gone
    """
    if kit.approval() is None:
        raise ConfigError(
            f"job {kit.job.hex()[:12]} is not approved by the custodian of {kit.name!r}; nothing is answered."
        )
    panel = open_data(kit, data)
    secret = kit.private / SECRET
    if not secret.exists():
        write_secret(secret)
    kind = Masks if kit.study.masks else Party
    party = kind(kit.name, identity(kit.key_file), kit.roster, kit.job)
    begun = kit.private / BEGUN
    jobs = list(read_json(begun)) if begun.exists() else []
    if kit.job.hex() in jobs and not kit.journal.exists():
        raise ConfigError(
            f"job {kit.job.hex()[:12]} was begun here and its journal is gone, so nobody knows what was sent under its "
            "masks, which must not be used twice. Ask the coordinator for a new revision."
        )
    program = SiteProgram(
        _group(kit, panel), kit.job, kit.journal, party=party, look=look,
        guard=QuestionGuard(kit.study.approved(), kit.name), refused=refused,
    )  # fmt: skip
    if kit.job.hex() not in jobs:
        write_json(begun, [*jobs, kit.job.hex()])
    return program


def _group(kit: Kit, panel: PanelFolder) -> GroupProgram:
    return GroupProgram(
        kit.name, held(kit, panel), key=bytes(16), secret=(kit.private / SECRET).read_bytes(),
        settings=kit.study.settings(), jointly=True, minimum=kit.study.minimum,
        contributors=kit.study.contributors,
    )  # fmt: skip


def start(kit: Kit, data: Path, *, look: bool = False) -> None:
    """Write the place of the data and whether messages are held, for the process that the engine starts."""
    write_json(kit.private / DATA, {"data": str(data.resolve()), "look": look})


def warm_up() -> None:
    """Compile what the first question needs: a site reports as ready after this."""
    rng = np.random.default_rng(0)
    n, J = 60, 4
    visits = Visits(
        site_id=np.array([f"s{j}" for j in range(J)], dtype=object),
        site=rng.integers(0, J, n).astype(np.int32),
        month=24000 + rng.integers(0, 24, n),
        count=rng.poisson(5, n).astype(float),
        detected=np.ones(n, dtype=bool),
        observer=rng.integers(0, 3, n).astype(np.int32),
        effort=np.zeros((n, 0)),
        weight=np.ones(n),
        region=np.full(J, "", dtype=object),
        given=True,
    )
    for s in (
        CountSettings(rank=1, dispersion="negbin"),
        CountSettings(rank=1, family="gaussian", scale="log1p"),
        CountSettings(rank=1, family="bernoulli"),
    ):
        program = GroupProgram("warm", visits, key=bytes(16), secret=b"warm")
        run_job(
            Link(InProcess({"warm": program}), bytes(8), bytes(8)), Order(Plan(joint=False), [s], bootstrap=1)
        )


def dry_run(kit: Kit, data: Path) -> list[str]:
    """What the organisation would bring, and what its own visits alone would lose; nothing is sent."""
    panel = open_data(kit, data)
    visits = held(kit, panel)
    counted = ~np.isnan(visits.count)
    key = np.unique(np.stack([visits.month[counted], visits.site[counted]]), axis=1)
    months, sites = np.unique(key[0], return_counts=True)
    per = np.unique(visits.month[counted], return_counts=True)[1]
    few = (sites < kit.study.minimum) | (per < kit.study.minimum)
    return [
        f"{kit.name}: {visits.site.size:,} visits at {np.unique(visits.site).size:,} sites, "
        f"{counted.sum():,} with a count, in "
        f"{months.size} months",
        f"  {int(few.sum())} of these months have fewer than {kit.study.minimum} of your own "
        "visits or sites: they take part "
        "only if the others have enough there",
    ]


def program_of_copy(kit: Kit, data: Path) -> GroupProgram:
    """Return the organisation's program without journal, to inspect what was sent while another process answers."""
    group = _group(kit, open_data(kit, data))
    group.party = Party(kit.name, identity(kit.key_file), kit.roster, kit.job)
    return group


def journal_entries(kit: Kit) -> list[Entry]:
    """Exchanges of the present job's journal, while another process may go on writing it."""
    if not kit.journal.exists():
        raise InputError(f"{kit.name!r} has sent nothing for job {kit.job.hex()[:12]} yet.")
    return list(entries(Journal.reading(kit.journal)))


def replayed(kit: Kit, data: Path) -> tuple[GroupProgram, list[msg.Outcome]]:
    """Return the organisation's program after replaying the journal, and the hub's outcome of each fit."""
    program = program_of_copy(kit, data)
    for entry in journal_entries(kit):
        program.answer(entry.question)
    return program, program.results
