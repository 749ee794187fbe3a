"""Make everything anew that is made from benchmark/results/: `make results`.

Usage:
    python benchmark/update.py      # tables and plots of docs/, the README's table and picture

What is up to date stays as it is, to the byte: a plot is drawn only when its results have changed.
"""

import sys

import algorithms
import overview
import results
import speed_table
import verdicts


def main() -> None:
    results.docs()
    verdicts.main()
    speed_table.main()
    algorithms.main()
    if results.source_of(overview.IMAGE) != overview.digest():
        overview.draw()


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        sys.exit(f"results: {error}")
    except ImportError as error:
        sys.exit(f'results: {error}: pip install -e ".[rlops]"')
