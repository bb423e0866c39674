"""Draws small scenes on a table by sphere tracing.

A ray advances by the distance to the nearest surface until it arrives. Everything about a scene is random: the things
of `things.py`, what lies around them, the table, the camera, the light, and what the camera makes of it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from PIL import Image, ImageFilter
from things import KINDS, Array, Noise, Part, block, dot, hsv, length, mix, muted

SUPERSAMPLING = 1.5
CAMERA = 3.6  # units from the thing
CORNERS = np.array([[1, -1, -1], [-1, -1, 1], [-1, 1, -1], [1, 1, 1]], np.float32)  # of a tetrahedron
GRID = np.stack(np.meshgrid(*[np.linspace(-1, 1, 26, dtype=np.float32)] * 3), -1).reshape(-1, 3)
STANDING = (0.75, 0.85, 0.3, 0.95, 0.5, 0.5, 0.6, 0.2)  # how often each kind stands; otherwise it lies


@dataclass(frozen=True)
class Placed:
    """A thing that is turned, scaled and put on the table."""

    parts: list[Part]
    turn: Array  # (3, 3)
    scale: float
    centre: Array  # (3,)
    reach: float  # radius of a sphere around the centre that holds the thing

    def local(self, points: Array) -> Array:
        return (points - self.centre) @ (self.turn / self.scale)

    def distance(self, points: Array) -> Array:
        local = self.local(points)
        return np.min([part.distance(local) for part in self.parts], axis=0) * self.scale

    def surface(self, points: Array) -> tuple[Array, Array, Array]:
        """Normals (n, 3), colours (n, 3) and gloss (n,)."""
        local = self.local(points)
        nearest = np.argmin([part.distance(local) for part in self.parts], axis=0)
        normals, colours, gloss = np.zeros_like(points), np.zeros_like(points), np.zeros_like(points[:, 0])
        for index, part in enumerate(self.parts):
            here = np.flatnonzero(nearest == index)
            colours[here], gloss[here] = part.colour(local[here]), part.gloss
            for corner in CORNERS:
                beside = local[here] + 0.004 * corner
                height = part.distance(beside) + (part.bumps(beside) if part.bumps else 0)
                normals[here] += height[:, None] * corner
        return unit(normals) @ self.turn.T, colours, gloss


def unit(vectors: Array) -> Array:
    return vectors / np.maximum(length(vectors), 1e-9)[..., None]


@dataclass(frozen=True)
class Light:
    """A lamp and the sky."""

    towards: Array  # (3,) the direction of the lamp
    lamp: Array  # (3,) its colour
    sky: Array  # (3,)
    softness: float  # of shadows

    @classmethod
    def drawn(cls, rng: Generator) -> "Light":
        towards = unit(np.array([rng.uniform(-1, 1), rng.uniform(0.5, 1.5), rng.uniform(-0.6, 1)])).astype(np.float32)
        warm = rng.uniform(-0.12, 0.16)
        lamp = np.float32([1 + warm, 1, 1 - warm]) * rng.uniform(1.3, 2.6)
        sky = np.float32([1 - warm, 1, 1 + warm]) * rng.uniform(0.3, 0.75)
        return cls(towards, lamp, sky, rng.uniform(0.1, 0.6))


def turned(rng: Generator, upright: bool) -> Array:
    """A random rotation about the vertical axis, of a thing that stands or lies."""
    lean, heading = rng.uniform(0, 0.15) if upright else rng.uniform(1.1, 1.9), rng.uniform(0, 2 * np.pi)
    up = np.array([np.sin(lean) * np.cos(heading), np.cos(lean), np.sin(lean) * np.sin(heading)])
    side = unit(np.cross(up, rng.normal(size=3)))
    return np.stack([side, up, np.cross(side, up)], 1).astype(np.float32)


def put(parts: list[Part], turn: Array, scale: float, x: float, z: float) -> Placed:
    inside = np.stack([part.distance(GRID) for part in parts]).min(0) < 0.03
    held = GRID[inside] @ turn.T * scale
    centre = np.array([x, -held[:, 1].min() - 0.03, z], np.float32)
    return Placed(parts, turn, scale, centre, float(length(held).max() + 0.05))


def arrange(rng: Generator, kind: int) -> list[Placed]:
    """One to three things of a kind, and up to three others."""
    placed = []
    for count in range(rng.choice([1, 2, 3], p=[0.6, 0.25, 0.15])):
        angle, away = rng.uniform(0, 2 * np.pi), (count > 0) * rng.uniform(0.8, 1.1)
        upright = rng.random() < STANDING[kind]
        parts, turn = KINDS[kind](rng), turned(rng, upright)
        placed.append(put(parts, turn, rng.uniform(0.85, 1.1), away * np.cos(angle), away * np.sin(angle)))
    for _ in range(rng.choice(4, p=[0.35, 0.3, 0.2, 0.15])):
        angle, away = rng.uniform(0, 2 * np.pi), rng.uniform(0.75, 1.7)
        scale = rng.uniform(0.5, 0.9) if np.sin(angle) > 0 else rng.uniform(0.8, 1.6)  # small in front of the thing
        placed.append(put(block(rng), turned(rng, True), scale, away * np.cos(angle), away * np.sin(angle)))
    return placed


def spans(thing: Placed, origins: Array, rays: Array, margin: float = 0) -> tuple[Array, Array, Array]:
    """The rays that meet the sphere around a thing, and where they enter and leave it."""
    offset = origins - thing.centre
    middle = -dot(offset, rays)
    inside = (thing.reach + margin) ** 2 - dot(offset, offset) + middle**2
    met = np.flatnonzero((inside > 0) & (middle + np.sqrt(np.maximum(inside, 0)) > 0))
    half = np.sqrt(inside[met])
    return met, np.maximum(middle[met] - half, 0), middle[met] + half


def trace(things: list[Placed], origin: Array, rays: Array) -> tuple[Array, Array]:
    """How far each ray goes until it meets a thing, and which one (-1: none)."""
    far, which = np.full(len(rays), np.inf, np.float32), np.full(len(rays), -1)
    for index, thing in enumerate(things):
        met, travelled, end = spans(thing, origin[None], rays)
        moving, gap = np.arange(len(met)), np.full(len(met), np.inf, np.float32)
        for _ in range(70):
            gap[moving] = thing.distance(origin + rays[met[moving]] * travelled[moving, None])
            travelled[moving] += 0.75 * gap[moving]
            moving = moving[(gap[moving] > 0.003) & (travelled[moving] < end[moving])]
        hit = (gap <= 0.006) & (travelled < far[met])
        far[met[hit]], which[met[hit]] = travelled[hit], index
    return far, which


def lamp_share(things: list[Placed], points: Array, light: Light) -> Array:
    """The share of the lamp's light that arrives: 0 in the shadow of a thing, 1 far from it."""
    share = np.ones(len(points), np.float32)
    for thing in things:
        met, travelled, end = spans(thing, points, light.towards[None], 0.15)
        travelled = np.maximum(travelled, 0.03)
        for _ in range(18):
            gap = thing.distance(points[met] + light.towards * travelled[:, None])
            share[met] = np.minimum(share[met], np.clip(0.5 + gap / (light.softness * travelled), 0, 1))
            travelled = travelled + np.maximum(0.8 * gap, 0.04)
            moving = (travelled < end) & (share[met] > 0)
            met, travelled, end = met[moving], travelled[moving], end[moving]
    return share * share * (3 - 2 * share)


def sky_share(things: list[Placed], points: Array) -> Array:
    """The share of the sky's light that reaches points on the table: less where a thing touches it."""
    share = np.ones(len(points), np.float32)
    for thing in things:
        close = np.flatnonzero(length(points - thing.centre) < thing.reach + 0.4)
        share[close] = np.minimum(share[close], 0.35 + 0.65 * thing.distance(points[close]).clip(0, 0.4) / 0.4)
    return share


def table(rng: Generator, points: Array) -> Array:
    """The colours of a table top: wood, cloth, stone or paper."""
    noise, turn = Noise(rng), rng.uniform(0, 2 * np.pi)
    u = points[:, 0] * np.cos(turn) + points[:, 2] * np.sin(turn) + rng.uniform(0, 9)
    v = points[:, 2] * np.cos(turn) - points[:, 0] * np.sin(turn) + rng.uniform(0, 9)
    flat, size = np.stack([u, 0 * u, v], 1).astype(np.float32), rng.uniform(0.15, 0.6)
    base = muted(rng)
    match rng.integers(5):
        case 0:  # planks
            brown = hsv(rng.uniform(0.05, 0.1), rng.uniform(0.3, 0.65), rng.uniform(0.3, 0.8))
            plank = np.floor(v / size)
            grain = noise(flat * [0.8, 1, 9] + plank[:, None] * [3.7, 1.3, 0], 2.2, 4)
            tone = 0.85 + 0.13 * np.sin(plank * 12.9) + 0.14 * grain
            return brown * (tone * (1 - 0.6 * (np.abs(v / size % 1 - 0.5) > 0.485)))[:, None]
        case 1:  # checked cloth
            checks = (u / size % 1 > 0.5) * 0.5 + (v / size % 1 > 0.5) * 0.5
            return mix(hsv(0.1, 0.05, 0.93), base, checks) * (1 + 0.05 * np.sin(u * 140) * np.sin(v * 140))[:, None]
        case 2:  # stone
            veins = np.exp(-4 * np.abs(noise(flat + 0.15 * noise(flat, 3, 2)[:, None], 1.5, 4)))
            return mix(base * (1 + 0.1 * noise(flat, 16, 2)[:, None]), base * 0.45, veins * 0.8)
        case 3:  # stripes
            return mix(base, muted(rng), np.sin(u * 2 * np.pi / size) * 6)
        case _:  # paper
            return base * (1 + 0.05 * noise(flat, 2, 3)[:, None])


def backdrop(rng: Generator, across: Array, up: Array) -> Array:
    """An unfocused room or garden behind the table."""
    low, high = muted(rng) * 0.6, muted(rng) * 0.8
    place = np.stack([across, up, 0 * up], 1).astype(np.float32)
    colour = mix(low, high, 0.5 + 0.4 * up + 0.35 * Noise(rng)(place, 1.5, 2))
    for _ in range(rng.integers(0, 14)):
        disc = np.hypot(across - rng.uniform(-2, 2), up - rng.uniform(-0.5, 2)) / rng.uniform(0.08, 0.3)
        colour = mix(colour, hsv(rng.random(), 0.4, 1), (1 - disc) * 6 * rng.uniform(0.02, 0.12))
    return colour


def photograph(rng: Generator, kind: int, width: int, height: int) -> Image.Image:
    wide, high = int(width * SUPERSAMPLING), int(height * SUPERSAMPLING)
    v, u = np.mgrid[:high, :wide].reshape(2, -1).astype(np.float32)
    u, v = (2 * u - wide) / min(wide, high), (high - 2 * v) / min(wide, high)
    things = arrange(rng, kind)
    origin, rays = camera(rng, u, v)
    light = Light.drawn(rng)

    down = -origin[1] / np.minimum(rays[:, 1], -1e-4)
    ground = origin + rays * down[:, None]
    on_table = ground[:, 2] > -rng.uniform(1.2, 5)
    colours = backdrop(rng, u, v)
    colours[on_table] = table(rng, ground[on_table]) * light_on_table(things, ground[on_table], light)
    defocus = np.clip((down - CAMERA) / 2.5, 0, 1) ** 0.7 * on_table + ~on_table
    blurred = blur(colours.reshape(high, wide, 3), min(wide, high) * rng.uniform(0.003, 0.025)).reshape(-1, 3)
    colours = mix(colours, blurred, defocus)

    far, which = trace(things, origin, rays)
    for index, thing in enumerate(things):
        here = which == index
        colours[here] = lit(thing, things, origin + rays[here] * far[here, None], rays[here], light)
    return develop(rng, colours.reshape(high, wide, 3), width, height)


def camera(rng: Generator, u: Array, v: Array) -> tuple[Array, Array]:
    """Where the camera is, and the ray of each pixel: `u` to the right and `v` up, from -1 to 1."""
    tilt, roll, shown = np.radians(rng.uniform(12, 72)), rng.normal() * 0.12, rng.uniform(0.4, 0.85)
    forward = np.array([0, -np.sin(tilt), -np.cos(tilt)])
    right = np.array([np.cos(roll), np.sin(roll) * np.cos(tilt), -np.sin(roll) * np.sin(tilt)])
    shift = rng.uniform(-0.3, 0.3, 2) * (1 - shown * 0.6)
    screen = (u + shift[0])[:, None] * right + (v + shift[1])[:, None] * np.cross(right, forward)
    rays = unit(forward + screen * (0.5 / shown / CAMERA)).astype(np.float32)
    return (np.array([0, 0.35, 0]) - CAMERA * forward).astype(np.float32), rays


def lit(thing: Placed, things: list[Placed], points: Array, rays: Array, light: Light) -> Array:
    """The colours of points on the surface of a thing: diffuse light, a highlight, and a reflection of the sky."""
    normals, skin, gloss = thing.surface(points)
    shade = lamp_share(things, points + 0.03 * normals, light)
    facing = np.clip(normals @ light.towards * 0.85 + 0.15, 0, 1) * shade
    halfway = np.clip(dot(normals, unit(light.towards - rays)), 0, 1)
    mirrored = np.clip(1 + dot(normals, rays), 0, 1) ** 4 * (0.5 + 0.5 * normals[:, 1])
    open_air = (0.6 + 0.4 * normals[:, 1]) * (0.45 + 0.55 * np.clip(points[:, 1] / 0.35, 0, 1))
    shine = gloss * (halfway ** (20 + 100 * gloss) * shade * 0.9 + 0.4 * mirrored)
    diffuse = light.lamp * facing[:, None] + light.sky * open_air[:, None]
    return skin * diffuse + light.lamp * 0.6 * shine[:, None]


def light_on_table(things: list[Placed], points: Array, light: Light) -> Array:
    direct = light.lamp * (light.towards[1] * lamp_share(things, points, light))[:, None]
    return direct + light.sky * sky_share(things, points)[:, None]


def blur(image: Array, radius: float) -> Array:
    eight_bits = Image.fromarray((np.clip(image / 4, 0, 1) ** 0.5 * 255).astype(np.uint8))
    return 4 * (np.asarray(eight_bits.filter(ImageFilter.GaussianBlur(radius)), np.float32) / 255) ** 2


def develop(rng: Generator, light: Array, width: int, height: int) -> Image.Image:
    """What a camera makes of the light: exposure, colour cast, vignette, a little blur, and noise."""
    v, u = np.mgrid[-1 : 1 : len(light) * 1j, -1 : 1 : light.shape[1] * 1j]
    light = light * (1 - rng.uniform(0, 0.3) * (u * u + v * v) / 2)[..., None]
    light = light * rng.uniform(0.75, 1.5) * rng.uniform(0.9, 1.1, 3)
    exposed = (255 * (1 - np.exp(-1.3 * light)) ** (1 / 2.2)).clip(0, 255).astype(np.uint8)
    image = Image.fromarray(exposed).resize((width, height), Image.Resampling.LANCZOS)
    image = image.filter(ImageFilter.GaussianBlur(float(rng.choice([0, 0.4, 1.2], p=[0.5, 0.35, 0.15]))))
    grain = rng.normal(size=(height, width, 3)) * rng.choice([1, 3, 9], p=[0.4, 0.4, 0.2])
    return Image.fromarray((np.asarray(image) + grain).clip(0, 255).astype(np.uint8))
