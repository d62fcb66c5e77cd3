"""What can go wrong between a snapshot and a module, each with a stable ``kind``."""

from ray_model_serving.contract.errors import ModelServingError


class InsufficientMemoryError(ModelServingError):
    """The load needs more memory than was declared, or than there is. Raised before a weight is read."""

    kind = "insufficient_memory"


class BuildFailedError(ModelServingError):
    """The model class's ``build`` raised, or returned something that is not a module."""

    kind = "build_failed"


class CheckpointMismatchError(ModelServingError):
    """The module and the checkpoint do not have the same tensors."""

    kind = "checkpoint_mismatch"


class LeftOnMetaError(ModelServingError):
    """Tensors that neither the checkpoint nor ``build`` gave a value."""

    kind = "left_on_meta"


class DeviceUnavailableError(ModelServingError):
    kind = "device_unavailable"


class UnsafeCheckpointError(ModelServingError):
    """A pickle that would run code. It is refused, not run."""

    kind = "unsafe_checkpoint"


class UnsupportedCheckpointError(ModelServingError):
    """A checkpoint that can't be read as weights, such as a TorchScript file, or a type that torch does not have."""

    kind = "unsupported_checkpoint"
