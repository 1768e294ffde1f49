"""An organisation's end: its panel, its program, and the job that it runs together with the others."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from unicodedata import normalize

import numpy as np

from fedmiss.arrays import distinct, pairs
from fedmiss.atomic import write_json, write_secret
from fedmiss.community.study import beside, run_community
from fedmiss.errors import ConfigError, InputError, listed, plain, several
from fedmiss.federation import messages as msg
from fedmiss.federation.circle import Circle, Ended
from fedmiss.federation.gather import Gather, RelayGone
from fedmiss.federation.group.agreement import sites_in_both
from fedmiss.federation.group.program import GroupProgram
from fedmiss.federation.group.visits import Visits, check_counts, digest_of
from fedmiss.federation.hub.agree import DataSpec
from fedmiss.federation.hub.job import JobResult, JobSpec, Stages, preview_job, run_job
from fedmiss.federation.hub.onward import Before, written
from fedmiss.federation.hub.support import MOST_PAIRS, steps
from fedmiss.federation.journal import Journal
from fedmiss.federation.link import InProcess, Link
from fedmiss.federation.masks import Masks, Party, identity, read_secret
from fedmiss.federation.member import Look, Member
from fedmiss.files import SECRET, hash_file
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.network.community import seat_of, write_community
from fedmiss.network.hold import HELD
from fedmiss.network.kits import Kit, kept_list
from fedmiss.network.method import installed, run_method
from fedmiss.network.result import write_preview, write_result
from fedmiss.network.status import STATUS, Status, Usage
from fedmiss.owner import DROPPINGS, remove_state
from fedmiss.pipeline.panels import PanelFolder, open_panel

BEGUN = "begun.json"  # jobs that were answered here, also those whose journals are gone
# whose birds no search of all numbers finds (``tests/attacks/test_birds_of_regions.py``)
SITES_OF_A_REGION = 20
ROUNDS = 3  # that each give as many equations of the birds of sites as there are months (``tests/attacks/test_counts.py``)
DATA = "data.json"  # where the panel lies, for the process that the engine starts


def open_data(kit: Kit, data: Path) -> PanelFolder:
    """Open an organisation's panel and check that it is what the study is about."""
    panel = open_panel(data)
    if len(panel.groups) != 1:
        raise ConfigError(
            f"{data} has {len(panel.groups)} groups; an organisation brings one. Make it with "
            "`fedmiss panel RECORDS`, without --groups and --group-by."
        )
    species = panel.facts.species
    if plain(species).split() != plain(kit.study.species).split():
        raise InputError(
            f"{data} is about {species!r}, the study about {kit.study.species!r}. Make a panel of that species; if yours is "
            "the same under another name, write the study's into your table, and ingest it again."
        )
    if kit.study.sites == "all" and panel.chosen_by_detection:
        raise ConfigError(
            f"{data} holds only sites where the species was seen, the study wants all. Make it with "
            "`fedmiss panel --sites all`."
        )
    return panel


def held(kit: Kit, panel: PanelFolder) -> Visits:
    """The organisation's visits in the study's season and months."""
    visits = next(iter(panel.visits(effort=kit.study.fit.effort != "none")[0].values()))
    check_counts(kit.name, visits)
    # a name from a Mac may have its accents apart: the same region or covariate would be two
    visits = replace(
        visits,
        species=kit.study.species,  # in one spelling for all
        region=np.array([normalize("NFC", str(name)) for name in visits.region], dtype=object),
        covariates={normalize("NFC", name): column for name, column in visits.covariates.items()},
    )
    order = kit.study.order()
    keep = np.ones(visits.site.size, dtype=bool)
    if kit.study.season:
        keep &= np.isin(visits.month % 12 + 1, kit.study.season)
    if order.plan.months is not None:
        keep &= np.isin(visits.month, order.plan.months)
    return visits if keep.all() else visits.take(keep)


def program_of(kit: Kit, data: Path) -> GroupProgram:
    """The organisation's program: all that sees a visit is behind it."""
    return GroupProgram(
        kit.name, held(kit, open_data(kit, data)), secret=secret_of(kit),
        settings=kit.study.settings(), jointly=True, minimum=kit.study.minimum,
        contributors=kit.study.contributors, own_sites=kit.own_sites,
    )  # fmt: skip


def secret_of(kit: Kit) -> bytes:
    """The organisation's own secret, drawn at first: folds and weights of replicates follow from it.

    Raises
    ------
    InputError    the present job was begun with a secret that is gone, or the secret is damaged
    """
    secret = kit.private / SECRET
    if not secret.exists():
        if kit.journal.exists():
            raise InputError(
                f"{secret} is gone, from which {kit.name!r} has answered job {kit.job.hex()[:12]}. Put this file back, if "
                "there is a copy; without it the job cannot go on, nor be gone through again: ask the proposer for a new "
                "revision.",
                path=str(secret),
            )
        write_secret(secret)
    return read_secret(secret)


def party_of(kit: Kit) -> Party:
    """The organisation among the others of the roster, with masks where the study has them."""
    kind = Masks if kit.study.masks else Party
    return kind(kit.name, identity(kit.key_file), kit.roster, kit.job)


def take_part(
    kit: Kit,
    data: Path,
    gather: Gather,
    *,
    look: Look | None = None,
    preview: bool = False,
    watch: Callable[[str, int], None] | None = None,
) -> Path:
    """Run the approved job to its end with the others, or go on with it; write the joint result and return its folder.

    With ``preview`` only the agreement, whose file is returned; the job goes on from there.

    Raises
    ------
    ConfigError    the job is not approved, the data have changed since it began, or its journal is gone
    EngineError    another organisation's copy of the job asks something else
    """
    if kit.approval() is None:
        raise ConfigError(
            f"job {kit.job.hex()[:12]} is not approved by the custodian of {kit.name!r}; nothing is answered."
        )
    program = None if kit.study.method or kit.study.community else program_of(kit, data)
    held, party, journal = answered_from(kit, data, program), party_of(kit), _begun(kit)
    usage = Usage(kit.private / f"usage-{kit.job.hex()[:16]}.json")
    note = Status(kit.private / STATUS, kit.job.hex(), kit.study.organisations)

    def seen(stage: str, exchanges: int) -> None:
        note.going(stage, exchanges)
        usage.write()
        if watch is not None:
            watch(stage, exchanges)

    try:
        told: Callable[[int], None] = (
            (lambda n: seen("method", n - 1)) if kit.study.method else (lambda n: None)
        )
        circle = Circle(
            party, journal, gather, held,
            exchanges=kit.study.exchanges, watch=told, absence=kit.study.rule_of_absence,
        )  # fmt: skip
        if program is None:
            if kit.study.method:
                out = run_method(kit, data, circle)
            else:
                seat = seat_of(kit, data, circle, secret_of(kit), look=look, watch=seen)
                out = write_community(kit, data, run_community(seat, kit.study.terms(kit.job)))
            note.write(state="done", result=str(out), missing=[])
            return out
        member = Member(program, circle, look, compress=kit.study.compress)
        link = Link(member, kit.job[:8], kit.study.settings(), seen, masked=kit.study.masks)
        if preview:
            out = write_preview(kit.preview, *preview_job(link, kit.study.order()))
            note.write(state="previewed")
            return out
        joint = run_job(link, kit.study.order(), _Onward(kit))
    except RelayGone as error:  # the engine begins the job again
        note.write(state="waiting", error=str(error))
        raise
    except BaseException as error:
        note.write(state="stopped", error=str(error))
        raise
    finally:
        journal.close()  # first: where the disk is full, the rest fails, and the job could not go on in this process
        usage.write()
    # else the job was gone through again for the others, who may lack the last frames
    if not kit.result.exists():
        write_result(kit.result, kit, joint, link, seconds=usage.seconds, replayed=circle.replayed)
    note.write(state="done", result=str(kit.result), missing=[])
    return kit.result


def _begun(kit: Kit) -> Journal:
    """The present job's journal, ours until it is closed; the job is noted as begun."""
    jobs = _jobs_begun(kit)
    if kit.job.hex() in jobs and not kit.journal.exists():
        raise ConfigError(
            f"job {kit.job.hex()[:12]} was begun here and its journal is gone, so nobody knows what was sent under its "
            "masks, which must not be used twice. Ask the proposer for a new revision."
        )
    journal = Journal(kit.journal)
    remove_state(kit.private / HELD)  # of a process that ended while it held one: the journal is ours now
    if kit.job.hex() not in jobs:
        # from now on it holds for the job: the page of a later one compares
        begun = {"own_sites": kit.own_sites}
        lines = [line | begun if line["job"] == kit.job.hex() else line for line in kit.history()]
        write_json(kit.private / "history.json", lines)
        write_json(kit.private / BEGUN, [*jobs, kit.job.hex()])
    return journal


class _Onward(Stages):
    """Keeps what a later revision can go on from: joint numbers only. A job gone through again loses none of them."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit

    def known(self, models: Sequence[Before]) -> None:
        """Models once chosen, then once fitted."""
        kit, fitted = self.kit, any(m.months is not None for m in models)
        if fitted or not kit.onward.exists():
            write_json(
                kit.onward, {"job": kit.job.hex(), "revision": kit.study.revision, "models": written(models)}
            )


class _Heard(Stages):
    """Hears which fits are replicates: groups have the totals of models under trial beside them."""

    def __init__(self) -> None:
        self.places: list[tuple[int, int]] = []

    def drawn(self, places: Sequence[tuple[int, int]]) -> None:
        """Replicates in the order of their numbers."""
        self.places += places


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """A job gone through again from its journal; ``joint`` is None if it is not over.

    ``places``: the (batch, fit) of every replicate, in the order of the joint draws.
    """

    program: GroupProgram
    member: Member
    link: Link
    joint: JobResult | None
    places: list[tuple[int, int]]


def replay(
    kit: Kit, data: Path, watch: Callable[[Member, Sequence[msg.Message]], None] | None = None
) -> Replay:
    """Go through the journal of the present job again; nothing is sent, and another process may go on writing it.

    ``watch`` is called with every exchange that is over, before its questions are forgotten.
    """
    program = program_of(kit, data)
    circle = _read_again(kit, data, program)
    member = Member(program, circle, compress=kit.study.compress)
    told = None if watch is None else lambda stage, exchanges: watch(member, member.questions)
    link = Link(member, kit.job[:8], kit.study.settings(), told, masked=kit.study.masks)
    joint, heard = None, _Heard()
    try:
        with contextlib.suppress(Ended):
            joint = run_job(link, kit.study.order(), heard)
    finally:
        circle.close()
    return Replay(program, member, link, joint, heard.places)


def _read_again(kit: Kit, data: Path, program: GroupProgram | None = None) -> Circle:
    """The circle of a job that is gone through again: it sends nothing, and ends where the journal does."""
    answered = answered_from(kit, data, program)
    return Circle(party_of(kit), opened_journal(kit), None, answered, exchanges=kit.study.exchanges)


def opened_journal(kit: Kit) -> Journal:
    """The present job's journal, to be read while another process may go on writing it."""
    if not kit.journal.exists():
        job = kit.job.hex()
        raise InputError(
            f"the journal of job {job[:12]}, {kit.journal}, is gone: what {kit.name!r} sent can be listed no more, and no "
            "own report be made. The joint result and reports that were made before stay."
            if job in _jobs_begun(kit)
            else f"{kit.name!r} has sent nothing for job {job[:12]} yet."
        )
    return Journal.reading(kit.journal)


def _jobs_begun(kit: Kit) -> list[str]:
    """Numbers of the jobs that were begun here, with and without a journal."""
    return kept_list(
        kit.private / BEGUN,
        "It says which jobs were begun here, so that no masks are used twice. Put a copy of it back, or begin with a fresh "
        "key: take the kit that the proposer sent, `fedmiss federation enrol` there, and ask for a roster with that key",
    )


def again_with(kit: Kit, data: Path, told: Callable[[Member], None]) -> None:
    """Go through the journal of a community's job again, as far as it reaches; ``told`` is called after every exchange."""
    circle = _read_again(kit, data)
    try:
        with contextlib.suppress(Ended):
            run_community(seat_of(kit, data, circle, secret_of(kit), told=told), kit.study.terms(kit.job))
    finally:
        circle.close()


def answered_from(kit: Kit, data: Path, program: GroupProgram | None = None) -> bytes:
    """Digest of all that answers follow from: data, least number of own sites, and the secret, so that nobody guesses it."""
    seen = digest_of_path(data, kit.site_table) if program is None else digest_of(program.held)
    whole = secret_of(kit) + kit.own_sites.to_bytes(8, "little") + seen
    return hashlib.blake2b(whole, digest_size=16).digest()


def digest_of_path(data: Path, beside: Path | None = None) -> bytes:
    """Digest of a file, or of the files of a folder, and of another file beside: a journal is of one state of the data.

    A file alone may have another name, as a copy has; a folder's files are told apart by theirs.
    """
    if not data.exists():
        raise InputError(f"there is no file or folder {data}. Check its name and place.", path=str(data))
    inside = sorted(data.rglob("*")) if data.is_dir() else [data]
    files = [p for p in inside if p.is_file() and p.name not in DROPPINGS]
    words = [f"{p.relative_to(data) if data.is_dir() else ''} {hash_file(p)}" for p in files]
    words += [hash_file(beside)] if beside is not None else []
    return hashlib.blake2b("\n".join(words).encode(), digest_size=16).digest()


def start(kit: Kit, data: Path, *, look: bool = False, preview: bool = False) -> None:
    """Write what the process that an engine starts must know: where the panel lies, and what the custodian has said."""
    write_json(kit.private / DATA, {"data": str(data.resolve()), "look": look, "preview": preview})


def warm_up() -> None:
    """Compile what the first question needs: a site reports as ready after this."""
    rng = np.random.default_rng(0)
    n, J = 60, 4
    visits = Visits(
        site_id=np.array([f"s{j}" for j in range(J)], dtype=object),
        site=rng.integers(0, J, n).astype(np.int32), month=24000 + rng.integers(0, 24, n),
        count=rng.poisson(5, n).astype(float), detected=np.ones(n, dtype=bool),
        observer=rng.integers(0, 3, n).astype(np.int32), effort=np.zeros((n, 0)), weight=np.ones(n),
        region=np.full(J, "", dtype=object), given=True,
    )  # fmt: skip
    for s in (
        CountSettings(rank=1, dispersion="negbin"),
        CountSettings(rank=1, family="gaussian", scale="log1p"),
        CountSettings(rank=1, family="bernoulli"),
    ):
        program = GroupProgram("warm", visits, secret=b"warm")
        run_job(Link(InProcess({"warm": program}), bytes(8), bytes(8)), JobSpec(DataSpec(), [s], bootstrap=1))


def dry_run(kit: Kit, data: Path, own_sites: int | None = None) -> list[str]:
    """What the organisation would bring, and what its own visits alone would lose; nothing is sent or kept."""
    if kit.study.method:
        digest_of_path(data)
        run = str(kit.study.method["run"])
        where = (
            "installed on this computer"
            if installed(run)
            else "which is NOT installed on this computer (a file alone: its folder in PYTHONPATH)"
        )
        return [f"{kit.name}: {data} is given to {run}, {where}"]
    if kit.study.community:
        return beside(tuple(kit.study.community["species"]), data, kit.name)
    panel = open_data(kit, data)
    visits = held(kit, panel)
    counted = ~np.isnan(visits.count)
    pair, width = pairs(visits.month[counted], visits.site[counted])
    months, sites = np.unique(np.unique(pair) // width, return_counts=True)
    per = np.unique(visits.month[counted], return_counts=True)[1]
    few = (sites < kit.study.minimum) | (per < kit.study.minimum)
    least = kit.own_sites if own_sites is None else own_sites
    when = steps(np.unique(visits.month))  # of a table of years no month is spoken of
    out, mine = int((sites < least).sum()), distinct(visits.site[counted]).size
    lines = [
        f"{kit.name}: {several(visits.site.size, 'visit')} at {several(np.unique(visits.site).size, 'site')}, "
        f"{counted.sum():,} with a count, in {several(months.size, when[:-1])}"
    ]
    found, lost = int(visits.detected.sum()), int((visits.detected & ~counted).sum())
    if lost and kit.study.fit.model != "bernoulli":
        if not (visits.count > 0).any():
            raise InputError(
                f"{data}: {kit.study.species} was found on {found:,} visits of the study's {when} and counted on none of "
                "them (all are X). What is left are zeros, which would make the joint totals too low: join with visits that "
                "were counted."
            )
        lines.append(
            f"  your visits that found the species, without a number (X): {lost:,} of {found:,}; zeros take part, X do not"
        )
    if few.any():
        lines.append(
            f"  {int(few.sum())} of these {when} {'has' if few.sum() == 1 else 'have'} fewer than {kit.study.minimum} of "
            "your own visits or sites, and no part unless the others have enough there"
        )
    if least > 1:
        lines.append(f"  {when} with fewer than {least} of your own sites, in which you bring nothing: {out}")
        at = np.searchsorted(months, visits.month[counted])
        both = sites_in_both(visits.site[counted], at, (visits.site_id.size, months.size))
        both = both[np.ix_(sites >= least, sites >= least)]  # of the months that are left
        seen = both[np.tril_indices(len(both), -1)]
        share = float((seen < least)[seen > 0].mean()) if seen.any() else 0.0
        if share > MOST_PAIRS and any(model.rank for model in kit.study.order().candidates):
            lines += [
                f"  {share:.0%} of the pairs of other {when} have fewer than {least} of your own sites in both: you bring",
                f"  nothing to patterns there; none is fitted if over {MOST_PAIRS:.0%} of all pairs keep too few sites",
            ]
    if kit.study.masks and mine < ROUNDS * months.size:
        lines += [
            f"  sites with a count: {mine}, fewer than {ROUNDS} times your {when} ({months.size}): a member that knows",
            f"  how often each was visited can work out their birds, and where they are fewer than the {when} and those",
            "  visited in each than the rounds of a fit (17 or more; a member that lies makes up to 500), or the survey",
            "  is short, every single count, unless other organisations bring more sites",
        ]
    regions, there = np.unique(visits.region[distinct(visits.site[counted])].astype(str), return_counts=True)
    few_there = [
        f"{name} ({n})" for name, n in zip(regions, there, strict=True) if name and n < SITES_OF_A_REGION
    ]
    if kit.study.masks and few_there and regions.size > 1:
        lines += [
            f"  your sites in regions with few of them: {listed(few_there, 4)}. Of eight sites in a region a member that",
            "  knows how often each was visited worked out all birds, unless other organisations bring more sites there",
        ]
    return lines
