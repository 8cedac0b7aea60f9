"""Do optimized models answer as the originals do: the same text, the same lines found, the same class?

Lines of random letters and digits are printed as a scanner would see them (grey paper, noise, at any place,
turned around for the classifier of angles), and read by each original and by what `tensaurus optimize` makes
of it, both on onnxruntime.  Errors of 1e-6 that no element-wise measure minds could still turn the largest of
6,625 letters into another one; here it is counted.  Writes tables/reading.md.

    python bench/reading.py [--images 50] [--time-limit 100] [--accuracy like] [MODEL ...]
"""

from __future__ import annotations

import argparse
import string
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

import tensaurus
from tensaurus.app.zoo.pretrained import PRETRAINED, fetch_model
from tensaurus.system.files import replace_file

TABLE = Path(__file__).parent / "tables" / "reading.md"
LETTERS = string.ascii_letters + string.digits
PIXEL = 0.3  # above which a pixel belongs to a line, as the packages have it

Picture = NDArray[np.float32]
Answer = Callable[[NDArray[np.float32], list[str]], object]


@dataclass(frozen=True)
class Task:
    """size: width and height of its images; answer: what it says of one, from the output and the alphabet."""

    size: tuple[int, int]
    picture: Callable[[Random, tuple[int, int]], tuple[Picture, object]]
    answer: Answer


def printed(rng: Random, image: Image.Image, at: tuple[int, int], height: int, text: str) -> None:
    draw = ImageDraw.Draw(image)
    draw.text(at, text, fill=rng.randrange(0, 90), font=ImageFont.load_default(height))


def scanned(rng: Random, image: Image.Image) -> Picture:
    """Pixels from -1 to 1 with noise, three alike channels: [1, 3, height, width]."""
    noise = np.random.default_rng(rng.randrange(2**32)).normal(0, 6, (image.height, image.width))
    grey = np.clip(np.asarray(image, np.float32) + noise, 0, 255) / 127.5 - 1
    return np.repeat(grey[None, None], 3, axis=1).astype(np.float32)


def line(rng: Random, size: tuple[int, int]) -> tuple[Picture, object]:
    """A word over the whole height, and it."""
    text = "".join(rng.choices(LETTERS, k=rng.randint(4, 9)))
    image = Image.new("L", size, rng.randrange(190, 256))
    printed(rng, image, (rng.randint(2, 10), rng.randint(2, 6)), 34, text)
    return scanned(rng, image), text


def turned(rng: Random, size: tuple[int, int]) -> tuple[Picture, object]:
    """A word, upright or upside down, and which."""
    pixels, _ = line(rng, size)
    around = rng.random() < 0.5
    return (np.ascontiguousarray(pixels[:, :, ::-1, ::-1]) if around else pixels), int(around)


def page(rng: Random, size: tuple[int, int]) -> tuple[Picture, object]:
    """Some words at any place, and how many."""
    image = Image.new("L", size, rng.randrange(190, 256))
    count = rng.randint(2, 8)
    for place in range(count):
        text = "".join(rng.choices(LETTERS, k=rng.randint(3, 12)))
        top = place * size[1] // count + rng.randint(0, 20)
        printed(rng, image, (rng.randint(5, 200), top), rng.randint(16, 40), text)
    return scanned(rng, image), count


def text_of(output: NDArray[np.float32], alphabet: list[str]) -> object:
    """Letters that do not repeat, without blanks (connectionist temporal classification)."""
    best = output[0].argmax(axis=1)
    kept = [n for n, before in zip(best, [0, *best], strict=False) if n and n != before]
    return "".join(alphabet[n] for n in kept)


def class_of(output: NDArray[np.float32], alphabet: list[str]) -> object:
    return int(output[0].argmax())


def pixels_of(output: NDArray[np.float32], alphabet: list[str]) -> object:
    return np.packbits(output > PIXEL).tobytes()


TASKS = {
    "ppocr_rec": Task((320, 48), line, text_of),
    "ppocrv6_rec": Task((320, 48), line, text_of),
    "ppocr_cls": Task((192, 48), turned, class_of),
    "ppocr_cls_mobile": Task((192, 48), turned, class_of),
    "ppocr_det": Task((640, 640), page, pixels_of),
    "ppocrv6_det": Task((640, 640), page, pixels_of),
}


def row(name: str, options: argparse.Namespace) -> str:
    """What one model and its result say of the same images."""
    task, file = TASKS[name], fetch_model(name)
    model = onnx.load_model(file)
    said = {entry.key: entry.value for entry in model.metadata_props}
    alphabet = ["", *said.get("character", "").splitlines(), " "]
    limit = {"time_limit": options.time_limit, "accuracy": options.accuracy}
    made = tensaurus.optimize(file, shapes=PRETRAINED[name].shapes, **limit)
    session, original = made.session(), onnxruntime.InferenceSession(str(file))
    (given,) = (each.name for each in original.get_inputs())
    rng, same, right, largest = Random(0), 0, 0, 0.0
    for _ in range(options.images):
        picture, truth = task.picture(rng, task.size)
        before, after = (each.run(None, {given: picture})[0] for each in (original, session))
        one, other = task.answer(before, alphabet), task.answer(after, alphabet)
        same, right = same + (one == other), right + (other == truth)
        largest = max(largest, float(np.max(np.abs(before - after))))
    shown = f"{right}" if task.answer is not pixels_of else ""
    rewrites = len(made.rewrites)
    print(
        f"{name}: {same} of {options.images} the same, {rewrites} rewrites, {made.speedup:.2f}x", flush=True
    )
    return (
        f"| {name} | {rewrites} | {made.speedup:.2f}x | {options.images} | {same} | {shown} | {largest:.1e} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=list(TASKS))
    parser.add_argument("--images", type=int, default=50)
    parser.add_argument("--time-limit", type=float, default=100.0)
    parser.add_argument("--accuracy", default="like")
    options = parser.parse_args()
    rows = [row(name, options) for name in options.models]
    lines = [
        "# What optimized models read",
        "",
        f"`python bench/reading.py --images {options.images} --time-limit {options.time_limit:g}"
        f" --accuracy {options.accuracy} {' '.join(options.models)}`; what is counted: `bench/reading.py`.",
        "",
        "| model | rewrites | gain | images | answers as the original's | right | largest difference |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        *rows,
    ]
    with replace_file(TABLE) as beside:
        beside.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
