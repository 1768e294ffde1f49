"""Codes of blanks and bad values in the integer columns of a projection, and names that several modules share."""

from __future__ import annotations

COUNT_X, COUNT_BLANK, COUNT_BAD = -1, -2, -3  # present but not counted; blank; not a count
BAD = -(2**31)  # an unreadable date, time or id; blank optional ids and times are -1
FRAME = "sites of the table that nobody visited"  # a row of a panel's flow
NEVER_DETECTED = "at sites where the species was never detected"  # rows of a panel's flow
NO_DATE = "date unknown (eBird writes 1900-01-01)"  # faults of a row
NO_SIGHTING = "specimen or sample (basisOfRecord)"
