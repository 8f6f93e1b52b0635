"""A small Kubernetes cluster on this machine: built from Debian's packages, its nodes are namespaces."""
