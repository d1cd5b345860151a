"""The report: runs in one file that a person sends to colleagues, as HTML or Markdown. It knows of no server."""
