"""What was found out about runs, in a file: for whoever asks next. It may be deleted at any time."""
