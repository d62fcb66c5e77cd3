"""Who this process is to AWS: compared with the role that the settings demand, and named in 403 texts."""

import logging
import re
from typing import Any, cast

from botocore.exceptions import BotoCoreError, ClientError

from ray_model_serving.store.errors import WrongIdentityError

log = logging.getLogger(__name__)

_ASSUMED = re.compile(r"arn:(?P<partition>[\w-]+):sts::(?P<account>\d+):assumed-role/(?P<name>[^/]+)/.+")
_ROLE = re.compile(r"arn:(?P<partition>[\w-]+):iam::(?P<account>\d+):role/(?:.+/)?(?P<name>[^/]+)")


def is_same_identity(caller_arn: str, expected_arn: str) -> bool:
    """Whether ``GetCallerIdentity``'s ARN is the expected role (or, literally, the expected user).

    An assumed role's ARN keeps partition, account and role name but loses the role's path.
    """
    if caller_arn == expected_arn:
        return True
    caller, expected = _ASSUMED.fullmatch(caller_arn), _ROLE.fullmatch(expected_arn)
    return bool(caller and expected and caller.groupdict() == expected.groupdict())


def caller_arn(sts: Any) -> str:
    """The caller's ARN. Raises botocore's errors."""
    return cast("str", sts.get_caller_identity()["Arn"])


def caller_arn_or_none(sts: Any) -> str | None:
    """The caller's ARN for an error text, or None when STS does not answer."""
    try:
        return caller_arn(sts)
    except (BotoCoreError, ClientError) as error:
        log.debug("the caller's identity is unknown: %s", error)
        return None


def check_identity(actual_arn: str, expected_arn: str) -> None:
    """Raises :class:`WrongIdentityError` with both ARNs."""
    if not is_same_identity(actual_arn, expected_arn):
        raise WrongIdentityError(
            f"this process runs as {actual_arn}, its settings expect {expected_arn}",
            hint="check the service account's role annotation or Pod Identity association, and that no node role or "
            "static key comes before it",
        )
