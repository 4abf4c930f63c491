"""`python -m benchmarks [NAME...]`: one JSON line for each figure; exit status 1 when a limit was missed."""

import importlib
import sys

import msgspec

from benchmarks.row import Row

MODULES = ("log", "view", "decide", "filter", "agent")


def main(argv: list[str]) -> int:
    wanted = argv or list(MODULES)
    unknown = [name for name in wanted if name not in MODULES]
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are {', '.join(MODULES)}", file=sys.stderr)
        return 2
    missed = 0
    for name in wanted:
        rows: list[Row] = importlib.import_module(f"benchmarks.bench_{name}").run()
        for each in rows:
            print(msgspec.json.encode(each).decode(), flush=True)
            missed += each.met is False
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
