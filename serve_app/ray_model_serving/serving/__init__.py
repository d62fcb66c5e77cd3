"""A model behind Ray Serve: the gate that loads it once, batches, limits and the deployments.

Only ``deployments`` modules (``replica``, ``ingress``) import Ray; the rest runs and is tested without it.
"""
