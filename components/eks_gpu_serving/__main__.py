"""Hosts the components for programs in other languages: ``python -m pulumi.run.plugin eks-gpu-serving`` ends here.

That command looks into the package for components first, and finds none: the package names them lazily, so that the
``gpu-serving`` command and every renderer work without pulumi.
"""

from importlib.metadata import version

from pulumi.provider.experimental import component_provider_host

import eks_gpu_serving
from eks_gpu_serving.tokens import PACKAGE


def main() -> None:
    """Serve until the engine ends the process."""
    components = [getattr(eks_gpu_serving, name) for name in eks_gpu_serving.COMPONENTS]
    component_provider_host(name=PACKAGE, components=components, version=version(PACKAGE))


if __name__ == "__main__":
    main()
