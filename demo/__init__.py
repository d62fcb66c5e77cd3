"""``make demo``: the dev stack's application on one machine, with a real model and a local object store."""
