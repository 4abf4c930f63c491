"""`python -m tests.conformance PATH...`: replay recorded cases (`*.jsonl[.gz]`, or JSON of scheduler or vendor cases)."""

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.conformance.replay import replay


def main(arguments: Sequence[str]) -> int:
    if not arguments:
        sys.stderr.write("usage: python -m tests.conformance PATH...\n")
        return 2
    worst = 0
    for name in arguments:
        tally = replay(Path(name))
        sys.stdout.write(f"{Path(name).name}: {tally.line()}\n")
        for case, differences in tally.failed.items():
            worst = 1
            for difference in differences:
                sys.stdout.write(f"  {case}: {difference}\n")
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
