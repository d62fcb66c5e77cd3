"""A GPU serving stack on EKS as Pulumi components."""
