"""Deployments of an image: what a container host or a cluster is told, from the plan. Scaling out is the cluster's."""
