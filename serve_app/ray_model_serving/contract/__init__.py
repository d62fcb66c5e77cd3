"""What crosses a boundary between the infrastructure and the serving library.

Standard library only: the infrastructure imports this package without ray, torch or boto3.
"""
