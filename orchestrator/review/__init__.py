"""What a person reviews, read from run directories: summaries of runs, measurements, and what differs between them."""
