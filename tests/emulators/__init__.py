"""What stands in for AWS on loopback: an S3 server as a process, and a proxy before it that records and breaks things.

with s3_emulator() as s3:                    # ministack, a process of its own
    with recording_proxy(s3.endpoint_url) as proxy:
        proxy.rule = times(2, answer(503, "SlowDown"))
        ModelStore(root, endpoint_url=proxy.endpoint_url).ensure(...)
        assert proxy.body_bytes("GET") == ...
"""

from emulators.proxy import Answer, RecordingProxy, Request, answer, recording_proxy, times
from emulators.s3 import S3Emulator, s3_emulator

__all__ = ["s3_emulator", "S3Emulator", "recording_proxy", "RecordingProxy", "Request", "Answer", "answer", "times"]
