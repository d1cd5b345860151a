"""The processes of a job: what they are, what they agree on, and how they end."""
