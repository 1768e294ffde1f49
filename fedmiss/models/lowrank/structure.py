"""Features of sites that the model's prior may follow, and terms of effort; light, because settings name them too."""

from __future__ import annotations

from fedmiss.errors import ConfigError

LIMIT = 2.5  # deviations from the mean of visited sites beyond which nothing more is made of a number

IN_WORDS = {  # what the expectation for a site follows, in the order of their columns
    "visits": "how often it was visited",
    "covariates": "its covariates",
    "regions": "its region",
    "smooth": "its place",
    "abundance": "how many birds it has",
    "times": "in which years it was visited",
    "effort": "how long its visits were",
}
FEATURES = tuple(IN_WORDS)
# Features that are no part of a job between organisations. Rounds tell sums of products of features, each with weights of
# its own: from those of the smooth follows where each of 80 sites lies, of 400 some still (tests/attacks/test_features.py).
UNTOLD = {
    "visits": "how often a site was visited",
    "smooth": "where a site lies",
    "effort": "how long visits to a site were",
}
TOLD = tuple(feature for feature in FEATURES if feature not in UNTOLD)
# features that only the effect follows, or only the slope
OF_LEVELS, OF_SLOPES = ("visits", "times", "effort"), ("abundance",)
ALONE = ("abundance", "times")  # one column each
UNTRIED = (*ALONE, "effort")  # taken without a trial: they switch themselves off
EFFORT = (
    "duration",
    "distance",
    "observers",
)  # what a visit's effort is made of, in the order of its columns


def effort_words(effort: str) -> str | tuple[str, ...]:
    """Read a setting of effort: ``auto``, ``none``, or the terms of a list with commas, each once.

    Raises
    ------
    ConfigError    a term that is none, or no term
    """
    if effort.strip() in ("auto", "none"):
        return effort.strip()
    terms = tuple(dict.fromkeys(term.strip() for term in effort.split(",") if term.strip()))
    wrong = [term for term in terms or (effort,) if term not in EFFORT]
    if wrong:
        raise ConfigError(
            f"the effort term {wrong[0]!r} is unknown; choose auto, none, or some of {', '.join(EFFORT)}."
            if wrong[0] not in ("auto", "none")
            else f"the effort {effort!r} has terms beside {wrong[0]}; {wrong[0]} stands alone."
        )
    return terms
