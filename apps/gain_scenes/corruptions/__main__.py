"""``python -m gain_scenes.corruptions PHOTO --out SHEET``."""

from __future__ import annotations

from gain_scenes.corruptions.contact_sheet import main

raise SystemExit(main())
