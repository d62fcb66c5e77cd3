"""Paths, ports and ids that containers, commands and the infrastructure agree on."""

# Every container sees the node's cache here, whatever the node's operating system mounts it as.
CACHE_MOUNT_PATH = "/model-cache"

# The prefetch container's list of models: a ConfigMap of constant name, so that a new model version leaves the
# RayCluster specification, and with it every running GPU pod, alone.
PREFETCH_LIST_DIRECTORY = "/etc/ray-model"
PREFETCH_LIST_FILE = "prefetch.json"

SERVE_PORT = 8000

# The user of the official Ray images. fsGroup does not apply to hostPath, so the cache is handed to this id by hand.
SERVING_UID = 1000
SERVING_GID = 1000
