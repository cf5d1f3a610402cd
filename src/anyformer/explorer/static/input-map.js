// Attention weights drawn over the input: an image, a spectrogram, video frames, points, table columns or tokens.
// `map` is {shape, values} over the cells of the input. `pick` is called with a clicked cell; `mark` is the query's cell.

import { el, number, short, svg } from "./dom.js";
import { blue, ink, largest, sheet, soft, text, warm } from "./draw.js";

export const WIDTH = 340;
const FRAME = 112; // pixels of a clip's frame
// Limit the width to that of the page.
export function fit(drawing) {
  drawing.style.maxWidth = "100%";
  drawing.style.height = "auto";
  return drawing;
}

const NOTHING = "transparent";

export function draw(got, map, title, options = {}) {
  if (got.kind === "clip") return clip(got, map, title, options);
  if (got.kind === "points") return points(got, map, title, options);
  if (got.kind === "table" || got.kind === "words") return rows(got, map, title, options);
  return image(got.image, got.size, map, title, { ...options, audio: got.kind === "audio" });
}

// An image that is darkened where the weight is low. Spectrograms have low frequencies at the bottom.
export function image(image, size, map, title, { pick, mark = -1, max, wide = WIDTH, audio = false, plain = false } = {}) {
  if (audio && wide === WIDTH) wide = 2 * WIDTH;
  const high = audio ? Math.round(wide / 4) : Math.round((wide * size[0]) / size[1]);
  const [rows, columns] = map.shape;
  const whole = svg("g", audio ? { transform: `translate(0,${high}) scale(1,-1)` } : {},
    svg("image", { href: image, width: wide, height: high, preserveAspectRatio: "none", "image-rendering": size[1] < 100 ? "pixelated" : undefined }),
    plain ? null : svg("image", { href: shade(map, max), width: wide, height: high, preserveAspectRatio: "none", "image-rendering": "pixelated", class: "map" }));
  const [w, h] = [wide / columns, high / rows];
  if (pick) for (let i = 0; i < rows * columns; i++) whole.append(button((i % columns) * w, Math.floor(i / columns) * h, w, h, rows === 1 ? `frame ${i}` : `patch ${Math.floor(i / columns)}, ${i % columns}`, map.values[i], () => pick(i), rows * columns <= 256));
  if (mark >= 0) whole.append(frame((mark % columns) * w, Math.floor(mark / columns) * h, w, h));
  return fit(sheet(wide, high, title, whole));
}

function button(x, y, width, height, name, value, act, reachable) {
  return svg("rect", { class: "pick", x, y, width, height, fill: NOTHING, stroke: "#ffffff", "stroke-opacity": width > 4 ? 0.25 : 0, "stroke-width": 0.5, tabindex: reachable ? 0 : undefined, role: "button",
    "aria-label": name, onclick: act, onkeydown: (event) => event.key === "Enter" && act() }, svg("title", {}, `${name}: ${number(value, 4)}`));
}

const frame = (x, y, width, height) => svg("rect", { x, y, width: Math.max(width, 3), height, fill: "none", stroke: "#ff5a36", "stroke-width": 2.5, "pointer-events": "none" });

// The weight that is drawn fully bright: the maximum, but at least a quarter of the uniform weight. A head that attends
// elsewhere (for example to the class token) stays dark.
const brightest = (values) => Math.max(largest(values), 0.25 / values.length);

// A dark overlay whose transparency grows with the weight.
export function shade(map, max) {
  const [rows, columns] = map.shape.slice(-2);
  const canvas = el("canvas", { width: columns, height: rows });
  const pixels = new ImageData(columns, rows);
  const top = max || brightest(map.values);
  map.values.forEach((value, i) => pixels.data.set([8, 14, 26, Math.round(225 * (1 - Math.min(1, value / top)))], 4 * i));
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return canvas.toDataURL("image/png");
}

// Video frames, each with its part of the map. A tubelet of several frames is shown by its first frame.
function clip(got, map, title, { pick, mark = -1, max, wide = FRAME } = {}) {
  const [times, rows, columns] = map.shape;
  const high = Math.round((wide * got.size[0]) / got.size[1]), gap = 6, line = 14;
  const across = Math.min(times, Math.max(1, Math.floor(960 / (wide + gap))));
  const drawing = fit(sheet(across * (wide + gap), Math.ceil(times / across) * (high + gap + line), title));
  const top = max || brightest(map.values), n = rows * columns;
  for (let t = 0; t < times; t++) {
    const [x, y] = [(t % across) * (wide + gap), Math.floor(t / across) * (high + gap + line)];
    const one = { shape: [rows, columns], values: map.values.subarray(t * n, (t + 1) * n) };
    drawing.append(svg("image", { href: got.images[t * got.each], x, y, width: wide, height: high, preserveAspectRatio: "none" }),
      svg("image", { href: shade(one, top), x, y, width: wide, height: high, preserveAspectRatio: "none", "image-rendering": "pixelated", class: "map" }),
      text(x + 2, y + high + 12, got.each > 1 ? `${t * got.each}–${(t + 1) * got.each - 1}` : String(t), { fill: soft(), "font-size": 10 }));
    const [w, h] = [wide / columns, high / rows];
    for (let i = 0; pick && i < n; i++) drawing.append(button(x + (i % columns) * w, y + Math.floor(i / columns) * h, w, h, `time ${t}, cell ${Math.floor(i / columns)}, ${i % columns}`, one.values[i], () => pick(t * n + i), times * n <= 256));
    const here = mark - t * n;
    if (here >= 0 && here < n) drawing.append(frame(x + (here % columns) * w, y + Math.floor(here / columns) * h, w, h));
  }
  return drawing;
}

// A scatter plot of two features of each item. Points with higher weight are larger and darker.
function points(got, map, title, { pick, mark = -1, max, wide = WIDTH, axes = [0, 1] } = {}) {
  const size = wide, edge = wide > 200 ? 26 : 8;
  const [a, b] = got.numbers > 1 ? axes.map((axis) => Math.min(axis, got.numbers - 1)) : [0, -1];
  const xs = got.points.map((point) => point[a]), ys = got.points.map((point, i) => (b < 0 ? i : point[b]));
  const place = (values) => {
    const low = Math.min(...values), span = Math.max(...values) - low || 1;
    return (value) => edge + ((value - low) / span) * (size - 2 * edge);
  };
  const [x, y] = [place(xs), place(ys)];
  const top = max || brightest(map.values);
  const drawing = fit(sheet(size, size, title));
  if (edge > 20) drawing.append(text(size / 2, size - 6, `feature ${a}`, { "text-anchor": "middle", fill: soft() }), text(0, 0, b < 0 ? "item" : `feature ${b}`, { transform: `translate(11,${size / 2}) rotate(-90)`, "text-anchor": "middle", fill: soft() }));
  got.points.forEach((_, i) => {
    const share = Math.min(1, map.values[i] / top);
    const act = pick && (() => pick(i));
    drawing.append(svg("circle", { class: "dot pick", cx: x(xs[i]), cy: size - y(ys[i]), r: (size / 340) * (3 + 8 * share), fill: blue(), "fill-opacity": 0.12 + 0.88 * share, stroke: i === mark ? warm() : soft(), "stroke-width": i === mark ? 3 : 0.6,
      "data-weight": map.values[i], tabindex: pick && got.points.length <= 256 ? 0 : undefined, role: pick ? "button" : undefined, "aria-label": `item ${i}`, onclick: act || undefined, onkeydown: act ? (event) => event.key === "Enter" && act() : undefined },
      svg("title", {}, `item ${i}: ${number(map.values[i], 4)}`)));
  });
  return drawing;
}

// A bar for each table column or token.
function rows(got, map, title, { pick, mark = -1, max, wide = WIDTH } = {}) {
  const small = wide < 200, step = small ? 6 : 20;
  const left = small ? 2 : 130, middle = small || !got.values ? 0 : 120, long = small ? wide - 6 : got.values ? 170 : 230;
  const top = max || brightest(map.values);
  const drawing = sheet(left + middle + long + (small ? 0 : 70), got.names.length * step + 6, title);
  got.names.forEach((name, i) => {
    const y = i * step + 3, act = pick && (() => pick(i));
    if (!small) drawing.append(text(left - 8, y + 13, short(name, 18), { "text-anchor": "end", fill: i === mark ? warm() : ink(), "font-weight": i === mark ? 700 : 400 }));
    if (middle) drawing.append(text(left, y + 13, got.values[i] === "" ? "missing" : short(got.values[i], 16), { fill: soft() }));
    const width = Math.max(0, (long * map.values[i]) / top);
    drawing.append(svg("rect", { x: left + middle, y, width, height: step - 5 > 2 ? step - 5 : 4, fill: blue() }));
    if (!small) drawing.append(text(left + middle + width + 6, y + 13, number(map.values[i], 4), { class: "value" }));
    if (act) drawing.append(svg("rect", { class: "pick", x: 0, y: y - 2, width: left + middle + long, height: step, fill: NOTHING, tabindex: 0, role: "button", "aria-label": `query ${name}`, onclick: act, onkeydown: (event) => event.key === "Enter" && act() }));
  });
  return drawing;
}

// The waveform of audio: the minimum and maximum sample of each segment.
export function waveform(got, wide = 2 * WIDTH, high = 90) {
  const top = Math.max(...got.waveform.flat().map(Math.abs), 1e-6), step = wide / got.waveform.length;
  const y = (value) => high / 2 - (value / top) * (high / 2 - 3);
  return fit(sheet(wide, high + 16, "waveform", got.waveform.map(([low, up], i) => svg("rect", { x: i * step, y: y(up), width: Math.max(step, 0.8), height: Math.max(y(low) - y(up), 0.8), fill: blue() })),
    text(0, high + 13, "0 s", { fill: soft() }), text(wide, high + 13, `${number(got.seconds, 2)} s`, { "text-anchor": "end", fill: soft() })));
}
