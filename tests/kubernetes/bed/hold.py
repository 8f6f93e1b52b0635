"""Holds a cluster of so many nodes until it is told to end: `python -m tests.kubernetes.bed.hold 3`."""

from __future__ import annotations

import signal
import sys

from labctl.progress import progress_for_stderr
from tests.kubernetes.bed.built import ensure_built
from tests.kubernetes.bed.cluster import cluster

if __name__ == "__main__":
    with cluster(ensure_built(progress_for_stderr()), int(sys.argv[1])) as bed:
        print("ready", *bed.nodes, flush=True)
        print(f"KUBECONFIG={bed.kubeconfig}; Ctrl-C ends it", file=sys.stderr, flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
