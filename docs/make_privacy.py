"""Write the table of docs/research/messages.md from the types of the messages: ``python docs/make_privacy.py``."""

from __future__ import annotations

from pathlib import Path

from fedmiss.federation.words import privacy_table

PAGE = Path(__file__).with_name("research") / "messages.md"
BEGIN, END = "<!-- table: made by docs/make_privacy.py -->", "<!-- end of table -->"


def main() -> None:
    """Replace the table between its two marks."""
    text = PAGE.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n{privacy_table()}\n{END}{rest.split(END)[1]}", encoding="utf-8")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
