"""The RayService of a stack: pure renderers of its Kubernetes objects, and the component that creates them."""
