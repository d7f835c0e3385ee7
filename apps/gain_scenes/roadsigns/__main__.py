"""`python -m gain_scenes.roadsigns`: draw a contact sheet."""

from __future__ import annotations

from gain_scenes.roadsigns.contact_sheet import main

raise SystemExit(main())
