"""``make demo``. Exit code 0: everything it claims is so. 1: something is not. 130: interrupted, and cleaned up."""

import sys


def main() -> int:
    """Run the demo. Returns the exit code."""
    try:
        # Here and not above: imports take a second, and Ctrl-C counts from the first moment.
        from demo.run import run

        return run()
    except KeyboardInterrupt:
        sys.stderr.write("\ndemo: interrupted before anything was started.\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
