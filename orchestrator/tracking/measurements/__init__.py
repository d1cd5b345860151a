"""What was measured of a run, as it is stored: metrics, goodput, data sources, and the load of its nodes."""
