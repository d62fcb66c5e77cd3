"""The same model class over files of records, as a Ray Data job: ``ray-model batch``."""
