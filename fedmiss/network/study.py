"""A study: what the organisations agree on. Its hash is what a custodian approves."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmiss.atomic import read_object, write_json
from fedmiss.community.settings import CommunitySettings
from fedmiss.errors import ConfigError, InputError, fold, listed
from fedmiss.federation.attendance import Absence, cohorts_of
from fedmiss.federation.masks import FEWEST
from fedmiss.models.lowrank.structure import TOLD, UNTOLD, effort_words
from fedmiss.parsing import parse_toml
from fedmiss.pipeline.settings import MODELS, FastSettings, FitSettings, named_features
from fedmiss.settings import convert, from_table, unknown

# What computes is imported where a job is made of the study: most commands only read it.
if TYPE_CHECKING:
    from fedmiss.community.study import Terms
    from fedmiss.federation.hub.job import JobSpec

ENGINES = ("folder", "nvflare")
_FUNCTION = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*")
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
# a name, or an address of IPv4: the engine takes no other
_HOST = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")
_BLANK = "\u115f\u1160\u2800\u3164\uffa0"  # letters and signs that screens show as nothing
_RELAY = ("host", "port", "patience")  # do nothing where a folder carries the frames
_OF_MONTHS = ("species", "season", "months", "sites", "compress")  # of one species' months only
_COUNTS = (*_OF_MONTHS, "few_sites", "minimum", "share", "contributors")  # of the count model only
_OF_ROUNDS = ("absence", "chair")
_LIMITS = (
    ("exchanges", 50, 100_000, "50 and 100,000; 1,000 is customary"),
    ("minimum", 2, 1_000_000, "2 and 1,000,000; 5 and 10 are customary"),
    ("share", 0.5, 1, "0.5 and 1; 0.85 is customary"),
    ("port", 1024, 65535, "1024 and 65535"),
)
_COMMUNITY = ("model", "rank", "max_rank", "effort", "folds", "seed")
_MODEL = (
    "model", "rank", "effort", "observers", "occupancy", "folds", "folds_by", "one_se", "average", "structure",
    "max_rank", "bootstrap", "seed",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Study:
    """What is to be computed, by whom, under which rules.

    Attributes
    ----------
    name : of the study;  species : scientific name;  organisations : names, sorted
    revision : goes up when the roster, the data or anything else changes: a new job, to be approved anew by all
    season : calendar months, empty for all;  months : first and last month as 2004-01, empty for all
    minimum : least number of visits and of sites of all organisations behind a released month
    share : largest share of one organisation in the visits of a released month
    masks : whether sums are masked, which needs three organisations
    sites : seen, when panels may hold sites with a detection only (the default of ``fedmiss panel``), or all
    contributors : least number of organisations behind every released sum, 3 or more under masks; of two organisations
        without masks it is 2
    few_sites : whether sites or visits may be so few that single counts can be worked out (:data:`.rules.SITES_A_MONTH`,
        :data:`.rules.VISITS_OF_A_STUDY`)
    exchanges : most exchanges of the job, which needs some 130
    compress : whether months' sums go as differences to the last ones, in half the bytes; results then differ by some 1e-6
    absence : seconds after which a round of [method] goes on without a cohort whose member is away, which keeps its last
        sums (:mod:`fedmiss.federation.attendance`); 0: all wait
    chair : the organisation that says who is there in a round, the first by name if none is named
    engine : carries the frames: ``folder``, one that all organisations share, or ``nvflare``, by a relay
    host, port : where the relay listens;  patience : seconds that it waits for an organisation
    model : settings of the model, as of ``fedmiss fit``
    method : instead of the count model a function that is installed at all organisations, as
        ``run = "package.module:name"``, and its settings; then there is no species
    community : instead of the count model of one species all species of a site: ``species``, the list of their names, and
        settings as of ``fedmiss community``
    before : an earlier job that this revision goes on from, as ``fedmiss federation revise --from`` writes it: ``job``,
        ``revision``, ``models`` (:mod:`fedmiss.federation.hub.onward`)
    """

    name: str
    species: str
    organisations: tuple[str, ...]
    revision: int = 1
    season: tuple[int, ...] = ()
    months: tuple[str, ...] = ()
    minimum: int = 5
    share: float = 0.85
    masks: bool = True
    sites: str = "seen"
    contributors: int = 0
    few_sites: bool = False
    exchanges: int = 1000
    compress: bool = False
    absence: float = 0.0
    chair: str = ""
    host: str = "localhost"
    port: int = 8102
    engine: str = "folder"
    patience: float = 600.0
    model: Mapping[str, Any] = field(default_factory=dict)
    method: Mapping[str, Any] = field(default_factory=dict)
    community: Mapping[str, Any] = field(default_factory=dict)
    before: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "organisations", tuple(sorted(map(str, self.organisations))))
        self._check_names()
        self._refuse_idle()
        least = FEWEST if self.masks or len(self.organisations) > 2 else 2
        if not self.contributors and not self.method:
            object.__setattr__(self, "contributors", least)
        if not self.method and not least <= self.contributors <= len(self.organisations):
            raise ConfigError(
                f"contributors is {self.contributors} (must lie between {least} and {len(self.organisations)}, the number "
                "of organisations): with fewer behind a sum, one could subtract its own part and have another's."
            )
        if self.engine not in ENGINES:
            raise ConfigError(f"the engine {self.engine!r} is unknown; choose {' or '.join(ENGINES)}.")
        self._check_absence()
        if not (self.species.strip() or self.method or self.community):
            raise ConfigError("species is blank; give the scientific name that the panels have.")
        if self.sites not in ("seen", "all"):
            raise ConfigError(f"sites is {self.sites!r} (must be seen or all).")
        for name, low, high, limits in _LIMITS:
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"{name} is {getattr(self, name)} (must lie between {limits}).")
        if not 0 < self.patience <= 86400:
            raise ConfigError(
                f"patience is {self.patience:g} seconds (must be above 0 and at most 86,400, which is a day)."
            )
        wrong = any(not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", str(m)) for m in self.months)
        if wrong or len(self.months) not in (0, 2) or self.months[:1] > self.months[1:]:
            raise ConfigError(
                f"months is {list(self.months)}; give the first and the last one as 2004-01, in this order, or none."
            )
        if any(type(m) is not int or not 1 <= m <= 12 for m in self.season):  # True is a whole number too
            raise ConfigError(f"season is {list(self.season)}; give numbers of calendar months, 1 to 12.")
        if self.method and not _FUNCTION.fullmatch(str(self.method.get("run", ""))):
            raise ConfigError(
                f"[method] has run = {self.method.get('run')!r}; name a function that all organisations have installed, as "
                'run = "package.module:function".'
            )
        for key, value in self.method.items():
            try:
                json.dumps(value, allow_nan=False)
            except ValueError:
                raise ConfigError(
                    f"[method] has {key} = {value}, which study.json cannot hold; write a finite number, or leave {key} out."
                ) from None
        if bool(self.method) + bool(self.model) + bool(self.community) > 1:
            raise ConfigError(
                "a study has one of [model] (of one species), [community] (of all species of a site) and [method] (of "
                "its own); leave the others out."
            )
        if self.community:
            self._check_community()
        if self.before:
            self._check_before()
        self._check_model()

    def _check_names(self) -> None:
        if hidden := [text for text in _texts(asdict(self)) if _unseen(text)]:
            raise ConfigError(
                f"the study holds {hidden[0][:200]!r}: characters that no screen shows, or blanks in a row, could hide or "
                "forge lines of the page that a custodian approves. Write it without them."
            )
        for name in (self.name, *self.organisations):
            if not _NAME.fullmatch(name):
                raise ConfigError(
                    f"the name {name!r} cannot be used: names have up to 31 small letters, digits and dashes, and begin "
                    "with a letter."
                )
        if len(set(self.organisations)) < len(self.organisations) or len(self.organisations) < 2:
            raise ConfigError(
                f"the study has the organisations {', '.join(self.organisations) or 'none'}; it needs two or more, "
                "each once."
            )
        by_relay = self.engine != "folder"
        if by_relay and not _HOST.fullmatch(self.host):
            raise ConfigError(
                f"host is {self.host!r} (must be the relay's name or address alone, as relay.example.org or 192.0.2.7: "
                "letters of English, digits, dots, dashes, underscores; no IPv6). The port has a line of its own."
            )
        taken = ("hub", "server", self.host.lower()) if by_relay else ("hub",)
        if clash := [n for n in self.organisations if n in taken]:
            raise ConfigError(
                f"no organisation can be called {clash[0]!r}: that is the relay's end. Choose another name."
            )
        if self.masks and len(self.organisations) < FEWEST:
            raise ConfigError(
                f"masks need {FEWEST} organisations, the study has {len(self.organisations)}. Name a third one "
                "(in a revision: `fedmiss federation revise --with NAME`), or make a study with masks = false "
                "(`fedmiss federation new`); both custodians will then be shown what the other can compute."
            )

    def _check_before(self) -> None:
        if self.method or self.community:
            raise ConfigError(
                "only a study about one species can go on from an earlier job; leave before out."
            )
        from fedmiss.federation.hub.onward import read_before

        read_before(self.before.get("models"), f"study {self.name}, before")
        if set(self.before) != {"job", "revision", "models"}:
            raise ConfigError(
                f"study {self.name}, before has {', '.join(map(str, self.before))}; it needs job, revision and models, "
                "as `fedmiss federation revise --from` writes them."
            )
        if type(self.before["revision"]) is not int:
            raise ConfigError(
                f"study {self.name}, before: revision is {self.before['revision']!r} (must be a whole number)."
            )

    def _check_model(self) -> None:
        for key in self.model:
            if key not in _MODEL:
                raise unknown(str(key), _MODEL, "[model]")
        settings = from_table(FitSettings, dict(self.model), "[model]")
        named_features(getattr(settings, "structure", "none"))

    def check_told(self) -> None:
        """Refuse a feature of sites that is no part of a job between organisations (older studies name some)."""
        for feature in named_features(str(self.model.get("structure", "none"))):
            if feature in UNTOLD:
                raise ConfigError(
                    f"[model] structure names {feature}: {UNTOLD[feature]} is not told to other organisations. Leave it out."
                )

    def _check_absence(self) -> None:
        if not 0 <= self.absence <= 30 * 86400:
            raise ConfigError(
                f"absence is {self.absence:g} seconds (must lie between 0, where all wait, and 2,592,000, which is 30 days)."
            )
        n, least = len(self.organisations), least_for_absence(self.masks)
        if self.absence and n < least:
            why = f"a whole cohort of {FEWEST} is left out" if self.masks else "half must be there"
            raise ConfigError(
                f"absence needs {least} organisations, the study has {n}, since {why}. Leave absence out; then all "
                "wait for who is away."
            )
        _ = self.rule_of_absence  # it refuses a chair that is not among the organisations

    @property
    def rule_of_absence(self) -> Absence | None:
        """By which rounds go on without some; None where all wait."""
        if not self.absence:
            return None
        cohorts = cohorts_of(self.organisations, masks=self.masks)
        return Absence(cohorts, self.chair or self.organisations[0], self.absence)

    def _check_community(self) -> None:
        for key in self.community:
            if key not in ("species", *_COMMUNITY):
                raise unknown(str(key), ("species", *_COMMUNITY), "[community]")
        named = self.community.get("species")
        names = (
            [n for n in named if isinstance(n, str) and n.strip()] if isinstance(named, list | tuple) else []
        )
        if len(names) < 3 or len(names) < len(named or ()):
            raise ConfigError(
                f"[community] has species = {named!r}; list the scientific names of three or more, or name a records folder "
                "whose species are meant."
            )
        keys = [fold(n) for n in names]  # joined records take other capitals for the same species
        twice = sorted({n for n, key in zip(names, keys, strict=True) if keys.count(key) > 1})
        if twice:
            raise ConfigError(f"[community] lists {listed(twice, 4)} twice; name each species once.")
        self.of_community.most_axes(len(names))

    @property
    def of_community(self) -> CommunitySettings:
        """Settings of the community."""
        own = {k: v for k, v in self.community.items() if k != "species"}
        return from_table(CommunitySettings, own, "[community]")

    def terms(self, job: bytes) -> Terms:
        """What all organisations compute of a community."""
        from fedmiss.community.study import Terms

        return Terms(
            self.of_community, tuple(self.community["species"]), self.minimum, self.share, self.contributors, self.masks,
            job, self.settings(), self.few_sites or not self.masks,
        )  # fmt: skip

    def _refuse_idle(self) -> None:
        """Refuse what would be approved and would do nothing."""
        usual = {f.name: f.default for f in fields(Study)} | {"species": "", "contributors": 0}
        by_folder = self.engine == "folder"
        for idle, names, why in (
            (by_folder, _RELAY, f"a relay's, and the engine is {self.engine}"),
            (
                not (self.method and by_folder), _OF_ROUNDS,
                "of a study with [method], over a folder: all others wait for who is away",
            ),
            (not self.absence, ("chair",), "about who is away, and without absence all wait"),
            (self.community, _OF_MONTHS, "of a study about one species, and [community] is about all of a site"),
            (self.method, _COUNTS, f"the count model's, and [method] runs {self.method.get('run')!r}"),
            (not self.masks, ("few_sites",), "of masked sums, and nothing is masked"),
        ):  # fmt: skip
            for name in names if idle else ():
                if getattr(self, name) != usual[name]:
                    raise ConfigError(
                        f"{name} = {getattr(self, name)!r} does nothing here: it is {why}. Leave {name} out."
                    )

    @property
    def fit(self) -> FastSettings:
        """Settings of the model; under masks the negative binomial where the study names none.

        Sums of quasi-Poisson fits, and of replicates of log1p fits, are linear in the counts: who knows the visits of others
        can solve for what observers or sites had (``docs/research/messages.md``). Of the negative
        binomial that takes fewer sites (``tests/attacks/test_counts.py``).
        """
        usual = {"model": "negbin"} if self.masks else {}
        return FastSettings(**(usual | dict(self.model)), minimum=self.minimum)

    def order(self) -> JobSpec:
        """What all organisations compute."""
        from fedmiss.federation.hub.agree import DataSpec
        from fedmiss.federation.hub.job import JobSpec
        from fedmiss.federation.hub.onward import read_before
        from fedmiss.pipeline.plans import base_settings, candidates

        self.check_told()
        s = self.fit
        stamps = None
        if self.months:
            first, last = (12 * int(m[:4]) + int(m[5:]) - 1 for m in self.months)
            stamps = np.arange(first, last + 1, dtype=np.int64)
            if self.season:
                stamps = stamps[np.isin(stamps % 12 + 1, self.season)]
        plan = DataSpec(
            species=self.species, season=self.season, months=stamps, effort=effort_words(s.effort),
            detections=MODELS.get(s.model, MODELS["quasi"])["family"] == "bernoulli",
            minimum=self.minimum, jointly=True, share=self.share, contributors=self.contributors,
            few_sites=self.few_sites or not self.masks,
        )  # fmt: skip
        chosen = candidates(s, base_settings(s))
        tried = TOLD if s.structure == "auto" and len(chosen) > 1 else None
        before = read_before(self.before["models"], f"study {self.name}, before") if self.before else ()
        return JobSpec(
            plan, chosen, s.folds, s.folds_by, s.one_se, s.bootstrap, s.seed,
            structure=tried, average=s.average, before=before,
        )  # fmt: skip

    def settings(self) -> bytes:
        """Digest of everything that the result depends on (8 bytes): in every frame."""
        return hashlib.blake2b(json.dumps(asdict(self), sort_keys=True).encode(), digest_size=8).digest()

    def in_use(self) -> dict[str, Any]:
        """Settings for a manifest, without those that do nothing here."""
        idle = (*(_COUNTS if self.method else ()), *(_RELAY if self.engine == "folder" else ()))
        return {key: value for key, value in asdict(self).items() if key not in idle}

    def write(self, path: Path) -> None:
        """Write the study as JSON."""
        write_json(path, asdict(self))


def _unseen(text: str) -> bool:
    """Whether a text holds control or format characters, ends of lines, letters that look blank, or blanks in a row.

    Blanks up to the edge of a screen would begin a line of one's own.
    """
    unseen = (unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") or c in _BLANK for c in text)
    return any(unseen) or re.search(r"\s\s", text) is not None


def _texts(value: object) -> Iterator[str]:
    """All texts within a study."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for pair in value.items():
            yield from _texts(pair)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)


def least_for_absence(masks: bool) -> int:
    """Least number of organisations of which some can be away: two cohorts, of which one goes on."""
    return 2 * FEWEST if masks else FEWEST


def read_study_toml(path: Path) -> Study:
    """Read ``study.toml``; an unknown or missing key is an error that names it."""
    try:
        raw = parse_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no file {path}. Check its name and folder.", path=str(path)) from None
    except ValueError as error:
        raise InputError(f"{path} is not valid TOML: {error}.", path=str(path)) from None
    for name in ("method", "community"):
        if raw.get(name) == {}:
            raise ConfigError(f"{path}: [{name}] is empty; write its settings below it, or leave it out.")
    named = raw.get("community", {})
    if isinstance(named, dict) and isinstance(named.get("species"), str):
        from fedmiss.etl.community import read_lists

        records = path.parent / named["species"]
        lists = read_lists(records, counted=named.get("model", "counts") == "counts")
        raw = raw | {"community": named | {"species": sorted(lists.species)}}
    study = _study(raw, path)
    study.check_told()
    # without it each would look for the relay on its own computer
    if study.engine != "folder" and "host" not in raw:
        raise ConfigError(
            f'{path}: engine = "{study.engine}" needs host, the name by which all organisations reach the relay, as host = '
            '"relay.example.org"; for a trial on one computer host = "localhost".'
        )
    return study


def read_study(folder: Path) -> Study:
    """Read ``study.json`` of a study's or kit's folder."""
    return _study(read_object(folder / "study.json"), folder / "study.json")


# Kinds of settings by the names of their types, with what to write
_KINDS: dict[str, tuple[Any, str]] = {
    "str": (str, "text in quotes"),
    "int": (int, "a whole number, without quotes"),
    "float": (int | float, "a number, without quotes"),
    "bool": (bool, "true or false, without quotes"),
}
_LIST = (tuple, "a list in square brackets")
_TABLE = (Mapping, "a table of its own, with its name in square brackets before it")


def _study(raw: Mapping[str, object], path: Path) -> Study:
    known = {f.name: f for f in fields(Study)}
    for key in raw:
        if key not in known:
            raise unknown(str(key), known, str(path))
    if "method" in raw or "community" in raw:
        raw = {"species": ""} | dict(raw)
    for key in ("name", "species", "organisations"):
        if key not in raw:
            raise ConfigError(f"{path} lacks {key!r}.")
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in raw.items()}
    for key, value in values.items():
        named = str(known[key].type)
        kind, words = _KINDS.get(named, _LIST if "tuple" in named else _TABLE)
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise ConfigError(
                f"{path}: {key} is {raw[key]!r}, which is not of the right kind; write {words}."
            )
        if kind == int | float:
            convert(value, float, f"{path}: {key}")
    try:
        return Study(**values)
    except TypeError as error:
        raise ConfigError(f"{path}: {error}.") from None
