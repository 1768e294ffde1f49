"""A group's program: frames of questions in, frames of answers out. All that sees a visit is behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fedmiss.arrays import F64, I32, I64, Bool
from fedmiss.errors import ConfigError, FedmissError, UplinkError
from fedmiss.federation import messages as msg
from fedmiss.federation.codec import Envelope, decode, encode
from fedmiss.federation.group import answers
from fedmiss.federation.group.agreement import AGREEMENT
from fedmiss.federation.group.batch import Batch, CellIndex
from fedmiss.federation.group.folds import draw_folds, replicate_weights, secret_rng, withhold
from fedmiss.federation.group.presence import chain_posterior
from fedmiss.federation.group.visits import Axis, IncludedVisits, Visits
from fedmiss.federation.keys import keyed_hashes, seed_key
from fedmiss.federation.masks import Party
from fedmiss.federation.messages import SQUARES
from fedmiss.federation.rules import CONTRIBUTORS
from fedmiss.models.lowrank.families import family_of
from fedmiss.models.lowrank.occupancy import ChainPosterior
from fedmiss.models.lowrank.own_lines import OwnLines
from fedmiss.seasons import years_of

# a part of its visits, in which an organisation tells others what its observers lack in experience, and how late they come
PARTS = 32


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
    secret : the group's own, kept with its data: weights of bootstrap replicates come from it
    plain_refusals : whether the text of an error may go to the hub: only where one person holds both sides
    parts : sites of each part whose totals are kept for a report of its own; all sites by default
    weigh : weights of a replicate; None draws them from the secret
    minimum : the custodian's least number of sites (hence visits) behind a month's sums; the hub may ask for more, never
        for less
    settings : digest of the job's settings that the group agreed to (8 bytes); None takes those of the first question
    jointly : whether least numbers hold for the sums over groups, which is all that the hub sees of masked answers;
        otherwise for the group's own sums. Then folds follow from the secret too
    contributors : the custodian's least number of groups behind a released sum
    own_sites : with ``jointly``, the custodian's least number of the group's own sites in a month (and in a fold's part of
        it): visits of months with fewer take no part, so that all other groups together learn no sum over fewer
    finds : whether visits without a find stand behind nothing: those of a community, each of which is a zero of all species
    """

    def __init__(
        self,
        name: str,
        visits: Visits,
        *,
        secret: bytes,
        plain_refusals: bool = False,
        parts: Sequence[I64] = (),
        weigh: Callable[[int, int, F64, IncludedVisits], F64] | None = None,
        minimum: int = 0,
        settings: bytes | None = None,
        jointly: bool = False,
        contributors: int = CONTRIBUTORS,
        own_sites: int = 0,
        finds: bool = False,
    ) -> None:
        # many parameters: what a custodian decides, each with its default
        self.name, self.held, self.secret = name, visits, secret
        self.plain_refusals, self.minimum, self.settings = plain_refusals, minimum, settings
        self.jointly, self.contributors = jointly, contributors
        self.J = visits.site_id.size
        self.parts = tuple(parts) or (np.arange(self.J),)
        self.own_sites, self.finds = own_sites, finds
        # between organisations (see ``site``): what becomes of answers before they are packed; the group among the others
        self.protect: Callable[[list[msg.Answer], Envelope], list[msg.Answer]] | None = None
        self.party: Party | None = None
        self.community: Callable[[msg.Species], F64] | None = (
            None  # sums of a community of species over its sites
        )
        self._job: bytes | None = None
        self._settings = bytes(8)
        self.weigh = weigh or self._weigh
        self.axis = Axis(np.zeros(1, np.int64))
        self.place = keyed_hashes(visits.site_id, seed_key("place")).astype(np.int64)  # sites by their ids
        self.refusal: Exception | None = None  # why the last question was refused, for the group's own screen
        self._fresh()

    def _fresh(self) -> None:
        """State at the start of a job."""
        self._last: tuple[int, bytes | None, bytes] = (-1, None, b"")  # exchange, its frame, the answer
        self.visits = self.held  # of the job: in its season
        self.used: IncludedVisits | None = None
        self.withheld = 0
        self.standing = np.ones(self.J, bool)  # (J,) sites that joint totals are of
        self.uncounted = np.zeros(0)  # (L,) finds without a number, in months with counts
        self.found = (np.zeros(0, np.int32), np.zeros(0, np.int32))  # their sites and months
        self.log_visits = np.zeros(0)  # (J,) log(visits + 1/2)
        self.unvisited = np.zeros(0, bool)  # (J,) whether a site has no counted visit
        self.features = np.zeros((self.J, 0))  # of the sites, as the groups agreed on
        self.of_slopes = np.zeros(0, bool)  # features that only slopes follow
        self.few = np.zeros((0, 0), np.uint8)  # (L, L) 1 for two months with too few own sites in both
        self.batches: dict[int, Batch] = {}
        self.slopes: dict[tuple[int, int], F64] = {}  # site slopes of fits and replicates: they stay here
        self.own_totals: dict[tuple[int, int], F64] = {}  # and so do totals (parts, L)
        self._cells: dict[bool, CellIndex] = {}
        # deviance of held-out visits by (batch, fold, coefficients): (visits, deviance); kept where somebody put a table
        self.left_out: dict[tuple[int, int, int], tuple[I64, F64]] | None = None
        # of the finished job, for the group's own report: the chosen fit first
        self.results: list[msg.Outcome] = []

    @property
    def source(self) -> bytes:
        """What folds and replicates are drawn from: between organisations the secret and the job.

        With the same draws in a revision the sums of its folds less those before would be of what lies between a fifth and a
        quarter, or of the part of new visits that one fold has: of one visit (``tests/attacks/test_revisions.py``).
        """
        return self.secret + (self._job or b"") if self.jointly else self.secret

    def key(self, *words: str | int) -> bytes:
        """Key of draws that follow from the ids of sites, or from observers.

        Between organisations the secret is in it: else whoever guesses an id knows its draws, finds them in the sums of
        replicates, and so whose site it is (``tests/attacks/test_ids.py``).
        """
        return seed_key(*words, *([self.source] if self.jointly else []))

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
            given = [self.reply(question) for question in questions]
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
        # The text may hold counts or names: only the kind of error travels, unless one person holds both sides.
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
        # A hub that could ask again with other settings would see sums whose differences nobody has agreed to.
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
        if isinstance(question, msg.Open):
            return self.open(question)
        if isinstance(question, msg.Close):
            return self.close(question)
        handler = AGREEMENT.get(type(question))
        if handler is not None:
            return handler(self, question)
        batch = self.batches.get(question.batch)  # type: ignore[attr-defined]
        if batch is None:
            raise UplinkError(
                f"group {self.name!r}: batch {question.batch} was never opened here. Start the job again."  # type: ignore[attr-defined]
            )
        answers.check(self, batch, question)
        if isinstance(question, msg.Keep):
            if question.to in self.batches:
                self.batches[question.to].take(batch, question.fits)
            else:
                self.batches[question.to] = batch.copied()
            return self.ready()
        return answers.ANSWER[type(question)](self, batch, question)

    def thin(self, site: I32, month: I32, part: I64, live: Bool | None = None) -> Bool:
        """Visits of months that cannot be released; ``live``: which of them stand behind their month, None for all."""
        return withhold(site, month, part, self.axis.minimum, self.axis.L, live)

    def live(self, visits: IncludedVisits) -> Bool:
        """Visits that stand behind sums: not those without weight, nor in a community those that found nothing."""
        out: Bool = (visits.weight > 0) & (visits.count > 0) if self.finds else visits.weight > 0
        return out

    def ready(self) -> msg.Done:
        """What the group says when it has done what was asked."""
        used, about = self.used, np.zeros(5)
        if used is not None:
            per = np.bincount(used.observer, used.weight)
            lacking, later = used.weight @ used.experience
            about[:] = per.sum(), per @ per, -lacking, used.weight @ used.apart, later
            if self.jointly:
                about[2:] = self._roughly(about)
        return msg.Done(0 if used is None else int(used.site.size), self.withheld, about, self.n_standing)

    def _roughly(self, about: F64) -> F64:
        """Last three of the sums (5,) over observers, for other organisations.

        Exact, they tell of one observer who alone is new, or told from the site (or not), how often and how late he came:
        before the least numbers are known, and whether or not effects of observers are used.
        """
        unit = 2.0 ** np.floor(np.log2(max(about[0] / PARTS, 1.0)))
        by_chance = secret_rng(self.secret, self.name, "sums over observers").random(2)
        lacking, later = np.floor(about[[2, 4]] / unit + by_chance) * unit
        # none stays none, and some are never none
        return np.array([max(lacking, 1.0) if about[2] else 0.0, about[0] if about[3] else 0.0, later])

    # -- fits ------------------------------------------------------------------------------------------------

    def need(self) -> IncludedVisits:
        """The visits that take part, once the axes are agreed."""
        if self.used is None:
            raise UplinkError(
                f"group {self.name!r} was asked about fits before the axes. Start the job again."
            )
        return self.used

    @property
    def visited(self) -> Bool:
        """Sites (J,) where a visit of the group's own takes part."""
        out: Bool = np.bincount(self.need().site, minlength=self.J) > 0
        return out

    @property
    def n_standing(self) -> float:
        """Number of sites that joint totals are of, as messages have it."""
        return float(self.standing.sum())

    def _indexed(self, by_visit: bool) -> CellIndex:
        if by_visit not in self._cells:
            used = self.need()
            self._cells[by_visit] = CellIndex.of(
                used.site, used.month, self.visits.site_id.size, self.axis.L, by_visit=by_visit
            )
        return self._cells[by_visit]

    def _weigh(self, seed: int, number: int, spread: F64, used: IncludedVisits) -> F64:
        # Weights of replicates follow from the group's secret alone: the hub could solve for observers if it knew them.
        return replicate_weights(
            self.source, seed, number, spread, self.visits.who, self.place[used.site], used.observer,
            used.weight,
        )  # fmt: skip

    def fold_of(self, by: str, folds: int, seed: int, visits: IncludedVisits) -> I64:
        """Fold of every visit."""
        # Of the joint axis: a group may lack months of the season.
        months = self.axis.months if self.visits.calendar else np.arange(self.axis.L)
        year = years_of(months)[visits.month]
        return draw_folds(
            by, folds, seed, name=self.name, site_id=self.visits.site_id, site=visits.site, month=visits.stamp, year=year,
            observer=visits.observer, secret=self.source if self.jointly else b"",
        )  # fmt: skip

    def open(self, question: msg.Open) -> msg.OpenSums:
        """Make the state of a batch: one set of weights for each of its fits."""
        used, family = self.need(), family_of(question.family)
        if question.line.shape not in ((0,), (self.axis.L,)) or (question.line.size and question.p < 2):
            raise UplinkError(
                f"group {self.name!r} was sent a line of shape {question.line.shape} for {self.axis.L} months and "
                f"{question.p} coefficients. Install the same fedmiss on all sides, and start the job again."
            )
        if family.counts and used.count.size and float(used.count.min()) < 0:
            raise ConfigError(
                f"group {self.name!r} has the count {used.count.min():g}; Poisson counts must be 0 or more."
            )
        test = None
        if question.weights == "fold":
            fold = self.fold_of(question.by, question.folds, question.seed, used)
            # Without visits of a fold the rest must be releasable too: thin months are out of every fold.
            free = used.weight * ~self.thin(used.site, used.month, fold, self.live(used))
            if question.released.size:
                free = free * (question.released[used.month] == 1)
            weights = np.stack([free * (fold != fold_number) for fold_number in question.numbers])
            test = np.stack([free * (fold == fold_number) for fold_number in question.numbers])
            if question.by == "site":  # every held-out site counts once, however often it was visited
                test = test / np.bincount(used.site, minlength=self.J)[used.site]
        elif question.weights == "replicate":
            weights = np.stack(
                [self.weigh(question.seed, int(number), question.spread, used) for number in question.numbers]
            )
        else:
            weights = np.repeat(used.weight[None], question.numbers.size, axis=0)
        offsets = question.observers or used.effort.shape[1] > 0 or used.exposure is not None
        # Bernoulli: the mean of detections with unlike offsets is no function of their sum, so each visit is a cell.
        by_visit = not family.sums_offsets and offsets
        batch = Batch.of(
            question, used, self._indexed(by_visit), weights, test=test, F=self._features(question),
            of_slopes=self.of_slopes[question.features],
            year=self.axis.year, found=self.found,
        )  # fmt: skip
        if question.source >= 0 and question.source not in self.batches:
            raise UplinkError(
                f"group {self.name!r}: batch {question.source} was never opened here. Start the job again."
            )
        if question.source >= 0:
            answers.start_from(batch, self.batches[question.source])
        self.batches[question.batch] = batch
        w = batch.rows.w.sum(axis=1)
        exposed = batch.rows.w @ np.exp(batch.known) if batch.known.size and family.counts else w
        sums = [w, batch.rows.wy.sum(axis=1), exposed]
        return msg.OpenSums(np.stack(sums, axis=1), in_two(batch.rows.wyy.sum(axis=1)), self.n_standing)

    def _features(self, question: msg.Open) -> F64:
        """Features (J, k) of the sites about their means; none where the prior follows none."""
        if not question.features.size:
            return np.zeros((self.J, 0))
        k = self.features.shape[1]
        if (
            question.features.min() < 0
            or question.features.max() >= k
            or question.centre.shape != question.features.shape
        ):
            raise UplinkError(
                f"group {self.name!r} was asked for feature {int(question.features.max())} of {k}. Install the same "
                "fedmiss on all sides, and start the job again."
            )
        # Features about their means over visited sites: the level stays what it is without them. Of a site that has none,
        # as of its visits, the mean site's are expected.
        away: F64 = np.nan_to_num(self.features[:, question.features] - question.centre)
        return np.ascontiguousarray(away)

    def forget(self) -> None:
        """Forget what was made on other axes."""
        self._cells.clear()
        self.batches.clear()
        self.few = np.zeros((0, 0), np.uint8)

    def close(self, question: msg.Close) -> msg.Done:
        """Forget batches."""
        for number in question.batches:
            self.batches.pop(int(number), None)
        return self.ready()

    def site_presence(self, batch: int, fit: int) -> ChainPosterior | None:
        """Chains of the group's sites in one fit, None where no site may be empty: they stay with the group."""
        presence = self.batches[batch].presence
        return None if presence is None else chain_posterior(presence.evidence[fit], presence.chain[fit])[0]

    def own_lines(self, batch: int, fit: int) -> OwnLines | None:
        """Where the own lines of the group's sites end in one fit, None where sites have no slopes."""
        state = self.batches[batch]
        return state.own_lines(fit, years_of(self.axis.months)) if state.slopes else None

    def site_posterior(self, batch: int, fit: int) -> tuple[F64, F64]:
        """Coefficients (J, p) and covariances (J, p, p) of the group's sites in one fit: they stay with the group."""
        state = self.batches[batch]
        p = int(state.rank[fit])
        return state.site_mean[fit, :, :p].copy(), state.site_cov[fit, :, :p, :p].copy()
