"""Checks the nodes of a cluster: what differs between them, and how fast they reach each other."""
