"""Whether the prior of a site's effect follows how often the site was visited, decided by whole sites held out.

People go where birds are: then a site that was hardly visited has fewer birds than the mean site, which its few visits
cannot say. A regression of site effects on log(visits + 1/2) says it. Where visits have other reasons the regression is
flat or harmful (nest sites that are counted because they are few; sites listed because the species was seen), so it is
taken only where it predicts the counts of sites that were left out of the fit, each site counting once.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedmiss.federation import messages as msg
from fedmiss.federation.hub.crossval import cross_validate
from fedmiss.federation.hub.state import Panel
from fedmiss.federation.link import Link, total
from fedmiss.models.lowrank.choice import Choice
from fedmiss.models.lowrank.settings import CountSettings

__all__ = ["ask_visits", "try_site_visits"]

CLEAR = 2.0  # standard errors by which whole held-out sites must be predicted better
FEWEST_SITES = 20  # fewer sites are too few for a regression over sites


def ask_visits(link: Link, panel: Panel) -> Panel:
    """Mean and deviation over visited sites of log(visits + 1/2); joint sites are counted over all groups."""
    none = np.zeros(0)
    (answers,) = link.ask([msg.SiteVisits(none)])
    if panel.n_joint:
        joint = np.zeros(panel.n_joint)
        for name, a in answers.items():
            joint[panel.joint[name]] += total({name: a}, "joint", (panel.joint[name].size,))
        (answers,) = link.ask({name: [msg.SiteVisits(joint[panel.joint[name]])] for name in link.names})
    first, second, sites = total(answers, "sums", (3,))
    first, second = first / max(sites, 1.0), second / max(sites, 1.0)
    variance = second - first**2
    return replace(panel, log_visits=np.array([first, variance**0.5]) if variance > 1e-6 else none)


def try_site_visits(
    link: Link, panel: Panel, choice: Choice, *, folds: int, seed: int
) -> tuple[Panel, Choice]:
    """Try the regression on the chosen distribution at rank 0; return the panel that knows the visits, and the choice.

    Not tried with fewer than 20 sites, under least numbers for sums over groups (folds of whole sites would leave too few of
    them behind a sum), or where every site was visited equally often.
    """
    best = choice.best
    if panel.least > 1 or panel.J < FEWEST_SITES or not best.season:
        return panel, choice
    panel = ask_visits(link, panel)
    if not panel.log_visits.size:
        return panel, choice
    plain = replace(best, rank=0)
    pair: list[CountSettings] = [plain, replace(plain, site_visits=True)]
    table = cross_validate(link, panel, pair, folds=folds, by="site", seed=seed).table
    wide = table.pivot(index="fold", columns="candidate", values="deviance")
    gain = (wide[0] - wide[1]).dropna()
    error = float(gain.std(ddof=1) / np.sqrt(len(gain))) if len(gain) > 1 else np.inf
    mean, base = float(gain.mean()), float(wide[0].mean())
    better = mean > CLEAR * error
    way = "better" if mean > 0 else "worse"
    words = (
        f" Sites left out of the fit are predicted {100 * abs(mean) / base:.1f} % {way} when a site's number of visits "
        f"speaks for its abundance; it is {'used' if better else 'not used'}."
    )
    near = tuple(replace(c, site_visits=better) for c in choice.near)
    return panel, replace(
        choice, best=replace(best, site_visits=better), near=near, advice=choice.advice + words
    )
