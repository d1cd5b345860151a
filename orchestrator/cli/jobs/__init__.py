"""Commands about a job's spec: writing it, checking it, planning it, finding its layout."""
