"""Train a grid of settings over seeds and print the mean and spread of the error. Finished runs are kept.

    python -m benchmarks.grid digits --out runs/grid --seeds 0 1 2 \
        --variant "paper" --variant "code method.normaliser=batch method.reduction=sum" --vary optim.lr=0.03,0.1,0.3

A variant is a name followed by settings; `--vary` multiplies the variants by the values of one more setting. To choose
settings, compare errors on validation images: `--judge valid --set data.valid_share=0.3`.
"""

import argparse
import itertools
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cotrain.runs.result import Result


def cells(variants: list[str], vary: list[str]) -> dict[str, list[str]]:
    """The name of every cell, with its KEY=VALUE settings."""
    named = {words.split()[0]: words.split()[1:] for words in variants or ["default"]}
    axes = [
        [f"{key}={value}" for value in values.split(",")] for key, _, values in (axis.partition("=") for axis in vary)
    ]
    return {
        " ".join([name, *combination]): [*settings, *combination]
        for name, settings in named.items()
        for combination in itertools.product(*axes)
    }


def train(data: str, folder: Path, settings: list[str], extra: list[str], threads: int) -> Result | None:
    """Train or resume a run, or read its result. `fit` refuses another configuration in the same folder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "cotrain", "fit", data, "--out", str(folder), *extra]
    command += [word for setting in settings for word in ("--set", setting)]
    command += ["--resume"] if (folder / "config.json").exists() else []
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    with open(f"{folder}.txt", "a") as output:
        done = subprocess.run(command, env=environment, stdout=output, stderr=output, check=False)
    return Result.read(folder / "result.json") if done.returncode == 0 else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--variant", action="append", default=[])
    parser.add_argument("--vary", action="append", default=[])
    parser.add_argument("--set", action="append", default=[], help="a setting of every cell")
    parser.add_argument("--recipe")
    parser.add_argument("--baseline", action="store_true", help="also train the labelled-only baseline")
    parser.add_argument(
        "--judge", choices=["test", "valid"], default="test", help="the images on which errors are measured"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()

    extra = (["--recipe", arguments.recipe] if arguments.recipe else []) + (
        [] if arguments.baseline else ["--no-baseline"]
    )
    grid = cells(arguments.variant, arguments.vary)
    jobs = [(name, settings, seed) for seed in arguments.seeds for name, settings in grid.items()]
    with ThreadPoolExecutor(arguments.workers) as pool:
        futures = [
            pool.submit(
                train,
                arguments.data,
                arguments.out / f"{name.replace(' ', '_')}-seed{seed}",
                [*arguments.set, *settings, f"run.seed={seed}"],
                extra,
                arguments.threads,
            )
            for name, settings, seed in jobs
        ]
        results = {(name, seed): future.result() for (name, _, seed), future in zip(jobs, futures, strict=True)}
    print(table(grid, arguments.seeds, results, arguments.judge))


def error(result: Result, judge: str) -> float:
    """In percent, on the test or validation images."""
    if judge == "test":
        return result.test.error
    counted = result.temperature.fitted_on
    return 100 * counted.wrong / counted.valid_images


def table(
    grid: dict[str, list[str]], seeds: list[int], results: dict[tuple[str, int], Result | None], judge: str
) -> str:
    lines = [
        f"| setting | {judge} error %, mean ± sd (n) | each seed | baseline test % | seconds per run |",
        "|---|---|---|---|---|",
    ]
    for name in grid:
        done = [results[name, seed] for seed in seeds if results[name, seed]]
        if len(done) < len(seeds):
            lines.append(f"| {name} | {len(seeds) - len(done)} of {len(seeds)} failed: see its .txt | | | |")
            continue
        baseline = [alone for row in done if (alone := row.baselines.labelled_only_error) is not None]
        lines.append(
            f"| {name} | {spread([error(row, judge) for row in done])} | "
            f"{', '.join(format(error(row, judge), '.2f') for row in done)} | {spread(baseline) if baseline else '-'}"
            f" | {statistics.mean(row.training.seconds for row in done):.0f} |"
        )
    return "\n".join(lines)


def spread(errors: list[float]) -> str:
    deviation = statistics.stdev(errors) if len(errors) > 1 else 0.0
    return f"{statistics.mean(errors):.2f} ± {deviation:.2f} ({len(errors)})"


if __name__ == "__main__":
    main()
