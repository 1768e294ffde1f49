"""A group's program: frames of questions in, frames of answers out. All that sees a visit is behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedmiss import __version__
from fedmiss.arrays import F64, I32, I64, Bool
from fedmiss.errors import ConfigError, FedmissError, InputError, UplinkError
from fedmiss.federation import messages as msg
from fedmiss.federation.codec import Envelope, decode, encode
from fedmiss.federation.group import answers
from fedmiss.federation.group.batch import Batch, Cells
from fedmiss.federation.group.folds import draw_folds, replicate_weights, withhold
from fedmiss.federation.group.visits import EFFORT_TERMS, Axis, Visits, effort_columns
from fedmiss.federation.keys import keyed_hashes, seed_key, uniforms_by_key
from fedmiss.federation.masks import Party
from fedmiss.federation.messages import SQUARES
from fedmiss.federation.rules import releasable
from fedmiss.models.lowrank.families import BERNOULLI, family_of

__all__ = ["LEAST_VISITS", "GroupProgram", "Used"]

LEAST_VISITS = 20  # twice the numbers in a table of the dispersion


@dataclass(frozen=True, slots=True)
class Used:
    """The visits that take part, sorted by (site, month), on the agreed axes."""

    site: I32
    month: I32
    stamp: I64
    count: F64
    observer: I32
    effort: F64
    weight: F64


def in_two(x: F64) -> F64:
    """Numbers (n,) as (n, 2): whole units of 2^20 and the rest, so that sums of squares of any size keep their digits."""
    coarse = np.floor(x / SQUARES)
    return np.stack([coarse, x - coarse * SQUARES], axis=1)


class GroupProgram:
    """Answers a hub's questions about one group's visits.

    Parameters
    ----------
    name : the group's name
    visits : what it holds
    key : 16 bytes that the groups share and the hub does not have: hashes of sites and checklists are made under it
    secret : the group's own, kept with its data: weights of bootstrap replicates come from it
    plain_refusals : whether the text of an error may go to the hub: only where one person holds both sides
    all_slopes : whether slopes of shared sites are computed here too when another group counts them
    weigh : weights of a replicate; None draws them from the secret
    minimum : the custodian's least number of sites (hence visits) behind a month's sums; the hub may ask for more, never
        for less
    settings : digest of the job's settings that the group agreed to (8 bytes); None takes those of the first question
    jointly : whether least numbers hold for the sums over groups, which is all that the hub sees of masked answers;
        otherwise for the group's own sums
    """

    def __init__(
        self,
        name: str,
        visits: Visits,
        *,
        key: bytes,
        secret: bytes,
        plain_refusals: bool = False,
        all_slopes: bool = True,
        weigh: Callable[[int, int, F64, Used], F64] | None = None,
        minimum: int = 0,
        settings: bytes | None = None,
        jointly: bool = False,
    ) -> None:
        self.name, self.held, self.key, self.secret = name, visits, key, secret
        self.plain_refusals, self.minimum, self.settings = plain_refusals, minimum, settings
        self.all_slopes, self.jointly = all_slopes, jointly
        # between organisations (see ``site``): what becomes of answers before they are packed; the group among the others
        self.protect: Callable[[list[msg.Answer], Envelope], list[msg.Answer]] | None = None
        self.party: Party | None = None
        self._job: bytes | None = None
        self._settings = bytes(8)
        self.weigh = weigh or self._weigh
        self.axis = Axis(np.zeros(1, np.int64))
        self.place = keyed_hashes(visits.site_id, seed_key("place")).astype(np.int64)  # sites by their ids
        self.refusal: Exception | None = None  # why the last question was refused, for the group's own screen
        self._fresh()
        self._handlers: dict[type, Callable[..., msg.Answer]] = {
            msg.Hello: self.hello,
            msg.Axes: self.axes,
            msg.Sites: self.sites,
            msg.Checklists: self.checklists,
            msg.Shared: self.shared,
            msg.Drop: self.drop,
            msg.Gaps: self.gaps,
            msg.Open: self.open,
            msg.Close: self.close,
            msg.Tally: self.tally,
            msg.Support: self.support,
            msg.SiteVisits: self.count_visits,
            msg.Outcome: self.outcome,
            msg.SealKey: self.seal_key,
            msg.OpenKey: self.open_key,
        }

    def _fresh(self) -> None:
        """State at the start of a job."""
        J = self.held.site_id.size
        self._last: tuple[int, bytes | None, bytes] = (-1, None, b"")  # exchange, its frame, the answer
        self.visits = self.held  # of the job: in its season, without checklists that others bring
        self.used: Used | None = None
        self.withheld = 0
        self.site_order, self.checklist_order = np.arange(J), np.zeros(0, dtype=np.int64)
        self.share, self.shared_at = np.ones(J), np.full(J, -1, dtype=np.int64)
        self.shared_sites = np.zeros(0, dtype=np.int64)
        self.log_visits = np.zeros(0)  # (J,) log(visits + 1/2), of all groups at joint sites
        self.batches: dict[int, Batch] = {}
        self.slopes: dict[tuple[int, int], F64] = {}  # site slopes of fits and replicates: they stay here
        self.own_totals: dict[tuple[int, int], F64] = {}  # and so do totals over its own sites
        self._cells: dict[bool, Cells] = {}
        self.releasable: dict[
            bool, Bool
        ] = {}  # months that the custodian's rule lets go: by whole months, by folds
        self.result: msg.Outcome | None = None  # of the finished job, for the group's own report

    # -- the wire --------------------------------------------------------------------------------------------

    def answer(self, frame: bytes) -> bytes:
        """Answer one frame of questions; an error becomes a refusal.

        The same frame again gets the same bytes again; a frame older than the last one is refused.
        """
        envelope = Envelope(bytes(8), bytes(8), 0)
        if frame == self._last[1]:
            return self._last[2]
        admitted = False
        try:
            envelope, questions = decode(frame, None, asks=True, who="the hub")
            self._admit(envelope)
            admitted = True
            given = [self.reply(q) for q in questions]
            replies: list[msg.Message] = list(self.protect(given, envelope) if self.protect else given)
        except FedmissError as error:
            replies = [self._refuse(error, type(error).__name__, str(error))]
        except Exception as error:  # a question that makes no sense must not end the group's program
            if self.plain_refusals:
                raise
            replies = [self._refuse(error, "EngineError", "")]
        out = encode(replies, envelope)
        if admitted:
            self._last = (envelope.exchange, frame, out)
        return out

    def _refuse(self, error: Exception, kind: str, text: str) -> msg.Refusal:
        self.refusal = error
        return msg.Refusal(
            kind, text if self.plain_refusals else f"{kind}; the reason stands on the group's own screen."
        )

    def _admit(self, envelope: Envelope) -> None:
        """Refuse another job, other settings than agreed, and questions older than the last one answered."""
        if self.settings is not None and envelope.settings != self.settings:
            raise ConfigError(
                f"the hub's settings have the digest {envelope.settings.hex()}, group {self.name!r} agreed to "
                f"{self.settings.hex()}. Give all sides the same settings."
            )
        if envelope.job != self._job:
            if self._job is not None and envelope.exchange:
                raise UplinkError(
                    f"group {self.name!r} is in job {self._job.hex()}, the question is of job {envelope.job.hex()}. "
                    "Start this group again for another job."
                )
            self._begin(envelope)
        if envelope.settings != self._settings:
            raise ConfigError(
                f"the settings changed during the job: {envelope.settings.hex()}, they were {self._settings.hex()}. "
                "Start the job again."
            )
        if envelope.exchange <= self._last[0]:
            raise UplinkError(
                f"group {self.name!r} has answered exchange {self._last[0]}; a question of exchange {envelope.exchange} "
                "came late and is not answered."
            )

    def _begin(self, envelope: Envelope) -> None:
        """Start a job with the visits as they are held: nothing of an earlier job remains."""
        self._job, self._settings = envelope.job, envelope.settings
        self._fresh()

    def reply(self, question: msg.Message) -> msg.Answer:
        """Answer one question."""
        handler = self._handlers.get(type(question))
        if handler is not None:
            return handler(question)
        batch = self.batches.get(question.batch)  # type: ignore[attr-defined]
        if batch is None:
            raise UplinkError(
                f"group {self.name!r}: batch {question.batch} was never opened here. Start the job again."  # type: ignore[attr-defined]
            )
        answers.check(self, batch, question)
        return answers.ANSWER[type(question)](self, batch, question)

    # -- agreeing --------------------------------------------------------------------------------------------

    def hello(self, q: msg.Hello) -> msg.Description:
        """Extents and sums of what the group holds."""
        v = self.visits
        if q.species and v.species and q.species != v.species:
            raise InputError(
                f"group {self.name!r} holds {v.species!r}, the job is about {q.species!r}. Make a panel of that species."
            )
        season = np.unique(v.month % 12) + 1 if v.calendar else np.zeros(0, np.int64)
        if q.season.size:
            outside = ~np.isin(v.month % 12 + 1, q.season)
            v = self.visits = v.take(~outside) if outside.any() else v
            season = season[np.isin(season, q.season)]
        return msg.Description(
            __version__,
            v.species,
            np.array([v.month.min(), v.month.max()] if v.site.size else [], dtype=np.int64),
            season.astype(np.int64),
            0 if v.given else len(EFFORT_TERMS),
            v.effort.shape[1] if v.given else 0,
            tuple(sorted({str(r) for r in np.unique(v.region) if r})),
            v.calendar,
            self.minimum,
        )

    def tally(self, q: msg.Tally) -> msg.Tallies:
        """Numbers of visits of the job."""
        v = self.visits
        effort, blanks = np.zeros((0, 2)), np.zeros(0, np.int64)
        if not v.given:
            known = ~np.isnan(v.effort)
            blanks = (~known).sum(axis=0)
            effort = np.zeros((len(EFFORT_TERMS), 2))
            for k in range(len(EFFORT_TERMS)):
                x = v.effort[known[:, k], k]
                effort[k] = x.size, float(x.size > 0 and x.max() > x.min())
        return msg.Tallies(
            int(v.site.size),
            int((~np.isnan(v.count)).sum()),
            int(v.detected.sum()),
            effort,
            blanks.astype(np.int64),
        )

    def axes(self, q: msg.Axes) -> msg.Done:
        """Put the visits on the agreed axes; months with too few sites are withheld."""
        v = self.visits
        minimum = 0 if self.jointly else max(q.minimum, self.minimum)
        self._check_release(q.released, q.minimum, folds=False)
        self.axis = Axis(q.months.astype(np.int64), q.terms, q.blanks, q.detections, minimum, q.regions)
        keep = np.ones(v.site.size, dtype=bool) if q.detections else ~np.isnan(v.count)
        index = self.axis.index(v.month, self.name)
        if q.released.size:
            keep &= q.released[index] == 1
        before = int(keep.sum())
        kept = np.flatnonzero(keep)
        thin = self._thin(v.site[kept], index[kept], np.zeros(kept.size, np.int64))
        keep[kept[thin]] = False
        own = np.unique(v.site[keep & (self.shared_at[v.site] < 0)]).size
        if minimum > 1 and (own < minimum or int(keep.sum()) < LEAST_VISITS):
            keep[:] = False  # even its sums over all months would be those of few sites or visits
        self.withheld = before - int(keep.sum())
        effort = v.effort if v.given else effort_columns(v.effort, q.terms, q.blanks)
        at = np.flatnonzero(keep)
        order = at[np.lexsort((index[at], v.site[at]))]
        value = v.detected.astype(float) if q.detections else v.count
        self.used = Used(
            v.site[order],
            index[order],
            v.month[order],
            value[order],
            v.observer[order],
            effort[order],
            v.weight[order],
        )
        self._cells.clear()
        self.batches.clear()
        return self._done()

    def _check_release(self, released: np.ndarray, minimum: int, *, folds: bool) -> None:
        """The custodian's rule for sums over groups, checked at home: the hub may ask for more, never for less."""
        if not self.jointly or not released.size:
            return
        allowed = self.releasable.get(folds)
        if allowed is None or allowed.size != released.size or (released.astype(bool) & ~allowed).any():
            raise ConfigError(
                f"group {self.name!r}: the hub releases months that do not have the {max(minimum, self.minimum)} visits and "
                "sites, or the two groups, that its custodian wants. Give the hub the same least numbers, and the same "
                "fedmiss."
            )

    def support(self, q: msg.Support) -> msg.SupportSums:
        """What stands behind every month's sums here; with the sums of all groups also whether this group dominates."""
        u, L = self._need(), self.axis.L
        part = self._folds(q.by, q.folds, q.seed, u) if q.folds else np.zeros(u.site.size, np.int64)
        parts, key = max(q.folds, 1), part * L + u.month
        visits = np.bincount(key, minlength=parts * L).reshape(parts, L).astype(float)
        places = np.unique(key * self.share.size + u.site)
        site_share = self.share[places % self.share.size]
        sites = np.bincount(places // self.share.size, site_share, parts * L).reshape(parts, L)
        regions = np.zeros((len(self.axis.regions) + 1, 3))
        at = np.zeros(self.share.size, dtype=np.int64)
        for i, name in enumerate(self.axis.regions):
            at[self.visits.region == name] = i + 1
        regions[:, 0] = np.bincount(at, self.share, regions.shape[0])
        regions[:, 1] = regions[:, 0] > 0
        over = np.zeros((parts, L))
        if q.visits.size:
            if (
                q.visits.shape != visits.shape
                or q.sites.shape != visits.shape
                or q.groups.shape != visits.shape
            ):
                raise UplinkError(
                    f"group {self.name!r} was sent sums of shape {q.visits.shape}, expected {visits.shape}."
                )
            over = (visits > q.share * q.visits).astype(float)
            regions[:, 2] = regions[:, 0] > q.share * q.regions[:, 0]
            self.releasable[q.folds > 0] = releasable(q.visits, q.sites, q.groups, self.minimum)
        return msg.SupportSums(visits, sites, (visits > 0).astype(float), over, regions)

    def count_visits(self, q: msg.SiteVisits) -> msg.VisitSums:
        """Count the visits of every site, at joint sites with those of the other groups."""
        u, S = self._need(), self.shared_sites
        visits = np.bincount(u.site, minlength=self.share.size).astype(float)
        if q.joint.size and q.joint.shape != S.shape:
            raise UplinkError(
                f"group {self.name!r} was sent visits of {q.joint.size} joint sites; it has {S.size}."
            )
        mine = visits[S] if not q.joint.size else np.zeros(0)
        visits[S] = q.joint if q.joint.size else visits[S]
        self.log_visits = np.log(visits + 0.5)
        z = self.log_visits
        return msg.VisitSums(np.array([self.share @ z, self.share @ z**2]), mine)

    def seal_key(self, q: msg.SealKey) -> msg.SealedKeys:
        """Draw the common key, if this is the first group by name, and seal it for the others."""
        party = self._party()
        others = [n for n in sorted(party.roster) if n != self.name]
        if self.name != min(party.roster):
            return msg.SealedKeys((), np.zeros((0, 32), np.uint8))
        self.key = party.common_key()
        sealed = [np.frombuffer(party.seal(n, self.key), np.uint8) for n in others]
        return msg.SealedKeys(tuple(others), np.stack(sealed) if sealed else np.zeros((0, 32), np.uint8))

    def open_key(self, q: msg.OpenKey) -> msg.Done:
        """Take the common key that the first group by name has sealed."""
        party = self._party()
        if q.sender != min(party.roster):
            raise UplinkError(
                f"group {self.name!r} takes the common key from {min(party.roster)!r} only, not {q.sender!r}."
            )
        if q.sender != self.name:
            self.key = party.unseal(q.sender, q.sealed.tobytes())
        return self._done()

    def _party(self) -> Party:
        if self.party is None:
            raise UplinkError(f"group {self.name!r} has its common key already. Start the job again.")
        return self.party

    def outcome(self, q: msg.Outcome) -> msg.Done:
        """Keep what the group's own report needs."""
        self.result = q
        return self._done()

    def _thin(self, site: I32, month: I32, part: I64) -> Bool:
        """Visits of months that cannot be released; joint sites are no cover, since their sums are known by themselves."""
        own = self.shared_at[site] < 0
        return withhold(site, month, part, own, self.axis.minimum, self.axis.L)

    def _done(self) -> msg.Done:
        u = self.used
        per = np.zeros(1) if u is None or not u.site.size else np.bincount(u.observer, u.weight)
        return msg.Done(
            0 if u is None else int(u.site.size),
            self.withheld,
            np.array([per.sum(), (per**2).sum()]),
            float(self.share.sum()),
        )

    def sites(self, q: msg.Sites) -> msg.KeyedHashes:
        """Hashes of the sites, sorted: their order says nothing."""
        hashes = keyed_hashes(self.visits.site_id, seed_key("site", self.key))
        self.site_order = np.argsort(hashes, kind="stable")
        return msg.KeyedHashes(hashes[self.site_order])

    def checklists(self, q: msg.Checklists) -> msg.KeyedHashes:
        """Hashes of the checklists, sorted."""
        ids = self.visits.checklist
        hashes = keyed_hashes(np.zeros(0, object) if ids is None else ids, seed_key("checklist", self.key))
        self.checklist_order = np.argsort(hashes, kind="stable")
        return msg.KeyedHashes(hashes[self.checklist_order])

    def shared(self, q: msg.Shared) -> msg.Done:
        """Learn which sites others visit too."""
        at = self.site_order[q.sites]
        self.share, self.shared_at = np.ones(self.share.size), np.full(self.share.size, -1, dtype=np.int64)
        self.share[at] = q.lead if q.joint else 1.0 / q.owners
        if q.joint:
            self.shared_sites = at.astype(np.int64)
            self.shared_at[at] = np.arange(at.size)
        else:
            self.shared_sites = np.zeros(0, dtype=np.int64)
        return self._done()

    def drop(self, q: msg.Drop) -> msg.Done:
        """Leave out checklists that another group brings."""
        if q.checklists.size:
            keep = np.ones(self.visits.site.size, dtype=bool)
            keep[self.checklist_order[q.checklists]] = False
            self.visits = self.visits.take(keep)
        return self._done()

    def gaps(self, q: msg.Gaps) -> msg.GapSums:
        """Count visited cells and site-years; joint sites as masks, since other groups visit them too."""
        u, L, years = self._need(), self.axis.L, self.axis.years(self.visits.calendar)
        length = np.bincount(years)
        cells = np.unique(u.site.astype(np.int64) * L + u.month)
        own = self.shared_at[cells // L] < 0
        share = self.share[cells // L]
        blocks = np.unique(cells[own] // L * length.size + years[cells[own] % L])
        block_share = self.share[blocks // length.size]
        masks = np.zeros((self.shared_sites.size, L), dtype=np.uint8)
        if masks.size:
            masks[self.shared_at[cells[~own] // L], cells[~own] % L] = 1
            place = keyed_hashes(
                self.visits.site_id[self.shared_sites], seed_key("order of months", self.key)
            )
            u01 = uniforms_by_key(place[:, None], np.arange(L)[None, :], "order of months")
            masks = np.take_along_axis(masks, np.argsort(years[None, :] + u01, axis=1), axis=1)
        return msg.GapSums(
            float(share[own].sum()),
            float(block_share.sum()),
            float((block_share * length[blocks % length.size]).sum()),
            float(self.share.sum()),
            np.packbits(masks, axis=1),
        )

    # -- fits ------------------------------------------------------------------------------------------------

    def _need(self) -> Used:
        if self.used is None:
            raise UplinkError(
                f"group {self.name!r} was asked about fits before the axes. Start the job again."
            )
        return self.used

    def _indexed(self, by_visit: bool) -> Cells:
        if by_visit not in self._cells:
            u = self._need()
            self._cells[by_visit] = Cells.of(
                u.site, u.month, self.visits.site_id.size, self.axis.L, by_visit=by_visit
            )
        return self._cells[by_visit]

    def _weigh(self, seed: int, number: int, spread: F64, used: Used) -> F64:
        return replicate_weights(
            self.secret, seed, number, spread, self.place[used.site], used.observer, used.weight
        )

    def _folds(self, by: str, folds: int, seed: int, u: Used) -> I64:
        year = u.stamp // 12 if self.visits.calendar else u.month.astype(np.int64) // 12
        return draw_folds(
            by, folds, seed, name=self.name, site_id=self.visits.site_id, site=u.site, month=u.stamp, year=year,
            observer=u.observer,
        )  # fmt: skip

    def open(self, q: msg.Open) -> msg.OpenSums:
        """Make the state of a batch: one set of weights for each of its fits."""
        u, family = self._need(), family_of(q.family)
        if q.line.shape not in ((0,), (self.axis.L,)) or (q.line.size and q.p < 2):
            raise UplinkError(
                f"group {self.name!r} was sent a line of shape {q.line.shape} for {self.axis.L} months and {q.p} "
                "coefficients. Install the same fedmiss on all sides, and start the job again."
            )
        if family.counts and u.count.size and float(u.count.min()) < 0:
            raise ConfigError(
                f"group {self.name!r} has the count {u.count.min():g}; Poisson counts must be 0 or more."
            )
        value = answers.to_scale(u.count, q.family, q.scale)
        test = None
        if q.weights == "fold":
            fold = self._folds(q.by, q.folds, q.seed, u)
            self._check_release(q.released, 0, folds=True)
            free = u.weight * ~self._thin(u.site, u.month, fold)
            if q.released.size:
                free = free * (q.released[u.month] == 1)
            weights = np.stack([free * (fold != k) for k in q.numbers])
            test = np.stack([free * (fold == k) for k in q.numbers])
            if q.by == "site":  # every held-out site counts once, however often it was visited
                test = test / np.bincount(u.site, minlength=self.share.size)[u.site]
        elif q.weights == "replicate":
            weights = np.stack([self.weigh(q.seed, int(b), q.spread, u) for b in q.numbers])
        else:
            weights = np.repeat(u.weight[None], q.numbers.size, axis=0)
        by_visit = family is BERNOULLI and (q.observers or u.effort.shape[1] > 0)
        batch = Batch.of(
            self._indexed(by_visit), value, weights, u.effort, u.observer, family=q.family, log1p=q.scale == "log1p",
            observers=q.observers, n_observers=int(u.observer.max(initial=-1)) + 1, p=q.p, L=self.axis.L,
            numbers=q.numbers, seed=q.seed, line=q.line, z=self._standardised(q.visits), test=test,
        )  # fmt: skip
        if q.source >= 0 and q.source not in self.batches:
            raise UplinkError(
                f"group {self.name!r}: batch {q.source} was never opened here. Start the job again."
            )
        if q.source >= 0:
            answers.start_from(batch, self.batches[q.source])
        self.batches[q.batch] = batch
        w = batch.rows.w.sum(axis=1)
        sums = [w, batch.rows.wy.sum(axis=1), w]
        return msg.OpenSums(
            np.stack(sums, axis=1), in_two(batch.rows.wyy.sum(axis=1)), float(self.share.sum())
        )

    def _standardised(self, scale: F64) -> F64:
        """Log visits of the sites, centred and scaled; empty where they are not wanted."""
        if not scale.size:
            return np.zeros(0)
        if scale.shape != (2,) or not scale[1] > 0 or not self.log_visits.size:
            raise UplinkError(
                f"group {self.name!r} was sent a scale of visits that it cannot use. Install the same fedmiss on all sides, "
                "and start the job again."
            )
        out: F64 = (self.log_visits - scale[0]) / scale[1]
        return out

    def close(self, q: msg.Close) -> msg.Done:
        """Forget batches."""
        for b in q.batches:
            self.batches.pop(int(b), None)
        return self._done()

    def site_posterior(self, batch: int, fit: int) -> tuple[F64, F64]:
        """Coefficients (J, p) and covariances (J, p, p) of the group's sites in one fit: they stay with the group."""
        b = self.batches[batch]
        p = int(b.rank[fit])
        return b.P[fit, :, :p].copy(), b.C[fit, :, :p, :p].copy()
