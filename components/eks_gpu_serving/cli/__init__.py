"""The ``gpu-serving`` command."""
