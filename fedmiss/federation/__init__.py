"""The default job as a federation: groups answer, a hub asks, and only the messages of :mod:`.messages` cross.

``group/`` is one side of the wall: it sees visits, and whatever is derived from single visits or sites stays there.
``hub/`` is the other: it sees answers. An import contract forbids the hub to import what sees a visit.
``messages``, ``codec``, ``ledger`` and ``link`` lie between them. ``local`` is for a user who holds all groups: both
sides in one process, the same bytes.
"""

from __future__ import annotations

from fedmiss.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
