"""fedmiss: bird counts imputed and trends reported, by federated EM, while records stay where they are."""

from __future__ import annotations

__version__ = "0.1.0"
