"""``python -m gain_apps.corruptions PHOTO --out SHEET``."""

from __future__ import annotations

from gain_apps.corruptions.contact_sheet import main

raise SystemExit(main())
