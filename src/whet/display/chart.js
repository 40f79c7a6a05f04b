// Hovering over a chart shows the values at the nearest step. Text is only ever set as text.
"use strict";
for (const svg of document.querySelectorAll("svg[data-chart]")) {
  const { plot, series } = JSON.parse(svg.dataset.chart);
  const figure = svg.parentElement;
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  line.setAttribute("class", "cross");
  line.setAttribute("y1", plot.top);
  line.setAttribute("y2", plot.top + plot.height);
  const tip = document.createElement("div");
  tip.className = "tip";
  const nearest = (xs, x) => {
    let low = 0, high = xs.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] < x) low = middle; else high = middle;
    }
    return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
  };
  const hide = () => { line.remove(); tip.remove(); };
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    const share = ((event.clientX - box.left) * scale - plot.left) / plot.width;
    const known = series.filter((one) => one.x.length);
    if (share < 0 || share > 1 || !known.length) return hide();
    const wanted = plot.low + share * (plot.high - plot.low);
    const step = known[0].x[nearest(known[0].x, wanted)];
    const x = plot.left + (step - plot.low) / (plot.high - plot.low) * plot.width;
    line.setAttribute("x1", x);
    line.setAttribute("x2", x);
    svg.append(line);
    tip.replaceChildren();
    for (const text of [`step ${step}`, ...known.map((one) => `${one.name}  ${one.y[nearest(one.x, step)]}`)]) {
      const row = document.createElement("div");
      row.textContent = text;
      tip.append(row);
    }
    figure.append(tip);
    const left = x / scale + 12;
    tip.style.left = `${left + tip.offsetWidth > box.width ? x / scale - tip.offsetWidth - 12 : left}px`;
  });
}
