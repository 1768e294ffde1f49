"""The species of the simulator: how often they are met, in what numbers, and under which names.

Names are those of real North American birds, so that files look familiar and name matching is
tested; every number is made up, except that the first two species follow marginals of real extracts (a
flocking duck met on 8 % of complete checklists and a solitary eagle met on 3 %).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Taxon:
    """A name under which birds are filed; ``scientific`` is the exact one, the parent's is the species'."""

    category: str
    common: str
    scientific: str


@dataclass(frozen=True, slots=True)
class Species:
    """One simulated species.

    Attributes
    ----------
    detection : share of complete checklists with it
    level : log of the expected count where it is met, at a typical site and standard effort
    site_sd : standard deviation of its site effects (log scale)
    size : negative-binomial size of the counts where it is met
    x_share : share of its records without a number ("X")
    trend : change of the log expected count per year
    season_sd, peak : strength (log scale) and month (1-12) of its season
    forms : subspecies groups, intergrades and domestic forms that roll up into it
    exotic : exotic code; blank when native
    """

    common: str
    scientific: str
    detection: float
    level: float
    site_sd: float
    size: float
    x_share: float
    trend: float
    season_sd: float
    peak: int
    forms: tuple[Taxon, ...] = ()
    exotic: str = ""


_WARBLER = (
    Taxon("issf", "Yellow-rumped Warbler (Myrtle)", "Setophaga coronata coronata"),
    Taxon("issf", "Yellow-rumped Warbler (Audubon's)", "Setophaga coronata auduboni"),
)
_JUNCO = (
    Taxon("issf", "Dark-eyed Junco (Slate-colored)", "Junco hyemalis hyemalis/carolinensis"),
    Taxon("issf", "Dark-eyed Junco (Oregon)", "Junco hyemalis [oreganus Group]"),
)
_FLICKER = (
    Taxon("issf", "Northern Flicker (Red-shafted)", "Colaptes auratus [cafer Group]"),
    Taxon(
        "intergrade",
        "Northern Flicker (Yellow-shafted x Red-shafted)",
        "Colaptes auratus auratus x [cafer Group]",
    ),
)
_PIGEON = (Taxon("domestic", "Rock Pigeon (Feral Pigeon)", "Columba livia (Feral Pigeon)"),)
_MALLARD = (Taxon("domestic", "Mallard (Domestic type)", "Anas platyrhynchos (Domestic type)"),)
_HERON = (Taxon("form", "Great Blue Heron (Great Blue)", "Ardea herodias [herodias Group]"),)

SPECIES = (
    Species("American Wigeon", "Mareca americana", 0.08, 1.95, 1.0, 0.75, 0.12, -0.03, 0.5, 1),
    Species("Golden Eagle", "Aquila chrysaetos", 0.03, -0.7, 0.4, 2.0, 0.03, 0.02, 0.3, 12),
    Species("Yellow-rumped Warbler", "Setophaga coronata", 0.25, 1.2, 0.8, 1.0, 0.06, 0.0, 0.6, 10, _WARBLER),
    Species("Rock Pigeon", "Columba livia", 0.22, 1.6, 1.0, 0.8, 0.08, -0.01, 0.1, 6, _PIGEON, "N"),
    Species("Mallard", "Anas platyrhynchos", 0.40, 1.8, 0.9, 0.9, 0.07, 0.0, 0.3, 2, _MALLARD),
    Species("Great Egret", "Ardea alba", 0.12, 0.7, 0.8, 1.0, 0.04, 0.04, 0.4, 7),
    Species("Great Blue Heron", "Ardea herodias", 0.30, 0.3, 0.5, 2.0, 0.03, 0.01, 0.2, 8, _HERON),
    Species("Northern Flicker", "Colaptes auratus", 0.35, 0.6, 0.5, 2.0, 0.05, -0.02, 0.2, 4, _FLICKER),
    Species("Dark-eyed Junco", "Junco hyemalis", 0.25, 1.5, 0.8, 1.0, 0.06, -0.02, 0.8, 1, _JUNCO),
    Species("American Robin", "Turdus migratorius", 0.50, 1.5, 0.7, 1.0, 0.07, 0.0, 0.4, 5),
    Species("Song Sparrow", "Melospiza melodia", 0.45, 0.9, 0.6, 1.5, 0.05, 0.0, 0.2, 5),
    Species("American Coot", "Fulica americana", 0.20, 2.3, 1.1, 0.7, 0.12, -0.04, 0.5, 12),
    Species("Canada Goose", "Branta canadensis", 0.35, 2.3, 1.0, 0.8, 0.09, 0.03, 0.3, 11),
    Species("Red-tailed Hawk", "Buteo jamaicensis", 0.35, 0.1, 0.4, 3.0, 0.02, 0.01, 0.2, 11),
    Species("Killdeer", "Charadrius vociferus", 0.22, 0.6, 0.7, 1.5, 0.04, -0.02, 0.3, 7),
    Species("Barn Swallow", "Hirundo rustica", 0.18, 1.2, 0.8, 1.0, 0.09, -0.01, 0.9, 6),
    Species("Mourning Dove", "Zenaida macroura", 0.40, 1.0, 0.6, 1.2, 0.05, -0.01, 0.2, 7),
    Species("Northern Harrier", "Circus hudsonius", 0.14, 0.1, 0.4, 3.0, 0.02, -0.02, 0.4, 1),
    Species("Belted Kingfisher", "Megaceryle alcyon", 0.12, 0.0, 0.4, 3.0, 0.02, 0.0, 0.2, 9),
    Species("House Sparrow", "Passer domesticus", 0.30, 1.6, 0.8, 1.0, 0.10, -0.03, 0.1, 6, (), "N"),
    Species("Bushtit", "Psaltriparus minimus", 0.15, 1.8, 0.5, 1.5, 0.06, 0.01, 0.2, 11),
    Species("Common Raven", "Corvus corax", 0.35, 0.8, 0.6, 1.2, 0.04, 0.03, 0.1, 3),
    Species("Black Phoebe", "Sayornis nigricans", 0.18, 0.3, 0.5, 2.0, 0.02, 0.02, 0.1, 9),
    Species("Western Meadowlark", "Sturnella neglecta", 0.22, 1.1, 0.8, 1.2, 0.07, -0.03, 0.4, 4),
)

# Filed on checklists as well, but no species: an import must leave these rows out.
NOT_SPECIES = (
    Taxon("spuh", "duck sp.", "Anatidae sp."),
    Taxon("slash", "American/Eurasian Wigeon", "Mareca americana/penelope"),
    Taxon("hybrid", "Mallard x American Wigeon (hybrid)", "Anas platyrhynchos x Mareca americana"),
)
