"""Where results go: rows, MQTT, webhooks, video files, windows."""
