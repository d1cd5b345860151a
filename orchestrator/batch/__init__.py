"""The programs that batch scripts call, including queued scripts that an earlier version wrote."""
