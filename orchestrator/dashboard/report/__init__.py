"""The report: runs in one file that a person sends to colleagues, as HTML or Markdown. It knows of no server.

`dashboard.report.building.build(Wanted)` gives a Document of words, tables, lines and figures, out of which
`review.redaction.Redaction` has taken what specs and logs keep secret; `to_html` and `to_markdown` write it,
everything escaped.
"""
