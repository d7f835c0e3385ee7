"""Pictures made by code: road signs and corruptions, as frames and as sources."""
