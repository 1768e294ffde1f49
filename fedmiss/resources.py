"""Find the files that ship beside the code: schemas, recipes, report templates, demo data."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent


def resource(*parts: str) -> Path:
    """Return the path of a shipped file, for example ``resource("data_schema", "visits.v1.json")``.

    In an installed wheel the top-level folders live in ``fedmiss/_resources``; in a checkout they are
    where a reader sees them, beside the package.
    """
    for base in (_PACKAGE / "_resources", _PACKAGE, _PACKAGE.parent):
        path = base.joinpath(*parts)
        if path.exists():
            return path
    raise FileNotFoundError(f"{'/'.join(parts)} is not part of this installation of fedmiss; reinstall it.")
