"""The report: runs in one file to send to colleagues, as HTML or Markdown. It does not depend on the server.

`dashboard.report.building.build(Wanted)` returns a Document of text, tables, lines and figures, from which
`review.redaction.Redaction` has removed the secrets of specs and logs. `to_html` and `to_markdown` write it with
everything escaped.
"""
