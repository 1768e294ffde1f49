"""Kinds of features of sites that the model's prior may follow; light, because settings and reports name them too."""

from __future__ import annotations

LIMIT = 2.5  # deviations from the mean of visited sites beyond which nothing more is made of a number

IN_WORDS = {  # what the expectation for a site follows, in the order of their columns
    "visits": "how often it was visited",
    "covariates": "its covariates",
    "regions": "its region",
    "smooth": "its place",
}
FEATURES = tuple(IN_WORDS)
