"""Commands for a job's spec: writing, checking and planning it, and finding its layout."""
