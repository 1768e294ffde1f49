"""The page that says which test holds which rule."""

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "research" / "ingest-rules.md"


def test_every_rule_has_a_test_that_exists():
    """Rules 1 to 36 and sections A to I are there, and every test that is named can be run."""
    page = PAGE.read_text(encoding="utf-8")
    assert re.findall(r"^\| (\d+) \|", page, re.M) == [str(i) for i in range(1, 37)]
    assert re.findall(r"^\| \*\*([A-I])\.", page, re.M) == list("ABCDEFGHI")
    known = set()
    for file in HERE.glob("test_*.py"):
        known |= set(re.findall(r"^def (test_\w+)\(", file.read_text(encoding="utf-8"), re.M))
    named = set(re.findall(r"`(test_\w+)`", page))
    assert len(named) > 40
    assert named <= known, named - known
