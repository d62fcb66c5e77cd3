"""Proves that a stack fits before the cloud sees it: instance table, capacity plan, time-outs and cost. Pure."""
