"""Why a run ended: the possible causes, and their detection from exit records and logs."""
