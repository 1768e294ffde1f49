"""One block of outings: who went where, what they met, and what each member of the party filed.

Blocks have a fixed number of outings and their own generator, so a file does not depend on how much memory or
how many threads wrote it, and a longer file starts with the same outings as long as the country is the same.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from fedmiss.arrays import F64, I64, Bool
from fedmiss.rng import rng_for
from fedmiss.simulate.species import NOT_SPECIES
from fedmiss.simulate.world import COPIES_PER_CHECKLIST, EFFORT_SLOPE, INCOMPLETE_KEEP, UNTIMED_MINUTES, World

BLOCK = 16_384
PROTOCOLS = ("Traveling", "Stationary", "Incidental", "Historical", "Area")
_PROTOCOL_SHARE = np.cumsum([0.60, 0.24, 0.11, 0.04, 0.01])
_COMPLETE = np.array([0.90, 0.90, 0.25, 0.40, 0.85])  # share of complete lists by protocol
INCOMPLETE_LISTS = 1 - float(np.diff(_PROTOCOL_SHARE, prepend=0) @ _COMPLETE)
PARTY = np.array([0.65, 0.25, 0.10])  # shares of shared outings with 2, 3 and 4 lists
_EXTRA = float(PARTY @ [1, 2, 3])  # mean number of copies of a shared outing
SHARED = COPIES_PER_CHECKLIST / (1 - COPIES_PER_CHECKLIST) / _EXTRA  # share of outings that are shared
_LONE = 0.003  # outings with a group id although one list only is on file

# Checklist numbers are scattered over this many values around 10^8, so that the numerically lowest number of
# a group is often not the lowest as text; a prime larger than twice 4 MAX_OUTINGS keeps them unique.
MAX_OUTINGS = 8_000_000
_PRIME = 67_108_859  # largest prime below 2^26
_FIRST_NUMBER = 100_000_000 - int(0.3 * _PRIME)

# Shares of copies whose own list differs from the owner's, by what differs (from extracts with shared lists).
_DIFFERS = {
    "site": 0.015, "duration": 0.018, "distance": 0.007, "complete": 0.005, "time": 0.004, "protocol": 0.003,
}  # fmt: skip
_DROPPED, _RECOUNTED = 0.015, 0.010  # shares of a copy's records that are missing or have another number


@dataclass(frozen=True, slots=True)
class Block:
    """The checklists and records of a block of outings.

    Attributes
    ----------
    outing : (m,) number of the outing (0, 1, ... over the whole file), ascending; members of a party follow
    number : (m,) checklist number (the digits of the sampling event identifier), unique over the file
    shared : (m,) True when the checklist carries a group identifier
    observer, site, month, day : (m,); day counts from 1970-01-01
    protocol : (m,) index into PROTOCOLS; complete : (m,) bool
    start, duration : (m,) minutes; distance : (m,) metres; area : (m,) 0.1 ha; n_observers : (m,) people;
        each -1 when not given
    checklist : (n,) row of the record's checklist, ascending
    species : (n,) index of the species, -1 for a taxon above or beside species
    taxon : (n,) index into the taxon table; count : (n,) -1 for X
    """

    outing: I64
    number: I64
    shared: Bool
    observer: I64
    site: I64
    month: I64
    day: I64
    protocol: I64
    complete: Bool
    start: I64
    duration: I64
    distance: I64
    area: I64
    n_observers: I64
    checklist: I64
    species: I64
    taxon: I64
    count: I64


def taxon_offsets(world: World) -> tuple[I64, I64]:
    """Return (S + 1,) first taxon of each species, then of the taxa that are no species; and (S,) forms."""
    forms = np.array([len(bird.forms) for bird in world.species], dtype=np.int64)
    return np.concatenate([[0], np.cumsum(forms + 1)]), forms


def draw_block(world: World, block: int) -> Block:
    """Draw block number ``block`` of the file."""
    rng = rng_for(world.seed, "ebird", "block", block)
    n = BLOCK
    observer = _pick(world.observer_cdf, rng.random(n))
    site = world.places(observer, rng.random(n))
    month = world.times(observer, rng.random(n))
    day = world.first_day[month] + (rng.random(n) * world.month_days[month]).astype(np.int64)
    protocol = np.minimum(np.searchsorted(_PROTOCOL_SHARE, rng.random(n)), len(PROTOCOLS) - 1)
    complete = rng.random(n) < _COMPLETE[protocol]
    duration, start, distance, area, people = _effort(rng, protocol)

    party = np.ones(n, dtype=np.int64)
    together = rng.random(n) < SHARED
    party[together] = 2 + np.searchsorted(np.cumsum(PARTY)[:-1], rng.random(int(together.sum())))
    party = np.minimum(party, world.n_observers)
    together |= rng.random(n) < _LONE
    people = np.where(people > 0, np.maximum(people, party), people)

    minutes = np.where(duration > 0, duration, UNTIMED_MINUTES)
    nuisance = world.observer_effect[observer] + EFFORT_SLOPE * np.log(minutes / 60)
    event, species, taxon, count = _records(world, rng, site, month, complete, nuisance)

    # From outings to checklists: every member files a copy under an own number.
    owner = np.repeat(np.arange(n), party)
    member = np.arange(owner.size) - np.repeat(np.cumsum(party) - party, party)
    outing = block * BLOCK + owner
    # Numbers in no order, and no two alike: multiplication modulo a prime; up to four copies of an outing.
    number = _FIRST_NUMBER + ((4 * outing + member) * 40_503_001) % _PRIME
    who = _companions(world, rng, observer[owner], member)
    copy = member > 0
    differs = {what: copy & (rng.random(owner.size) < share) for what, share in _DIFFERS.items()}
    place = np.where(differs["site"], (site[owner] + 1) % world.n_sites, site[owner])
    how = np.where(differs["protocol"], 1 - np.minimum(protocol[owner], 1), protocol[owner])
    whole = complete[owner] ^ differs["complete"]
    took = np.where(differs["duration"] & (duration[owner] > 0), duration[owner] + 15, duration[owner])
    went = np.where(differs["distance"] & (distance[owner] > 0), distance[owner] + 500, distance[owner])
    began = np.where(differs["time"] & (start[owner] >= 0), start[owner] + 5, start[owner])

    per_event = np.bincount(event, minlength=n)
    first = np.cumsum(per_event) - per_event
    filed = per_event[owner]
    checklist = np.repeat(np.arange(owner.size), filed)
    at = np.arange(checklist.size) - np.repeat(np.cumsum(filed) - filed, filed) + first[owner][checklist]
    # Members of a party edit their copies: records are missing on some, and counts differ.
    keep = ~(copy[checklist] & (rng.random(at.size) < _DROPPED))
    again = copy[checklist] & (rng.random(at.size) < _RECOUNTED)
    number_of = np.where(again, np.maximum(count[at], 1) * 2, count[at])
    return Block(
        outing=outing, number=number, shared=together[owner], observer=who, site=place, month=month[owner],
        day=day[owner], protocol=how, complete=whole, start=began, duration=took, distance=went,
        area=area[owner], n_observers=people[owner], checklist=checklist[keep], species=species[at][keep],
        taxon=taxon[at][keep], count=number_of[keep],
    )  # fmt: skip


def _effort(rng: np.random.Generator, protocol: I64) -> tuple[I64, I64, I64, I64, I64]:
    """Draw minutes, start, metres, tenths of a hectare and number of observers of each outing; -1 where not given."""
    n = protocol.size
    duration = np.clip(np.exp(np.log(45) + 0.8 * rng.standard_normal(n)), 1, 720).astype(np.int64)
    untimed = (protocol == 2) | ((protocol == 3) & (rng.random(n) < 0.7))
    duration[untimed] = -1
    start = np.clip(540 + 150 * rng.standard_normal(n), 240, 1320).astype(np.int64)
    start[untimed & (rng.random(n) < 0.4)] = -1
    metres = np.clip(2000 * np.exp(0.9 * rng.standard_normal(n)), 10, 60_000).astype(np.int64)
    area = np.where(protocol == 4, rng.integers(5, 800, n), -1)
    people = 1 + np.minimum(rng.geometric(0.7, n) - 1, 20)
    people[(protocol == 2) & (rng.random(n) < 0.5)] = -1
    return duration, start, np.where(protocol == 0, metres, -1), area, people


def _pick(cdf: F64, draw: F64) -> I64:
    return np.minimum(np.searchsorted(cdf, draw), cdf.size - 1).astype(np.int64)


def _records(
    world: World, rng: np.random.Generator, site: I64, month: I64, complete: Bool, nuisance: F64
) -> tuple[I64, I64, I64, I64]:
    """Draw what each outing met: (event, species, taxon, count), sorted by event; count -1 is X."""
    n, n_species = site.size, len(world.species)
    met = rng.random((n, n_species), dtype=np.float32) < world.met.astype(np.float32)
    event, species = np.nonzero(met)
    size = np.array([bird.size for bird in world.species])[species]
    eta = world.log_mean(species, site[event], month[event]) - np.log(world.met)[species] + nuisance[event]
    # Zero-inflated negative binomial: eta is of a visit that met the species, hence the division by met in it.
    count = rng.poisson(np.exp(eta) * rng.standard_gamma(size) / size)
    kept = (count > 0) & (complete[event] | (rng.random(event.size) < INCOMPLETE_KEEP))
    event, species, count = event[kept], species[kept], count[kept]

    # Three in four records of a species with forms are filed as the species, the rest as a form or as both.
    first, forms = taxon_offsets(world)
    has_forms = forms[species] > 0
    draw = rng.random(event.size)
    form = first[species] + 1 + (rng.random(event.size) * forms[species]).astype(np.int64)
    split = has_forms & (draw > 0.9) & (count > 1)
    part = np.where(split, np.maximum(rng.binomial(count, 0.4), 1), 0)
    # All birds of the form is no split: the record is then the species alone.
    part = np.where(part == count, 0, part)
    taxon = np.where(has_forms & (draw > 0.75) & ~(part > 0), form, first[species])
    not_counted = rng.random(event.size) < np.array([bird.x_share for bird in world.species])[species]
    number = np.where(not_counted, -1, count - part)

    both = np.flatnonzero(part)
    odd = np.flatnonzero(rng.random(n) < 0.03)  # ducks that were not identified
    event = np.concatenate([event, event[both], odd])
    order = np.argsort(event, kind="stable")
    species = np.concatenate([species, species[both], np.full(odd.size, -1)])
    taxon = np.concatenate([taxon, form[both], first[-1] + rng.integers(0, len(NOT_SPECIES), odd.size)])
    number = np.concatenate([number, part[both], rng.integers(1, 30, odd.size)])
    return event[order], species[order], taxon[order], number[order]


def _companions(world: World, rng: np.random.Generator, owner: I64, member: I64) -> I64:
    """Return the observer of every checklist: the owner, or friends of the owner, all different."""
    who = np.where(member > 0, world.friends(owner, rng.random(owner.size)), owner)
    for earlier in range(1, 4):
        rows = np.flatnonzero(member == earlier)
        for _ in range(earlier):  # each pass moves off at least one of the earlier members
            for back in range(1, earlier + 1):
                clash = who[rows] == who[rows - back]
                who[rows] = np.where(clash, (who[rows] + 1) % world.n_observers, who[rows])
    return who


def cut_block(block: Block, records: int) -> Block:
    """Return the block up to the outing with which it reaches ``records`` records."""
    if block.count.size <= records:
        return block
    last = block.outing[block.checklist[records - 1]]
    n_outings = int(np.searchsorted(block.outing, last, side="right"))
    n_lists = int(np.searchsorted(block.checklist, n_outings))
    rows = ("checklist", "species", "taxon", "count")
    return Block(
        **{
            field.name: getattr(block, field.name)[: n_lists if field.name in rows else n_outings]
            for field in fields(Block)
        }
    )


def runs(ids: I64) -> tuple[I64, I64]:
    """Return first row and length of each run of equal numbers."""
    first = np.flatnonzero(np.diff(ids, prepend=-1))
    return first, np.diff(np.append(first, ids.size))


def lowest_number(outing: I64, number: I64) -> I64:
    """Return (k,) row of the numerically lowest checklist of each outing, by outing."""
    first, length = runs(outing)
    lowest = np.repeat(np.minimum.reduceat(number, first), length)
    return np.flatnonzero(number == lowest).astype(np.int64)


def count_kept(block: Block) -> tuple[I64, I64, I64]:
    """Collapse shared lists: (outing row, species, count) of every species of every outing, count -1 for X.

    A species has the records of the lowest-numbered member that reports it: its forms are summed, and any X
    among them makes the whole an X. Outing rows count the block's outings from 0, in order.
    """
    of_species = block.species >= 0
    row, species, count = block.checklist[of_species], block.species[of_species], block.count[of_species]
    group = np.cumsum(np.diff(block.outing, prepend=block.outing[:1]) != 0)[row] if row.size else row
    number = block.number[row]
    # By outing, species, then checklist number, packed into one integer: a single stable sort.
    order = np.argsort(((group * 64 + species) << 28) + number, kind="stable")  # numbers stay below 2^28
    group, species, count, number = group[order], species[order], count[order], number[order]
    if not group.size:
        return group, species, count
    new = np.flatnonzero(np.append(True, (np.diff(group) != 0) | (np.diff(species) != 0)))
    length = np.diff(np.append(new, group.size))
    mine = number == np.repeat(number[new], length)
    total = np.add.reduceat(np.where(mine, np.maximum(count, 0), 0), new)
    any_x = np.logical_or.reduceat(mine & (count < 0), new)
    return group[new], species[new], np.where(any_x, -1, total)
