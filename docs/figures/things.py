"""Eight everyday things as shapes that can be drawn by sphere tracing.

A shape is a function that gives the distance from any point to its surface, negative inside. Things are about one unit
in size, and y points up.
"""

import colorsys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Part:
    distance: Callable[[Array], Array]  # points (n, 3) -> (n,), negative inside
    colour: Callable[[Array], Array]  # points (n, 3) -> linear RGB (n, 3) or (3,)
    gloss: float = 0.3
    bumps: Callable[[Array], Array] | None = None  # points (n, 3) -> (n,), added to the distance for shading only


# Colours, noise and shapes


def hsv(hue: float, saturation: float, value: float) -> Array:
    return np.array(colorsys.hsv_to_rgb(hue % 1, saturation, value), np.float32) ** 2.2


def muted(rng: Generator) -> Array:
    """A colour of furniture and cloth."""
    hue = rng.choice([0.02, 0.08, 0.11, 0.35, 0.56, 0.6]) + rng.normal() * 0.02
    return hsv(hue, rng.uniform(0, 0.5), rng.uniform(0.25, 0.95))


def mix(low: Array, high: Array, share: Array) -> Array:
    return low + (high - low) * np.clip(share, 0, 1)[:, None]


def plain(colour: Array) -> Callable[[Array], Array]:
    return lambda p: colour


class Noise:
    """A smooth random function of space with mean 0 and variance about 1: a sum of waves in random directions."""

    def __init__(self, rng: Generator, waves: int = 9) -> None:
        self.directions = rng.normal(size=(3, waves)).astype(np.float32)
        self.phases = rng.uniform(0, 2 * np.pi, waves).astype(np.float32)

    def __call__(self, points: Array, frequency: float, octaves: int = 1) -> Array:
        total = np.zeros(len(points), np.float32)
        for octave in range(octaves):
            waves = np.sin(points * (frequency * 2.03**octave) @ self.directions + self.phases * (octave + 1))
            total += waves.mean(1) * (np.sqrt(2 * len(self.phases)) / 1.7**octave)
        return total


def dot(a: Array, b: Array) -> Array:
    return np.einsum("...i,...i", a, b)


def length(vectors: Array) -> Array:
    return np.sqrt(dot(vectors, vectors))


def ball(p: Array, centre: tuple, radius: float) -> Array:
    return length(p - np.array(centre, np.float32)) - radius


def ellipsoid(p: Array, centre: tuple, radii: tuple) -> Array:
    q, r = p - np.array(centre, np.float32), np.array(radii, np.float32)
    near = length(q / r)
    return near * (near - 1) / np.maximum(length(q / r**2), 1e-6)


def stick(p: Array, start: tuple, end: tuple, radius: float) -> Array:
    a, axis = np.array(start, np.float32), np.subtract(end, start).astype(np.float32)
    along = np.clip((p - a) @ axis / (axis @ axis), 0, 1)
    return length(p - a - along[:, None] * axis) - radius


def blend(a: Array, b: Array, width: float) -> Array:
    """The union of two shapes with a rounded seam."""
    share = np.clip(0.5 + 0.5 * (b - a) / width, 0, 1)
    return b + (a - b) * share - width * share * (1 - share)


def across(p: Array) -> Array:
    """The distance from the vertical axis."""
    return np.hypot(p[:, 0], p[:, 2])


def stalk(rng: Generator, low: float, high: float) -> Part:
    end = (rng.uniform(-0.1, 0.1), high, rng.uniform(-0.1, 0.1))
    return Part(lambda p: stick(p, (0, low, 0), end, 0.022), plain(hsv(0.08, 0.6, rng.uniform(0.2, 0.45))), 0.05)


def leaf(rng: Generator, height: float) -> Part:
    green = hsv(rng.uniform(0.25, 0.36), 0.75, rng.uniform(0.35, 0.6))
    return Part(
        lambda p: ellipsoid(p, (0.17, height, 0), (0.19, 0.018, 0.085)) - 0.012 + 0.25 * p[:, 2] ** 2,
        lambda p: mix(green, green * 1.7, 1 - np.abs(p[:, 2]) * 60),
        0.2,
    )


# The eight kinds: each function draws one example at random, about one unit in size


def apple(rng: Generator) -> list[Part]:
    noise, dent, taper = Noise(rng), rng.uniform(0.13, 0.22), rng.uniform(0.05, 0.3)
    base = hsv(*rng.choice([[0.17, 0.65, 0.85], [0.24, 0.7, 0.75], [0.12, 0.7, 0.9], [0.01, 0.85, 0.7]]))
    blush = hsv(rng.uniform(-0.03, 0.03), 0.9, rng.uniform(0.5, 0.8))
    much = rng.choice([-2.0, 0.0, 1.0])

    def skin(p: Array) -> Array:
        angle = np.arctan2(p[:, 0], p[:, 2])[:, None] * np.array([3, 0, 0], np.float32)
        colour = mix(base, blush, 0.5 + much + 0.12 * noise(angle + p * 0.6, 2.5, 3) + 0.4 * noise(p, 1.5))
        return mix(colour, hsv(0.14, 0.4, 0.9), (noise(p, 45) > 2) * 0.25)

    def body(p: Array) -> Array:
        return np.hypot(across(p) * (1 - taper * p[:, 1]) - dent, p[:, 1] * 1.02) - 0.3

    parts = [Part(body, skin, 0.5, lambda p: 0.012 * noise(p, 3)), stalk(rng, 0.15, rng.uniform(0.3, 0.48))]
    return parts + [leaf(rng, 0.34)] * (rng.random() < 0.3)


def citrus(rng: Generator, peel: Array, flesh: Array, stretch: float, tip: float) -> list[Part]:
    """An orange or a lemon, whole or cut in half."""
    noise, cut, segments = Noise(rng, 14), rng.random() < 0.3, int(rng.integers(8, 12))
    radius = 0.42 / stretch**0.5

    def body(p: Array) -> Array:
        whole = ellipsoid(p, (0, 0, 0), (radius, radius * stretch, radius))
        if tip:
            whole = blend(whole, stick(p, (0, -radius * stretch, 0), (0, radius * (stretch + tip), 0), 0.05), 0.16)
        return np.maximum(whole, p[:, 1]) if cut else whole

    def colour(p: Array) -> Array:
        skin = mix(peel, peel * np.float32([0.75, 0.95, 1]), 0.3 * noise(p, 2, 2)) * (1 + 0.06 * noise(p, 30)[:, None])
        skin = mix(skin, hsv(0.25, 0.6, 0.35), (across(p) < 0.035) * (p[:, 1] > 0))
        share = across(p) / radius
        edge = np.abs((np.arctan2(p[:, 0], p[:, 2]) * segments / (2 * np.pi)) % 1 - 0.5)
        pith = (share > 0.86) | ((0.5 - edge) * share < 0.03) | (share < 0.09)
        inside = mix(flesh * (1 + 0.15 * noise(p * [1, 0, 1], 12, 2)[:, None]), hsv(0.13, 0.2, 0.98), pith * 0.9)
        return np.where((cut & (p[:, 1] > -0.006) & (share < 0.95))[:, None], inside, skin)

    fruit = Part(body, colour, 0.35, lambda p: 0.0022 * noise(p, 26) * noise(p, 41))
    return [fruit] + [leaf(rng, radius * (stretch + tip))] * (not cut and rng.random() < 0.25)


def orange(rng: Generator) -> list[Part]:
    hue = rng.uniform(0.06, 0.105)
    return citrus(rng, hsv(hue, 0.95, 0.95), hsv(hue + 0.01, 0.85, 1), rng.uniform(0.9, 1.03), 0)


def lemon(rng: Generator) -> list[Part]:
    hue = rng.choice([rng.uniform(0.125, 0.16), rng.uniform(0.16, 0.24)], p=[0.8, 0.2])
    return citrus(rng, hsv(hue, 0.85, 0.95), hsv(hue, 0.5, 1), rng.uniform(1.12, 1.35), rng.uniform(0.08, 0.22))


def pear(rng: Generator) -> list[Part]:
    noise, neck, width = Noise(rng), rng.uniform(0.3, 0.45), rng.uniform(0.15, 0.2)
    base = hsv(rng.uniform(0.13, 0.24), rng.uniform(0.6, 0.8), rng.uniform(0.65, 0.88))
    blush = hsv(rng.uniform(0.0, 0.09), 0.75, rng.uniform(0.45, 0.75))
    much = rng.choice([-0.8, -0.2, 0.6])

    def skin(p: Array) -> Array:
        colour = mix(base, blush, much + 0.5 * noise(p, 2.2))
        return mix(colour, hsv(0.09, 0.6, 0.4), (noise(p, 40) > 1.7) * 0.4 - (p[:, 1] + 0.43) * 25)

    return [
        Part(lambda p: blend(ball(p, (0, -0.1, 0), 0.36), ball(p, (0.03, neck, 0), width), 0.34), skin, 0.3),
        stalk(rng, neck, neck + rng.uniform(0.25, 0.38)),
    ] + [leaf(rng, neck + 0.2)] * (rng.random() < 0.3)


def banana(rng: Generator) -> list[Part]:
    noise, bend, half, thick = Noise(rng), rng.uniform(0.5, 0.9), rng.uniform(0.58, 0.68), rng.uniform(0.09, 0.125)
    ripe = hsv(rng.uniform(0.125, 0.16), rng.uniform(0.75, 0.9), rng.uniform(0.85, 0.98))
    green, brown, spots = hsv(0.22, 0.7, 0.6), hsv(0.08, 0.6, 0.22), rng.uniform(1.0, 2.6)
    greenness = rng.choice([0.2, 0.6, 1.3], p=[0.5, 0.3, 0.2])

    def along(p: Array) -> Array:
        return np.arctan2(p[:, 0], bend - p[:, 2]) * bend / half  # -1 at one end and 1 at the other

    def body(p: Array) -> Array:
        place = np.clip(along(p), -1, 1)
        angle = place * half / bend
        axis = np.stack([np.sin(angle) * bend, angle * 0, bend - np.cos(angle) * bend], -1)
        around = np.arctan2(p[:, 1], bend - np.hypot(p[:, 0], p[:, 2] - bend))
        round_ends = np.sqrt(np.clip(1 - np.abs(place) ** 3, 0, 1))
        return length(p - axis) - 0.028 - thick * round_ends * (0.93 + 0.05 * np.cos(5 * around))

    def skin(p: Array) -> Array:
        place = along(p)
        colour = mix(ripe, green, greenness * (np.abs(place) ** 2 - 0.35 + 0.15 * noise(p, 3)))
        colour = mix(colour, brown, (noise(p, 17, 2) - spots) * 1.5)
        return mix(colour, brown, np.maximum((-place - 0.97) * 12, (place - 0.93) * 20))

    return [Part(body, skin, 0.25)]


def strawberry(rng: Generator) -> list[Part]:
    noise, long, rows = Noise(rng), rng.uniform(0.25, 0.4), rng.uniform(13, 17)
    red, pale = hsv(rng.uniform(-0.02, 0.02), 0.92, rng.uniform(0.65, 0.88)), hsv(0.1, 0.4, 0.95)
    green, leaves = hsv(rng.uniform(0.24, 0.33), 0.75, rng.uniform(0.4, 0.6)), int(rng.integers(6, 10))

    def seeds(p: Array) -> Array:
        row = p[:, 1] * rows
        turn = np.arctan2(p[:, 0], p[:, 2]) * 11 / (2 * np.pi) + 0.5 * (np.floor(row) % 2)
        offset = np.hypot((turn % 1 - 0.5) * across(p) * 7, row % 1 - 0.5)
        return np.clip(1.2 - offset * 4.2, 0, 1)

    def body(p: Array) -> Array:
        return blend(ball(p, (0, 0.12, 0), 0.33), ball(p, (0, -long, 0), 0.13), 0.38)

    def crown(p: Array) -> Array:
        angle = np.arctan2(p[:, 0], p[:, 2])
        petal = 0.1 + 0.24 * np.abs(np.cos(angle * leaves / 2)) ** 0.8
        height = p[:, 1] - 0.45 + 0.55 * across(p) ** 2 + 0.02 * np.sin(p[:, 0] * 23)
        return 0.6 * np.maximum(across(p) - petal, np.abs(height) - 0.012)

    def skin(p: Array) -> Array:
        return mix(mix(red, pale, (p[:, 1] - 0.3) * 3), hsv(0.13, 0.6, 0.9), seeds(p) * 1.6 - 0.9)

    fruit = Part(body, skin, 0.6, lambda p: 0.014 * seeds(p) + 0.014 * noise(p, 4))
    return [fruit, Part(crown, plain(green), 0.15), Part(stalk(rng, 0.42, 0.6).distance, plain(green), 0.15)]


def mushroom(rng: Generator) -> list[Part]:
    noise, wide, high, foot = Noise(rng), rng.uniform(0.34, 0.5), rng.uniform(0.2, 0.42), rng.uniform(0.08, 0.15)
    cap = hsv(*rng.choice([[0.01, 0.9, 0.75], [0.07, 0.65, 0.45], [0.09, 0.35, 0.8], [0.1, 0.12, 0.92]]))
    white, spotted, rim = hsv(0.11, 0.14, 0.92), rng.random() < 0.5, rng.uniform(-0.02, 0.06)

    def hat(p: Array) -> Array:
        return np.maximum(ellipsoid(p, (0, 0.1, 0), (wide, high, wide)), 0.1 + rim - p[:, 1] - across(p) * 0.2) - 0.02

    def top(p: Array) -> Array:
        warts = (noise(p, 9) > 1.25) & (p[:, 1] > 0.15) if spotted else np.zeros(len(p))
        colour = mix(cap * (1 + 0.12 * noise(p, 5, 2)[:, None]), white, warts * 0.9)
        gills = white * (0.65 + 0.2 * np.sin(np.arctan2(p[:, 0], p[:, 2]) * 45))[:, None]
        return np.where((p[:, 1] < 0.105 + rim - across(p) * 0.2)[:, None], gills, colour)

    def stem(p: Array) -> Array:
        return blend(stick(p, (0, 0.15, 0), (0, -0.4, 0), foot), ball(p, (0, -0.4, 0), foot * 1.25), 0.1)

    return [Part(hat, top, 0.3), Part(stem, lambda p: white * (0.85 + 0.05 * noise(p, 9, 2)[:, None]), 0.1)]


def mug(rng: Generator) -> list[Part]:
    radius, high, taper = rng.uniform(0.27, 0.36), rng.uniform(0.3, 0.42), rng.uniform(-0.12, 0.2)
    glaze = hsv(rng.random(), rng.choice([0.05, 0.5, 0.8]), rng.uniform(0.3, 0.95))
    other, inside = hsv(rng.random(), rng.uniform(0, 0.8), rng.uniform(0.2, 0.95)), hsv(0.1, 0.06, 0.95)
    pattern, drink = rng.integers(4), hsv(0.07, 0.75, rng.uniform(0.15, 0.4))

    def ring(p: Array) -> Array:
        return across(p) * (1 - taper * p[:, 1]) - radius

    def cup(p: Array) -> Array:
        wall = np.maximum(np.abs(ring(p)) - 0.012, np.abs(p[:, 1]) - high)
        return np.minimum(wall, np.maximum(ring(p), np.abs(p[:, 1] + high - 0.02) - 0.02)) - 0.014

    def handle(p: Array) -> Array:
        loop = np.hypot(np.hypot(p[:, 0] - radius, p[:, 1] * 0.85) - 0.19, p[:, 2] * 0.8) - 0.035
        return np.maximum(loop, -ring(p))

    def paint(p: Array) -> Array:
        stripes = [p[:, 1] * 0 - 1, np.sin(p[:, 1] * 30), np.sin(np.arctan2(p[:, 0], p[:, 2]) * 12), -p[:, 1] * 9 - 0.5]
        return np.where((ring(p) < 0)[:, None], inside, mix(glaze, other, stripes[pattern] * 8))

    def coffee(p: Array) -> Array:
        return np.maximum(ring(p), np.abs(p[:, 1] - high * 0.6) - 0.01)

    parts = [Part(cup, paint, 0.8), Part(handle, plain(glaze), 0.8)]
    return parts + [Part(coffee, plain(drink), 0.9)] * (rng.random() < 0.6)


def block(rng: Generator) -> list[Part]:
    """Something else on the table, in front of the thing or behind it."""
    size = np.float32(rng.uniform(0.15, 0.4, 3))
    colour = hsv(rng.random(), rng.uniform(0, 0.9), rng.uniform(0.2, 0.95))

    def box(p: Array) -> Array:
        beyond = np.abs(p) - size
        return length(np.maximum(beyond, 0)) + np.minimum(beyond.max(1), 0) - 0.03

    def can(p: Array) -> Array:
        return np.maximum(np.hypot(p[:, 0], p[:, 2]) - size[0], np.abs(p[:, 1]) - size[1]) - 0.02

    shapes = [box, can, lambda p: ball(p, (0, 0, 0), size[0]), lambda p: ellipsoid(p, (0, 0, 0), size * [1.3, 0.5, 1])]
    return [Part(shapes[rng.integers(4)], plain(colour), rng.uniform(0.05, 0.7))]


KINDS = (apple, banana, lemon, mug, mushroom, orange, pear, strawberry)
