"""`python -m labctl`, the same as the `labctl` script."""

from labctl.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
