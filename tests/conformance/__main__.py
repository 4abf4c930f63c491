"""`python -m tests.conformance PATH...`: replay recorded cases (`*.jsonl[.gz]`, or JSON of scheduler or vendor cases).

A folder stands for the recordings in it.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.conformance.replay import replay


def main(arguments: Sequence[str]) -> int:
    if not arguments:
        sys.stderr.write("usage: python -m tests.conformance PATH...\n")
        return 2
    worst = 0
    for path in files_in(arguments):
        tally = replay(path)
        sys.stdout.write(f"{path.name}: {tally.line()}\n")
        for case, differences in tally.failed.items():
            worst = 1
            for difference in differences:
                sys.stdout.write(f"  {case}: {difference}\n")
    return worst


def files_in(arguments: Sequence[str]) -> Iterator[Path]:
    for path in map(Path, arguments):
        kinds = ("*.jsonl", "*.jsonl.gz", "*-cases.json", "*-cases.json.gz")
        yield from sorted(each for kind in kinds for each in path.glob(kind)) if path.is_dir() else [path]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
