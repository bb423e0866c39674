"""Sensor windows: what is somebody doing, by the spectrum of an accelerometer?

The signals are made up by this script: four seconds at 50 Hz of five activities, each window with a pace and a strength
of its own. Plain spectral features, 5 labels per class. It needs nothing but cotrain.
"""

import numpy as np
from sklearn.metrics import confusion_matrix

from cotrain.sklearn import CoTrainingClassifier

RATE, SECONDS, WINDOWS = 50, 4, 3000
ACTIVITIES = {  # steps per second, strength, share of the second harmonic, noise
    "rest": (0.0, 0.0, 0.0, 0.15),
    "walk": (1.8, 0.6, 0.5, 0.25),
    "stairs": (1.5, 0.7, 1.0, 0.35),
    "run": (2.7, 1.6, 0.4, 0.5),
    "cycle": (1.3, 0.4, 0.1, 0.3),
}


def windows(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(n, RATE * SECONDS) signals and the number of each one's activity."""
    y = rng.integers(0, len(ACTIVITIES), WINDOWS)
    time = np.arange(RATE * SECONDS) / RATE
    pace, strength, harmonic, noise = np.array(list(ACTIVITIES.values()))[y].T[:, :, None]
    pace = pace * rng.normal(1, 0.12, (WINDOWS, 1))
    strength = strength * rng.lognormal(0, 0.3, (WINDOWS, 1))
    phase = rng.uniform(0, 2 * np.pi, (2, WINDOWS, 1))
    signal = np.sin(2 * np.pi * pace * time + phase[0]) + harmonic * np.sin(4 * np.pi * pace * time + phase[1])
    return strength * signal + noise * rng.normal(size=(WINDOWS, len(time))), y


def spectral(signals: np.ndarray) -> np.ndarray:
    """Logarithm of the power in each frequency up to 8 Hz, and of the whole window."""
    power = np.abs(np.fft.rfft(signals * np.hanning(signals.shape[1]))) ** 2
    low = power[:, : 8 * SECONDS]
    return np.log(np.c_[low, power.sum(axis=1)] + 1e-3)


def main() -> None:
    rng = np.random.default_rng(0)
    signals, y = windows(rng)
    x, test = spectral(signals), np.arange(WINDOWS) >= WINDOWS - 1000
    known = np.full(WINDOWS - 1000, -1)
    for number in range(len(ACTIVITIES)):
        known[np.flatnonzero(y[~test] == number)[:5]] = number
    model = CoTrainingClassifier(random_state=0, verbose=1).fit(x[~test], known)
    print(f"error on {test.sum()} test windows: {100 * (1 - model.score(x[test], y[test])):.1f} %")
    print("rows: what it is; columns: what it was taken for;", ", ".join(ACTIVITIES))
    print(confusion_matrix(y[test], model.predict(x[test])))


if __name__ == "__main__":
    main()
