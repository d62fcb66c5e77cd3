"""How long the name of a component may be: AWS limits the names that are made of it."""

# https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html: characters of a role's name.
_IAM_ROLE_NAME = 64
# Pulumi adds a hyphen and seven characters to a logical name.
_AUTO_SUFFIX = 8


def _longest_with(suffix: str) -> int:
    return _IAM_ROLE_NAME - _AUTO_SUFFIX - len(suffix)


NODE_GROUP = _longest_with("-node-role")
MODEL_ROLE = _longest_with("-role")
# pulumi-eks names the role of the control plane so.
CLUSTER = _longest_with("-eks-eksRole-role")


def name_problem(name: str, longest: int) -> str | None:
    """What is wrong with the length of a component's name, or None."""
    if len(name) <= longest:
        return None
    return (
        f"got {name!r} with {len(name)} characters, at most {longest}: IAM role names made of it have {_IAM_ROLE_NAME}"
    )
