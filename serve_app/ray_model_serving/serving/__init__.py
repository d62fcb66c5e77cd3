"""A model behind Ray Serve: the gate that loads it once, batches, limits and the deployments.

Only ``replica``, ``ingress``, ``warmup`` and ``application`` import Ray; the rest runs and is tested without it.
"""
