"""GPU node groups. Empty on purpose: settings import the pure modules in here, and they must not bring pulumi along."""
