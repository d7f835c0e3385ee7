"""`python -m gain_apps.roadsigns`: draw a contact sheet."""

from gain_apps.roadsigns.contact_sheet import main

raise SystemExit(main())
