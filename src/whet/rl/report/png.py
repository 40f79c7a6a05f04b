"""`reward.png`: the reward curve as a picture, for a README or a message. Drawn with Pillow, whose own font is used, so
that it looks the same everywhere."""

from __future__ import annotations

import io
from pathlib import Path

from whet.display.chart import Chart, Plot, smoothed
from whet.errors import MissingExtraError
from whet.system.files import write_whole
from whet.system.terminal import safe_text

WIDTH, HEIGHT = 1200, 675
SHARPNESS = 2  # drawn this much larger and scaled down, since Pillow does not smooth lines
INK, FAINT, GRID, PAPER = (31, 35, 40), (101, 109, 118), (225, 228, 232), (255, 255, 255)
PALETTE = ((0, 114, 178), (213, 94, 0), (0, 158, 115), (204, 121, 167), (230, 159, 0), (86, 180, 233), (120, 94, 240))
"""Okabe and Ito's colours, which people who see fewer colours can tell apart."""


def write_png(chart: Chart, path: Path) -> None:
    """Draw `chart` and replace `path`."""
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ModuleNotFoundError as error:
        raise MissingExtraError("drawing reward.png", "train") from error
    scale = SHARPNESS
    image = Image.new("RGB", (WIDTH * scale, HEIGHT * scale), PAPER)
    draw = ImageDraw.Draw(image)
    title, label = ImageFont.load_default(26 * scale), ImageFont.load_default(19 * scale)
    left, top = 80 * scale, 120 * scale
    width, height = WIDTH * scale - left - 30 * scale, HEIGHT * scale - top - 60 * scale
    x_axis, y_axis = chart.axes()
    position = Plot(x_axis, y_axis, left, top, width, height).position
    draw.text((left, 26 * scale), chart.title, INK, font=title)
    for tick in y_axis.ticks:
        _, y = position((x_axis.low, tick))
        draw.line([(left, y), (left + width, y)], GRID, width=scale)
        draw.text((left - 10 * scale, y), y_axis.label(tick), FAINT, font=label, anchor="rm")
    for tick in x_axis.ticks:
        x, _ = position((tick, y_axis.low))
        draw.text((x, top + height + 10 * scale), f"{tick:g}", FAINT, font=label, anchor="ma")
    draw.text((left + width, HEIGHT * scale - 8 * scale), chart.x_label, FAINT, font=label, anchor="rs")
    for index, series in enumerate(chart.series):
        colour = PALETTE[index % len(PALETTE)]
        if len(series.points) >= 20:
            faint = tuple(round(0.3 * ink + 0.7 * paper) for ink, paper in zip(colour, PAPER, strict=True))
            draw.line([position(point) for point in series.points], faint, width=2 * scale, joint="curve")
        if len(series.points) > 1:
            draw.line([position(point) for point in smoothed(series.points)], colour, width=4 * scale, joint="curve")
        for mark in series.marks:
            x, y = position(mark)
            reach = 7 * scale
            draw.ellipse((x - reach, y - reach, x + reach, y + reach), fill=PAPER, outline=colour, width=3 * scale)
    x, y = float(left), 80.0 * scale
    for index, series in enumerate(chart.series):
        name = safe_text(series.name, 40)
        length = draw.textlength(name, font=label) + 56 * scale
        if x + length > left + width:
            x, y = float(left), y + 24 * scale
        draw.rectangle((x, y - 3 * scale, x + 22 * scale, y + 3 * scale), fill=PALETTE[index % len(PALETTE)])
        draw.text((x + 30 * scale, y), name, INK, font=label, anchor="lm")
        x += length
    png = io.BytesIO()
    image.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS).save(png, format="PNG", optimize=True)
    write_whole(path, png.getvalue(), durable=False)
