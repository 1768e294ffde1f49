"""Write docs/reference/licences.md: every package that `pip install fedmiss` brings, with version and licence."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

PAGE = Path(__file__).parent / "reference" / "licences.md"


def licence(package: metadata.Distribution) -> str:
    """What a package says of its licence: the expression, else its classifiers, else the first line of the field."""
    told = package.metadata
    if told.get("License-Expression"):
        return str(told["License-Expression"])
    classes = [c.rpartition(" :: ")[2] for c in told.get_all("Classifier") or [] if c.startswith("License")]
    return " and ".join(classes) or (told.get("License") or "not stated").strip().splitlines()[0][:60]


def brought() -> dict[str, tuple[str, str, bool]]:
    """Package -> version, licence, and whether fedmiss names it itself; extras are left out."""
    project = tomllib.loads((PAGE.parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    direct = {Requirement(r).name.lower() for r in project["dependencies"]}
    found: dict[str, tuple[str, str, bool]] = {}
    waiting = sorted(direct)
    while waiting:
        one = waiting.pop()
        package = metadata.distribution(one)
        key = re.sub(r"[-_.]+", "-", package.metadata["Name"]).lower()
        if key in found:
            continue
        found[key] = (package.version, licence(package), key in direct)
        for text in package.requires or []:
            need = Requirement(text)
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                waiting.append(need.name)
    return found


def page() -> str:
    """The page's text."""
    found = sorted(brought().items())
    rows = [f"| {name} | {version}: {terms} | yes |" for name, (version, terms, direct) in found if direct]
    others = [f"{name} {version} ({terms})" for name, (version, terms, direct) in found if not direct]
    return "\n".join(
        [
            "<!-- written by docs/make_licences.py -->",
            "# Licences of what fedmiss needs",
            "",
            "The MIT licence covers fedmiss itself. `pip install fedmiss` brings these packages, in the versions of",
            "`constraints.txt`, with the licences that they state:",
            "",
            "| package | version: licence | named by fedmiss |",
            "|---|---|---|",
            *rows,
            "",
            f"And what these need: {', '.join(others)}.",
            "",
            "Data that ship with it: counts of wading birds in the Everglades (CC0 1.0, EvergladesWadingBird data of",
            "weecology); coasts and borders of Natural Earth (public domain).",
            "",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
