"""The review pages: a web server with no state of its own, and the report for colleagues."""
