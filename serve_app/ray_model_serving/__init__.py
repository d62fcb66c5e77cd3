"""Ray Serve, pre-configured so that models load fast, once per node, and replicas stay within their memory."""
