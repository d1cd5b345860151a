"""Names that Kubernetes accepts (RFC 1123), made from those of a job."""

from __future__ import annotations

import re

REPLICATED_JOB = "node"
LONGEST_LABEL = 63
_LONGEST_SUBDOMAIN = 253
_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_POD_SUFFIX = "-abcde"
"""As long as what Kubernetes adds to a pod's name."""


def job_set_name(job_name: str, run_id: str, pods: int) -> str:
    """`gpt-small-3f9a12cd`: the job's name and its run id, short enough that the names of all pods, which are host
    names too, are DNS labels. It begins with a letter, as the name of a service must.
    """
    room = LONGEST_LABEL - len(f"{pod_name('', pods - 1)}{_POD_SUFFIX}") - len(f"-{run_id}")
    words = re.sub(r"[^a-z0-9]+", "-", job_name.lower()).strip("-")
    words = words if words[:1].isalpha() else f"job-{words}"
    return f"{words[:room].rstrip('-')}-{run_id}"


def pod_name(job_set: str, index: int) -> str:
    """The host name of a pod: Kubernetes adds some letters for the pod's own name."""
    return f"{job_set}-{REPLICATED_JOB}-0-{index}"


def pod_address(job_set: str, index: int) -> str:
    """What other pods of the set reach a pod by: the service has the name of the set."""
    return f"{pod_name(job_set, index)}.{job_set}"


def is_label(text: str) -> bool:
    """Whether a namespace can be called so."""
    return _LABEL.fullmatch(text) is not None


def is_subdomain(text: str) -> bool:
    """Whether most other objects can be called so: labels, separated by dots."""
    return len(text) <= _LONGEST_SUBDOMAIN and all(map(is_label, text.split(".")))
