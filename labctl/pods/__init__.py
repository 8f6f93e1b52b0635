"""From a pod of a Kubernetes cluster to a container on a node of the lab."""
