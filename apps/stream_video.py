from gain_apps.stream import main

raise SystemExit(main())
