"""Settings of every test: hypothesis judges values, never how long a busy machine took."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("phalanx", deadline=None)
settings.load_profile("phalanx")
