"""The settings of ``fedmiss fit``; light to import, because the command line makes its options of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fedmiss.settings import Setting, Settings

__all__ = ["MODELS", "FitSettings"]

MODELS = {
    "quasi": {"family": "poisson", "dispersion": "quasi"},
    "negbin": {"family": "poisson", "dispersion": "negbin"},
    "log1p": {"family": "gaussian", "scale": "log1p"},
    "gaussian": {"family": "gaussian", "scale": "raw"},
    "bernoulli": {"family": "bernoulli"},
}


@dataclass(frozen=True, slots=True)
class FitSettings(Settings):
    """Settings of ``fedmiss fit``.

    Observer effects take part of a trend for themselves where observers come and go, and the intervals do not show it:
    hence there are none unless asked for. Without ``joint`` the owner of a shared site treats it as its own.

    Examples
    --------
    >>> import fedmiss
    >>> fedmiss.FitSettings(rank=1, bootstrap=100).bootstrap
    100
    """

    method: Annotated[
        str,
        Setting(
            "fast (count model), fedmissem (the paper's Algorithm 7), wire (dithered normal equations), or saem (count "
            "model by chains: a check of fast on small panels; rank auto is 0).",
            among=("fast", "fedmissem", "wire", "saem"),
        ),
    ] = "fast"
    model: Annotated[
        str, Setting("auto, quasi, negbin, log1p, gaussian or bernoulli.", among=("auto", *MODELS))
    ] = "auto"
    rank: Annotated[int | Literal["auto"], Setting("auto (by cross-validation) or a number.", low=0)] = "auto"
    penalty: Annotated[
        float | None, Setting("Ridge on the factors; without it, their variances are estimated.", low=0)
    ] = None
    time: Annotated[
        str,
        Setting(
            "smooth, or fixed: the plain site and time model (Poisson, no effort), which is TRIM's model 3.",
            among=("smooth", "fixed"),
        ),
    ] = "smooth"
    effort: Annotated[str, Setting("auto, none, or any of duration,distance,observers.")] = "auto"
    observers: Annotated[
        bool, Setting("Observer effects, kept inside groups; they may absorb part of a trend.")
    ] = False
    folds: Annotated[int, Setting("Folds of the cross-validation.", low=2)] = 5
    folds_by: Annotated[
        str,
        Setting(
            "What a fold holds out: cell (site x month), block (site x year), visit, observer, or auto: cells or blocks, "
            "like the gaps of the panel.",
            among=("auto", "cell", "block", "visit", "observer"),
        ),
    ] = "auto"
    one_se: Annotated[bool, Setting("Prefer the smallest rank within one standard error.")] = False
    average: Annotated[
        bool, Setting("Average the ranks that cross-validation cannot distinguish from the best rank.")
    ] = True
    site_visits: Annotated[
        bool,
        Setting(
            "With the cross-validation, try whether a site's number of visits speaks for its abundance; used only where "
            "left-out sites are predicted clearly better."
        ),
    ] = True
    max_rank: Annotated[int, Setting("Largest rank tried.", low=0)] = 4
    bootstrap: Annotated[int, Setting("Bootstrap replicates for the intervals; 0 for none.", low=0)] = 200
    seed: Annotated[int, Setting("Seed of everything random.", low=0)] = 0
    joint: Annotated[
        bool,
        Setting(
            "Groups exchange sums by site for sites that several groups visit: use it if one person holds all groups."
        ),
    ] = True
    minimum: Annotated[
        int,
        Setting(
            "Minimum number of a group's sites in the sums of a month; visits of months with fewer sites are withheld.",
            low=0,
        ),
    ] = 0
    own: Annotated[
        bool, Setting("Keep what each group needs for a report about its own sites (fedmiss own).")
    ] = False
    rounds: Annotated[
        int | None, Setting("fedmissem, wire, saem: rounds; by default 2,000, 100 and 900.", low=1)
    ] = None
    gamma: Annotated[
        float | None,
        Setting(
            "fedmissem: step of the server; by default p/(1+omega), less with minibatches.", above=0, high=1
        ),
    ] = None
    alpha: Annotated[
        float | None,
        Setting("fedmissem, wire: step size of the memories; by default 1/(1+omega).", above=0, high=1),
    ] = None
    levels: Annotated[
        int, Setting("fedmissem, wire: levels of the random dithering; 0 sends floats.", low=0)
    ] = 16
    compressor: Annotated[
        str,
        Setting(
            "fedmissem, wire: the compressor, by name and numbers, for example natural or randk:k=200 (fedmissem), "
            "topk:k=200 or dithering:levels=64,block=9 (wire). Default: dithering with --levels; wire "
            "compresses the sums of each site apart."
        ),
    ] = ""
    participation: Annotated[
        float, Setting("fedmissem, wire, saem: probability that a group answers a round.", above=0, high=1)
    ] = 1.0
    batch: Annotated[int | None, Setting("fedmissem: visits per round and group; by default all.", low=1)] = (
        None
    )

    @property
    def sent(self) -> str:
        """What fedmissem and wire send, in words: ``compressor``, or what ``levels`` says."""
        return self.compressor or (f"dithering, {self.levels} levels" if self.levels else "identity")
