"""What the guide says is so: its example runs, and every section and table is in it."""

import re
from pathlib import Path

from fedmiss.report.sections import ORDER
from fedmiss.resources import resource

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide"


def test_the_example_runs():
    blocks = re.findall(r"```python\n(.*?)```", (GUIDE / "trends.md").read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "trends.md", "exec"), {})


def test_every_section_has_a_template_and_every_table_a_place_in_the_guide(report):
    for name in ORDER:
        assert resource("reports", "species", "sections", f"{name}.html.j2").exists()
    text = (GUIDE / "report.md").read_text(encoding="utf-8")
    for kind in ("tables", "figures"):
        for stem in {p.stem for p in (report / kind).iterdir()}:
            assert re.search(rf"{kind}/(\{{[^}}]*\b{stem}\b[^}}]*\}}|{stem}\b)", text), (kind, stem)
