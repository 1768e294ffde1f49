"""A federation in one process, for a user who holds all groups: the same program, the same bytes, all results in one place.

Groups that share sites are one here (:func:`.visits.unite`): who holds all visits of a site need exchange nothing about it.

:class:`LocalFederation` runs the stages of a job and keeps their ledger; :mod:`.calls` has a function for each stage. What
the hub may not know (sites' coefficients, their slopes) is taken from the groups' own programs at the end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from fedmiss.arrays import F64, I64, distinct
from fedmiss.errors import ConfigError
from fedmiss.federation import messages as msg
from fedmiss.federation.group.panel import stamps_of, visits_of
from fedmiss.federation.group.program import GroupProgram
from fedmiss.federation.group.visits import IncludedVisits, Visits, digest_of, unite
from fedmiss.federation.hub import bootstrap as hub_bootstrap
from fedmiss.federation.hub.agree import DataSpec, agree
from fedmiss.federation.hub.crossval import open_batch
from fedmiss.federation.hub.members import FULL, FittedModel, fit_members
from fedmiss.federation.hub.state import MonthState
from fedmiss.federation.hub.structure import check_slopes, choose_model, features_of
from fedmiss.federation.keys import keyed_hashes, seed_key
from fedmiss.federation.link import Link
from fedmiss.federation.results import AverageFit, CountFit, Posterior, errors_of_sites
from fedmiss.federation.resume import Resumable
from fedmiss.models.lowrank.choice import Choice, check_candidates
from fedmiss.models.lowrank.data import GroupPanel
from fedmiss.models.lowrank.occupancy import ChainPosterior
from fedmiss.models.lowrank.own_lines import OwnLines
from fedmiss.models.lowrank.settings import Auxiliary, CountSettings
from fedmiss.models.lowrank.theta import Fit
from fedmiss.seasons import years_of

REPLICATES = 1  # first of their batches
MOST_PROGRAMS = 16  # each costs a tenth of a millisecond in every round


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """Replicates: ``totals`` (B, R, L) monthly totals per region, ``slopes`` (B, J) yearly log slopes per site.

    ``own`` (B, groups, L): totals over each group's own sites, for its own report; empty unless asked for.
    """

    totals: F64
    slopes: F64
    own: F64

    @classmethod
    def joined(cls, parts: Sequence[Draws]) -> Draws:
        """Replicates of several parts, in order."""
        return cls(
            *(np.concatenate([getattr(part, name) for part in parts]) for name in ("totals", "slopes", "own"))
        )


class LocalFederation:
    """All groups of a panel, their programs, and a hub that asks them, in this process.

    Parameters
    ----------
    held : what each group holds, by name; ``at`` says which sites of the panel its sites are
    at : name -> (J_c,) rows of the common list of J sites
    J : number of sites of the panel
    plan : what is wanted (axes, effort terms, least numbers)
    apart : leave groups that share sites apart, as organisations are: such a site counts in each of them
    duplicates : whether a checklist that several groups hold counts in the first by name only
    secrets : secret of each group by name; None derives them from the groups' own visits
    weigh : weights of a replicate by group, for comparisons: (group, seed, number, spread, visits) -> (m,)
    watch : called after each exchange with (stage, exchanges so far)
    own : keep what each group needs for a report about its own sites
    most : programs at most, of groups with sites of their own; None for one each, as workers of a method
    more : further settings that decide the result: they enter the digest that every frame carries

    Examples
    --------
    >>> import numpy as np, fedmiss
    >>> p = fedmiss.simulate_panel(30, 24, 0.5, rank=0, seed=1, groups=2)
    >>> clubs = [p.site_index % 2 == k for k in (0, 1)]  # each has sites of its own
    >>> groups = [fedmiss.Group.of(f"club {k}", p.site_index[c], p.month_index[c], p.y[c]) for k, c in enumerate(clubs)]
    >>> panel = fedmiss.GroupPanel.of(30, 24, groups)
    >>> federation = fedmiss.federation.LocalFederation.of_panel(panel)
    >>> list(federation.programs)
    ['club 0', 'club 1']
    >>> fit = federation.fit(fedmiss.CountSettings(rank=0))
    >>> pooled = fedmiss.fit_counts(panel.pooled(), fedmiss.CountSettings(rank=0))
    >>> bool(np.allclose(fit.expected(), pooled.expected(), rtol=1e-6))
    True
    """

    def __init__(
        self,
        held: Mapping[str, Visits],
        at: Mapping[str, I64],
        J: int,
        plan: DataSpec,
        *,
        secrets: Mapping[str, bytes] | None = None,
        weigh: Callable[[str, int, int, F64, IncludedVisits], F64] | None = None,
        watch: Callable[[str, int], None] | None = None,
        more: bytes = b"",
        own: bool = False,
        apart: bool = False,
        duplicates: bool = False,
        most: int | None = MOST_PROGRAMS,
    ) -> None:
        # many parameters: tests and studies replace one part of the federation each
        self.J, self.own, self.dropped = J, own, 0
        known = {name: (secrets or {}).get(name) or _digest(name, held[name]) for name in sorted(held)}
        # Keyed before groups are made one: which are follows from the species, and weights must not.
        held = {name: _keyed(held[name], secret) for name, secret in known.items()}
        parts = {name: [name] for name in known}
        visited = {name: at[name][distinct(held[name].site)] for name in known}
        self.unseen = [name for name in known if not held[name].detected.any()]
        if not apart:
            # least numbers are those of each group
            most = None if plan.minimum > 1 else most
            held, at, parts, self.dropped = unite(held, at, J, duplicates=duplicates, most=most)
        self.at = {name: at[name] for name in sorted(parts)}
        secret = _of_all(sorted(set(known.values())))
        self.programs = {
            name: GroupProgram(
                name, held[name], secret=secret,
                plain_refusals=True, parts=[np.searchsorted(rows, visited[one]) for one in parts[name]] if own else (),
                weigh=None if weigh is None else partial(weigh, name), minimum=plan.minimum, jointly=plan.jointly,
            )
            for name, rows in self.at.items()
        }  # fmt: skip
        self.groups_of = {name: parts[name] for name in self.at}
        whole = [name.encode() + digest_of(held[name]) + at[name].tobytes() for name in sorted(held)]
        job = hashlib.blake2b(b"".join([*whole, more]), digest_size=8).digest()
        months = b"" if plan.months is None else np.asarray(plan.months, np.int64).tobytes()
        words = repr(replace(plan, months=None)).encode()
        settings = hashlib.blake2b(b"\0".join([words, months, more]), digest_size=8).digest()
        self.groups = Resumable(self.programs)
        self.link = Link(self.groups, job, settings, watch)
        self.agreement = agree(self.link, plan)
        self.hub = self.agreement.panel
        self.L = self.hub.L
        self.members: list[FittedModel] = []  # of the last variational fit
        self.last: CountFit | AverageFit | None = None

    @classmethod
    def of_panel(
        cls,
        panel: GroupPanel,
        *,
        apart: bool = False,
        minimum: int = 0,
        secrets: Mapping[str, bytes] | None = None,
        weigh: Callable[[str, int, int, F64, IncludedVisits], F64] | None = None,
        watch: Callable[[str, int], None] | None = None,
    ) -> LocalFederation:
        """Federation of the groups of a panel in memory.

        Parameters
        ----------
        apart : leave groups that share sites apart, as organisations are: such a site counts in each of them
        minimum : least number of a group's sites behind a month's sums
        """
        held, at = visits_of(panel)
        twice = len(panel.groups) > 1 and all(group.checklist is not None for group in panel.groups)
        plan = DataSpec(months=stamps_of(panel), minimum=minimum)
        return cls(
            held, at, panel.J, plan, secrets=secrets, weigh=weigh, watch=watch, apart=apart, duplicates=twice
        )

    @contextmanager
    def kept(self, folder: Path, told: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Keep the rounds of what is done inside in ``folder``; those that it holds already are not done again.

        ``told`` is called when all that was kept has been used.
        """
        with self.groups.stage(folder, self.link.exchange, told) as first:
            self.link.exchange = first
            yield

    @property
    def notes(self) -> list[str]:
        """What was found on the way, in words: by the agreement, and where groups were made one."""
        alone = [name for name, part in self.groups_of.items() if len(part) == 1]
        out = [f"group {name!r} never saw the species." for name in self.unseen if name not in alone]
        if self.dropped:
            out.append(
                f"{self.dropped} visits are on checklists that two groups hold; each counts in the first by name only."
            )
        return [*self.agreement.notes, *out]

    @property
    def n_counted(self) -> int:
        """Number of counted visits that take part."""
        return self.hub.visits

    def n_cells(self) -> int:
        """Number of site x month cells that some group has visited: only who holds all groups can count them."""
        cells = [
            self.at[name][program.used.site] * self.L + program.used.month
            for name, program in self.programs.items()
            if program.used is not None
        ]
        return int(distinct(np.concatenate(cells)).size)

    def fit(self, settings: CountSettings, *, watch: Callable[[int, float], None] | None = None) -> CountFit:
        """Fit the count model; the groups keep their half of it for the bootstrap."""
        return self.fit_average([settings], watch=watch).fits[0]

    def fit_average(
        self, settings: Sequence[CountSettings], *, watch: Callable[[int, float], None] | None = None
    ) -> AverageFit:
        """Fit several models side by side, the chosen one first; the groups keep their halves for the bootstrap.

        ``watch`` is called after each round of the first with (round, root mean square move).

        Raises ConfigError: no model, or models whose counts have different laws, of which there is no mean.
        """
        _check(settings)
        if len(laws := {(one.family, one.scale, one.dispersion) for one in settings}) != 1:
            raise ConfigError(
                f"{len(settings)} models have {len(laws)} laws of counts (must be one); their mean has none. Fit each alone."
            )
        self.ask_features(settings)
        self.link.stage = "fit"
        if self.members:  # what an earlier fit has left with the groups is of other models
            self.link.ask([msg.Close(np.array([member.batch for member in self.members]))])
        return self.average(fit_members(self.link, self.hub, settings, watch=watch))

    def average(self, members: Sequence[FittedModel]) -> AverageFit:
        """The fits of these members, both halves of each."""
        self.members = list(members)
        self.last = AverageFit(
            tuple(self.result(member.batch, 0, member.settings, member.state) for member in members)
        )
        return self.last

    def result(self, batch: int, fit: int, settings: CountSettings, state: MonthState) -> CountFit:
        """Both halves of a fit together: what only somebody who holds all groups may have."""
        J, p = self.J, state.p
        P, C, owners = np.zeros((J, p)), np.zeros((J, p, p)), np.zeros(J)
        F = np.zeros((J, state.features.k))
        for name, program in self.programs.items():
            at, (Pg, Cg) = self.at[name], program.site_posterior(batch, fit)
            P[at], C[at], owners[at] = P[at] + Pg, C[at] + Cg, owners[at] + 1
            F[at] = program.batches[batch].F
        # of sites that groups share and keep apart this is the mean over their owners
        P /= np.maximum(owners, 1)[:, None]
        C /= np.maximum(owners, 1)[:, None, None]
        own = [program.own_lines(batch, fit) for program in self.programs.values()]
        lines = (
            OwnLines.joined([one for one in own if one is not None], self.at.values(), J)
            if state.slopes
            else None
        )
        posterior = Posterior(
            state.mu, P, C, state.T, state.D, state.tau, state.prior, state.noise,
            # without a calendar columns are species (:mod:`fedmiss.community`), whose organisations hold their own sites
            errors_of_sites(C, state.tau, F, state.features.covariance(state.unit), lines) if state.series else (),
            state.in_common,
        )  # fmt: skip
        chains = {name: program.site_presence(batch, fit) for name, program in self.programs.items()}
        known = [chain for chain in chains.values() if chain is not None]
        presence = ChainPosterior.mean_of(known, list(self.at.values()), J) if known else None
        history = Fit(posterior.theta(), [], state.converged, state.stop_reason, state.rounds, edf=state.edf)
        return CountFit(
            replace(settings, rank=state.rank), J, self.L, history, self.auxiliary(batch, fit, state),
            state.dispersion, state.edf, self.n_counted, state.calibration, posterior, state,
            presence, self.agreement.year if presence is not None else None, lines,
        )  # fmt: skip

    def auxiliary(self, batch: int, fit: int, state: MonthState) -> Auxiliary:
        """Everything but the low-rank part; observer effects are read from the groups' own programs."""
        own = [program.batches[batch] for program in self.programs.values()]
        observer, variance = (
            tuple(getattr(b, name)[fit].copy() for b in own) for name in ("effects", "effect_var")
        )
        return Auxiliary(
            state.kappa, observer, state.size, state.phi, state.ridge, state.edf_visits, variance
        )

    def load(self, fit: CountFit) -> None:
        """Give the groups their half of an earlier fit, so that replicates can start from it."""
        own, other = (fit.J, fit.L, fit.n_counted), (self.J, self.L, self.n_counted)
        if own != other:
            raise ConfigError(
                "the fit is of {} sites, {} months and {} counted visits, and the panel has {}, {} and {}; give the panel "
                "that was fitted.".format(*own, *other)
            )
        if fit.posterior is None:
            self.fit(fit.settings)
            return
        if fit.state is None:
            raise ConfigError("a fit that was read from a folder cannot be resampled; fit the panel again.")
        self.ask_features([fit.settings])
        self.link.ask([open_batch(self.hub, FULL, fit.settings)])
        p = fit.state.p
        for i, (name, program) in enumerate(self.programs.items()):
            batch = program.batches[FULL]
            batch.site_mean[0, :, :p], batch.site_cov[0, :, :p, :p] = (
                fit.posterior.P[self.at[name]],
                fit.posterior.C[self.at[name]],
            )
            batch.effects[0], batch.effect_var[0] = fit.aux.observer[i], fit.aux.observer_var[i]
            if batch.presence is not None and fit.presence is not None:
                batch.presence.q[0] = fit.presence.present[self.at[name]]
                batch.weigh(0)
            batch.rank[:] = p
            if fit.state.half:
                years = years_of(program.axis.months)
                batch.major[:] = batch.with_more_than(
                    np.array([fit.state.half]), np.zeros(1, np.int64), years
                )
        self.members, self.last = [FittedModel(fit.settings, fit.state)], fit

    def cross_validate(
        self,
        candidates: Sequence[CountSettings],
        *,
        folds: int = 5,
        by: str = "auto",
        seed: int = 0,
        one_se: bool = False,
        structure: Sequence[str] | None = None,
        inverse_size: float = 0.0,
        watch: Callable[[int], None] | None = None,
    ) -> Choice:
        """Score every candidate on held-out visits and choose.

        ``inverse_size``: deviance of the negative binomial with this 1 / size in place of the family's.
        ``structure``: features of sites to try, and with them observers and slopes of sites; None for no such trial.
        """
        _check(candidates)
        check_candidates(candidates, folds)
        self.ask_features(candidates, structure)
        self.link.stage = "cross-validation"
        self.hub, choice = choose_model(
            self.link, self.hub, candidates, folds=folds, by=by, seed=seed, one_se=one_se, inverse_size=inverse_size,
            structure=structure, watch=watch,
        )  # fmt: skip
        return choice

    def ask_features(self, settings: Sequence[CountSettings], tried: Sequence[str] | None = None) -> None:
        """Agree on the features of sites that settings name or that are to be tried, where that was not done yet."""
        check_slopes(self.hub, settings)
        self.hub = features_of(self.link, self.hub, settings, tried)

    def replicates(self, numbers: Sequence[int], *, seed: int) -> Draws:
        """Bootstrap replicates of the last fit, side by side; site slopes are taken from the groups.

        Of an average, each replicate is one of the member that it is dealt to by its number.
        """
        assert self.last is not None, "fit first"
        self.link.stage = "bootstrap"
        totals, places = hub_bootstrap.replicates(
            self.link, self.hub, self.members, numbers, seed=seed, batch=REPLICATES
        )
        slopes, own = self.drawn(places)
        self.link.ask([msg.Close(np.arange(REPLICATES, REPLICATES + len(self.members)))])
        return Draws(totals, slopes, own)

    def drawn(self, places: Sequence[tuple[int, int]]) -> tuple[F64, F64]:
        """What groups know of the replicates at these (batch, fit): site slopes (n, J), and totals of ``own`` reports."""
        slopes, owners = np.zeros((len(places), self.J)), np.zeros((len(places), self.J))
        for name, program in self.programs.items():
            for i, place in enumerate(places):
                if place in program.slopes:
                    slopes[i, self.at[name]] += program.slopes.pop(place)
                    owners[i, self.at[name]] += 1
        mine = [np.concatenate([p.own_totals.pop(place) for p in self.programs.values()]) for place in places]
        slopes = np.divide(slopes, owners, out=np.full_like(slopes, np.nan), where=owners > 0)
        return slopes, np.array(mine) if self.own else np.zeros((len(places), 0, self.L))

    def lockstep_size(self) -> int:
        """How many replicates run side by side."""
        assert self.last is not None, "fit first"
        return hub_bootstrap.lockstep_size(self.hub, max(fit.settings.rank for fit in self.last.fits) + 2)


def _keyed(visits: Visits, secret: bytes) -> Visits:
    """The visits with a hash for every observer's id: two groups may call different people the same."""
    hashes = keyed_hashes(visits.who, seed_key("observer", secret))
    return replace(visits, observer_id=hashes.astype(str).astype(object))


def _of_all(secrets: Sequence[bytes]) -> bytes:
    """The secret of groups that are one: it can be known to who knows all of theirs only."""
    if len(secrets) == 1:
        return secrets[0]
    return hashlib.blake2b(b"".join(hashlib.blake2b(secret).digest() for secret in secrets)).digest()


def _digest(name: str, visits: Visits) -> bytes:
    """What only who holds the visits can know: the secret of a group that was given none."""
    parts = [name.encode()]
    parts += [
        np.ascontiguousarray(column).tobytes()
        for column in (visits.site, visits.month, visits.count, visits.observer, visits.effort)
    ]
    return hashlib.blake2b(b"\0".join(parts)).digest()


def _check(settings: Sequence[CountSettings]) -> None:
    for one in settings:
        if not isinstance(one, CountSettings):
            raise ConfigError(f"settings are {one!r}; pass CountSettings, such as CountSettings(rank=0).")
        one.check()
