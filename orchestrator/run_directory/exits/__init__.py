"""Why a run ended: the causes that there are, and finding the one from exit records and logs."""
