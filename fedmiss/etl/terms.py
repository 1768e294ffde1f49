"""Where records come from, how to cite them, and under which terms they may be used."""

from __future__ import annotations

from fedmiss.etl.projection import Projection

__all__ = ["all_simulated", "terms_of"]

SIMULATED_COUNTRY = "Simland"

_EBIRD = (
    "eBird terms of use",
    "eBird Basic Dataset. Version: {version}. Cornell Lab of Ornithology, Ithaca, New York.",
    "eBird data are for non-commercial use and for the purpose for which they were requested; the records may not "
    "be passed on or published in their original format, whole or in part; what is derived from them carries the "
    "same terms.",
)
_TERMS = {  # role of a source -> licence, citation and terms
    "simulated": (
        "CC0",
        "Simulated by fedmiss; no bird was counted.",
        "Made-up data, partly in eBird's format: free to use, not to be mistaken for eBird's own.",
    ),
    **dict.fromkeys(("ebd", "sampling", "unvetted"), _EBIRD),
    "myebird": (
        "the observers' own records",
        "Records downloaded by their observers from eBird (MyEBirdData).",
        "Each observer decides on the use of these records; ask before passing them on.",
    ),
    "gbif": (
        "CC BY 4.0",
        "GBIF occurrence download; for eBird records: Auer T, Barker S, et al. EOD - eBird Observation "
        "Dataset. Cornell Lab of Ornithology. Occurrence dataset accessed via GBIF.org. Give the download's DOI.",
        "Credit the publishers of the records and cite the DOI of the download.",
    ),
    "plain": (
        "not stated",
        "Records of the organisation that ran this import.",
        "Set by the owner of the records.",
    ),
}


def all_simulated(lists: list[Projection]) -> bool:
    """Say whether all checklists were made up by ``fedmiss simulate``, whose country is on no map."""
    countries = [p.read("places", ["country"])["country"] for p in lists]
    return any(c.len() for c in countries) and all((c == SIMULATED_COUNTRY).all() for c in countries)


def terms_of(role: str, releases: list[str], licences: list[str], citations: list[str]) -> dict[str, str]:
    """Return licence, citation, release and terms for a source role (see ``sources.ROLES``), or for 'simulated'.

    ``citations`` : what the provider asked to be cited, in its own words
    """
    licence, citation, terms = _TERMS.get(role, _TERMS["plain"])
    release = role if role == "simulated" else ", ".join(releases)
    if _TERMS.get(role) is _EBIRD:
        version = ", ".join(f"EBD_rel{r}" for r in releases) or "release not stated in the file name"
        citation = " ".join(citations) or citation.format(version=version)
    if role == "gbif":
        licence = ", ".join(licences) or licence
    return {"licence": licence, "citation": citation, "release": release, "terms": terms}
