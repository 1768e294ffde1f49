"""What a custodian reads before an organisation takes part in a job, and the approval."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Callable

from fedmiss.atomic import write_json
from fedmiss.errors import ConfigError
from fedmiss.federation.hub.onward import differing, read_before
from fedmiss.federation.masks import fingerprint
from fedmiss.federation.messages import PROTOCOL
from fedmiss.models.lowrank.choice import model_name
from fedmiss.network.kits import Kit
from fedmiss.network.study import Study
from fedmiss.progress import note
from fedmiss.system import user_name
from fedmiss.version import __version__

_FEW_SITES = [
    "  THE STUDY ALLOWS FEW SITES: who knows the visits to each of yours can work out single counts.",
]


def page(kit: Kit, *, own_sites: int | None = None) -> str:
    """Return what a custodian reads before approving: one page of plain text; ``own_sites`` instead of the kit's number."""
    s = kit.study
    least = kit.own_sites if own_sites is None else own_sites
    about = "all species of a site" if s.community else s.species
    way = (
        "a folder that all of you share; whoever keeps it sees sizes and times, no content"
        if s.engine == "folder"
        else f"a relay at {s.host}, port {s.port} ({s.engine}), which sees sizes and times, no content"
    )
    return "\n".join(
        [
            f"Study {s.name}, revision {s.revision}: {about or 'a method of its own'}",
            f"  job          {kit.job.hex()}",
            f"  you are      {kit.name}",
            f"  carried by   {way}",
            f"  computed by  fedmiss {__version__}, protocol {PROTOCOL}; another version has another job",
            *(_method(s) if s.method else _community(s) if s.community else _model(kit)),
            "  organisations and the fingerprints of their keys (compare them by telephone):",
            *(f"    {name:12s} {fingerprint(key)}" for name, key in sorted(kit.roster.items())),
            "Who asks",
            "  Nobody. Your computer runs the whole job, as the others' do, and answers what its own copy asks.",
            f"  It stops where another copy asks something else, and after {s.exchanges:,} exchanges.",
            "What the other organisations see, and nobody else",
            *(_seen_of_method(s) if s.method else _seen_of_model(s, least)),
            "  Studies that you joined with another kit are not known here: with the same records the difference of the two",
            "  results is the sum of whoever is in one of them only.",
            *_differences(kit, least),
        ]
    )


def _method(s: Study) -> list[str]:
    settings = ", ".join(f"{k} = {v!r}" for k, v in s.method.items() if k != "run")
    return [
        f"  method       {s.method['run']}, a function installed on your computer; it sees your data, and it alone",
        "               says what is sent: read it, or ask somebody who has",
        *([f"  its settings {settings}"] if settings else []),
        *_absence(s),
    ]


def _absence(s: Study) -> list[str]:
    rule = s.rule_of_absence
    if rule is None:
        return []
    lines = [
        f"  absence      who is away holds up a round for {s.absence:g} seconds; then the others go on, and its last sums",
        f"               stand. {rule.chair} says who is there",
    ]
    if s.masks:
        lines += [
            f"               cohorts: {'; '.join(', '.join(c) for c in rule.cohorts)}",
            "               Do not join two such studies about the same data: the difference of two cohorts can be you",
        ]
    return lines


def _community(s: Study) -> list[str]:
    m, names = s.of_community, s.community["species"]
    words = textwrap.wrap(", ".join(names), 105, break_on_hyphens=False)
    return [
        f"  model        {m.model} of all species of a site, rank {m.rank}, {m.folds} folds, effort {m.effort}",
        f"  species      {len(names)}, on complete checklists:",
        *(f"    {line}" for line in words),
    ]


def _model(kit: Kit) -> list[str]:
    s = kit.study
    m = s.fit
    season = ", ".join(map(str, s.season)) if s.season else "all months"
    months = f"{s.months[0]} to {s.months[1]}" if s.months else "all months that the organisations have"
    order = s.order()
    chosen = len(order.candidates) > 1 and not order.before
    folds = f"{m.folds} folds" if chosen else "no folds: one model"
    return [
        f"  period       {months}; season: {season}",
        f"  model        {m.model}, rank {m.rank}, {m.bootstrap} bootstrap replicates, {folds}",
        *_others(s),
        *(_onward(kit) if s.before else []),
        *(
            ["  compressed   months' sums go as differences to the last ones, in half the bytes"]
            if s.compress
            else []
        ),
    ]


def _others(s: Study) -> list[str]:
    """Settings of the model that no other line shows: a custodian sees all of what is approved."""
    more = {k: v for k, v in s.model.items() if k not in ("model", "rank", "bootstrap", "folds")}
    words = ", ".join(f"{k} = {v!r}" for k, v in more.items())
    return [f"               {line}" for line in textwrap.wrap(words, 100)]


def _onward(kit: Kit) -> list[str]:
    """What a job goes on from, compared with what this computer has kept of the job before it.

    Raises
    ------
    ConfigError    they differ: names model and part
    """
    s, given = kit.study, kit.study.order().before
    revision = s.before["revision"]
    kept = [read_before(one["models"], "the kit") for one in kit.kept_of(revision)]
    what = [differing(one, given) for one in kept]
    if kept and all(what):
        raise ConfigError(
            f"study {s.name} goes on from revision {revision} with other numbers than this computer has kept of it "
            f"({what[-1]}): whoever made revision {s.revision} has changed them, or took them from another job. Nothing was "
            "approved. Ask for a revision made from a kit that took part."
        )
    if not kept:
        said = "You took no part in that job: ask somebody who did whether these numbers are its own"
    elif all(b.months is None for one in kept for b in one):
        said = (
            "Your computer has kept the model of that job only, not its months: ask another club about them"
        )
    else:
        said = "They are those that your computer has kept of that job"
    names = ", ".join(
        f"{model_name(b.settings)} of rank {b.settings.rank}"
        + ("" if b.months is None else " with its months")
        for b in given
    )
    return [
        f"  goes on from revision {revision}: {names}; nothing is chosen again.",
        "               Its months' numbers stand in study.json: whoever gets that file can read them",
        f"               {said}",
    ]


def _seen_of_method(s: Study) -> list[str]:
    """What fedmiss can promise of a function that it does not know."""
    if s.masks:
        n = len(s.organisations)
        whom, there = (
            ("all organisations", f"together ({n - 1} of {n})") if not s.absence else ("a cohort", "in it")
        )
        sums = [
            f"  What the function adds up is masked: they can read only the sum over {whom}. All of the others",
            f"  {there} can subtract theirs, and have yours.",
        ]
    else:
        sums = ["  What the function adds up, NOT masked: they see yours."]
    return [
        *sums,
        "  In clear: what it shows without adding up, what it computes from the sums, a digest of its code, the version",
        "  of fedmiss.",
        "  fedmiss checks no least number of rows or contributors here: only the function knows what its sums are of.",
        "  Sums of many rounds can tell each value in the data of all others together, however many rows these have.",
    ]


def _seen_of_model(s: Study, own_sites: int) -> list[str]:
    unit, few = "species" if s.community else "months", _FEW_SITES if s.few_sites and s.masks else []
    clear = (
        [
            "  In clear: calendar months with a checklist, names of the sites' covariates and of their categories, of each",
            "  within a factor of 2 the largest value, the version of fedmiss.",
        ]
        if s.community
        else [
            "  In clear: first and last month with a visit, season, names of regions, names of the sites' covariates and of",
            "  their categories, of each within a factor of 2 the largest value, whether you list sites that nobody",
            "  visited, the version of fedmiss.",
        ]
    )
    if s.masks:
        lines = [
            "  Sums over your sites, each masked: they can read only the sum over all organisations. All of the others",
            f"  together ({len(s.organisations) - 1} of {len(s.organisations)}) can subtract theirs, and have yours, over "
            + (f"{own_sites} sites or more" if own_sites > 1 else "any number of sites"),
            f"  (`join --own-sites N` leaves out your {unit} with fewer than N of them).",
        ]
    else:
        every, sums = (
            ("species", "the sites where you found each species, your birds of each")
            if s.community
            else ("month", "your birds and visits of every month")
        )
        lines = [
            f"  Sums over your sites by {every}, NOT masked. They can compute from them: {sums},",
            "  of every fold of the cross-validation, and your expected birds"
            + ("." if s.community else " by month and region."),
            f"  With {len(s.organisations)} organisations, each can subtract its own part of the joint result and has the "
            + ("other's." if len(s.organisations) == 2 else "sum of the others'."),
        ]
    if s.community:
        return [
            *lines,
            *clear,
            f"  A species found at fewer than {s.minimum} sites of all organisations together, by fewer than",
            f"  {s.contributors} organisations, or with over {s.share:.0%} of these sites in one, is left out; only the",
            "  number of these sites is seen, no birds. Species that are not in the list above stay at home, names too.",
            "  Sites are compared with nobody's: one that two organisations visit counts in each.",
            *few,
        ]
    return [
        *lines,
        *clear,
        f"  Months with fewer than {s.minimum} visits or sites of all organisations together, with fewer than",
        f"  {s.contributors} organisations, or with more than {s.share:.0%} of the visits from one, are left out; months",
        "  with such a fold are left out of the choice of the model. Of these months the numbers of visits and sites are",
        f"  seen, no birds; of every two months the sites visited in both, up to {s.minimum} of each.",
        "  Sites are compared with nobody's: one that two organisations visit counts in each.",
        *few,
    ]


def _differences(kit: Kit, own_sites: int) -> list[str]:
    """Return what this job reveals together with earlier ones."""
    lines = []
    unit = "species" if kit.study.community else "month"
    for old in kit.history():
        if old["job"] == kit.job.hex():
            continue
        gone = sorted(set(old["roster"]) - set(kit.roster))
        new = sorted(set(kit.roster) - set(old["roster"]))
        what = [f"without {n}" for n in gone] + [f"with {n} added" for n in new]
        lines.append(
            f"WARNING: you took part in {old['study']} revision {old['revision']} on {old['time']}. This job is "
            f"{' and '.join(what) or 'of the same roster, with other settings or other data'}: the difference of the two "
            "results is the sum of whoever, or whatever years, came or went."
        )
        then = old.get("own_sites")  # of a job that was begun
        if then is not None and max(then, 1) != max(own_sites, 1):
            few, many = sorted((max(then, 1), max(own_sites, 1)))
            lines.append(
                f"WARNING: that job had --own-sites {then}, this one has {own_sites}. The difference of the two results can "
                f"be exactly what you would leave out: each {unit} with {few} to {many - 1} of your sites. Say --own-sites "
                f"{then}."
            )
    return lines


def approve(kit: Kit, *, ask: Callable[[str], bool] | None, given: str = "") -> None:
    """Make sure that the custodian approved this job: by a stored approval, by its hash, or by answering.

    Parameters
    ----------
    ask : shows the page and returns whether it is approved; None where nobody is there to ask
    given : the job's hash, or its first twelve digits or more, from the custodian
    """
    job = kit.job.hex()
    if given and not (len(given) >= 12 and job.startswith(given.lower())):
        raise ConfigError(
            f"the approval is of job {given}, this kit is of job {job}: another study, roster or version of fedmiss (here "
            f"{__version__}). Read the page that --dry-run shows, and approve that."
        )
    if kit.approval() is not None:
        return
    text = page(kit)
    if not given:
        if ask is None:
            raise ConfigError(
                f"job {job[:12]} of study {kit.study.name} is not approved, and nobody is there to ask. Read the page that "
                f"--dry-run shows, then say: fedmiss federation join ... --approve {job[:12]}"
            )
        if not ask(text):
            raise ConfigError(f"job {job[:12]} was not approved; nothing was sent.")
    else:  # the page was read elsewhere, or by somebody else
        for warning in _differences(kit, kit.own_sites):
            note(warning)
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    write_json(
        kit.private / "approval.json",
        {"job": job, "time": when, "by": user_name(), "page": text.splitlines()},
    )
    line = {
        "job": job,
        "study": kit.study.name,
        "revision": kit.study.revision,
        "roster": list(kit.roster),
        "time": when,
    }
    write_json(kit.private / "history.json", [*kit.history(), line])


def terminal_ask() -> Callable[[str], bool] | None:
    """Ask on the terminal, where there is one."""
    if not sys.stdin.isatty():
        return None

    def ask(text: str) -> bool:
        print(text)
        return input("Do you approve this job? Type yes, or anything else to stop: ").strip().lower() == "yes"

    return ask
