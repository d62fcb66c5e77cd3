"""The Pulumi program of this checkout: reads the stack's configuration and creates one GpuServingStack."""
