"""`python -m ocannl_core.cli`: the command without its installed script."""

from ocannl_core.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
