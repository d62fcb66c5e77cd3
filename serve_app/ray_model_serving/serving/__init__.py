"""A model behind Ray Serve: the gate that loads it once, batches, limits and the deployments.

Only ``replica``, ``ingress`` and ``application`` import Ray; the rest runs and is tested without it.
"""
