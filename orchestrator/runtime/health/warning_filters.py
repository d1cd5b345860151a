"""Imported before torch: keeps what nobody can act on out of the output of the check."""

import os
import warnings

# Python 3.12 warns of forks beside other threads. Those here are the idle ones of numerical libraries.
warnings.filterwarnings("ignore", message=".*is multi-threaded, use of fork", category=DeprecationWarning)
# torch reads this when it is imported. It would add a C++ trace to every connection that fails, which this check
# expects and explains.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
