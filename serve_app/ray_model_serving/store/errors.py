"""What can go wrong between an object store and a snapshot, each with a stable ``kind``."""

from collections.abc import Sequence

from ray_model_serving.contract.errors import ModelServingError

NOT_S3_HINT = "check the endpoint URL; a proxy or a login page may answer in the store's place"


class BucketNotFoundError(ModelServingError):
    kind = "bucket_not_found"


class AccessDeniedError(ModelServingError):
    """S3 answers 403 for a key that may not be read, and for one that does not exist where listing is denied."""

    kind = "access_denied"


class KeyDeniedError(ModelServingError):
    """The object is there, and the KMS key that it is encrypted with can't be used."""

    kind = "kms_denied"


class WrongRegionError(ModelServingError):
    """The bucket is in another region, and the client could not follow."""

    kind = "wrong_region"


class CredentialsError(ModelServingError):
    """No credentials, or credentials that AWS does not accept."""

    kind = "credentials"


class WrongIdentityError(ModelServingError):
    """The process runs under another identity than its settings demand."""

    kind = "wrong_identity"


class NoObjectsError(ModelServingError):
    """A model with zero files is an error, never an empty snapshot."""

    kind = "no_objects"


class UnusableKeysError(ModelServingError):
    """Object keys that can't be, or must not be, file names under a snapshot."""

    kind = "unusable_keys"


class InvalidModelFileError(ModelServingError):
    """Files that are not what their names say, such as an error page or a Git LFS pointer."""

    kind = "invalid_model_file"


class NoWeightsError(ModelServingError):
    """Files without a single safetensors file among them."""

    kind = "no_weights"


class SnapshotMismatchError(ModelServingError):
    """The store holds other content than the pin names."""

    kind = "snapshot_mismatch"


class DigestMismatchError(ModelServingError):
    """Bytes that differ from the store's checksum; another download may bring the right ones."""

    kind = "digest_mismatch"
    permanent = False


class ObjectReplacedError(ModelServingError):
    """An object changed or went away while it was read; revisions are never mixed."""

    kind = "object_replaced"
    permanent = False


class StoreUnavailableError(ModelServingError):
    """The store did not answer well within the attempts and the deadline."""

    kind = "store_unavailable"
    permanent = False


class StoreRefusedError(ModelServingError):
    """An answer of the store that no retry changes and that has no kind of its own."""

    kind = "store_refused"


class CacheNotWritableError(ModelServingError):
    kind = "cache_not_writable"


class IoFailedError(ModelServingError):
    """The operating system refused to read or write a file, for a reason that has no kind of its own."""

    kind = "io_failed"
    permanent = False


class AwsConfigurationError(ModelServingError):
    """An endpoint URL, region, profile or configuration file that no client can be made of."""

    kind = "aws_configuration"


class NoSpaceError(ModelServingError):
    """Neither the disk nor the cache's budget has room, and what could go is in use."""

    kind = "no_space"


class CacheChangedError(ModelServingError):
    """A snapshot went away before it could be used."""

    kind = "cache_changed"
    permanent = False


class LockTimeoutError(ModelServingError):
    """Another process of the node holds the snapshot's lock for longer than the deadline."""

    kind = "lock_timeout"
    permanent = False


class DirectoryNotFoundError(ModelServingError):
    """A ``file://`` model that is not a directory on this machine."""

    kind = "directory_not_found"


def first_few(items: list[str], limit: int = 20) -> str:
    """One line an item; the rest as a count, since a text must stay readable."""
    lines = [f"\n  - {item}" for item in items[:limit]]
    if len(items) > limit:
        lines.append(f"\n  - and {len(items) - limit} more")
    return "".join(lines)


def raise_together(errors: Sequence[ModelServingError], where: str) -> None:
    """Raise nothing, the one error, or one error of the first one's kind with every text."""
    if not errors:
        return
    first = errors[0]
    if len({error.message for error in errors}) == 1:
        raise first
    # One permanent problem makes the whole permanent: a retry can't mend it.
    worst = next((error for error in errors if error.permanent), first)
    message = f"{where}: {len(errors)} files failed:{first_few([error.message for error in errors])}"
    raise type(worst)(message, hint=worst.hint)
