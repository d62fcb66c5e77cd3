"""Type tokens of our components: ``<distribution>:index:<Class>``, the only form that a component provider serves."""

PACKAGE = "eks-gpu-serving"


def token(class_name: str) -> str:
    """The token of a component class. It is part of every URN, so a changed one replaces what is deployed."""
    return f"{PACKAGE}:index:{class_name}"
