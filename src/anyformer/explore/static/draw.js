// The drawings, each an SVG of its own so that it can be taken along: heat maps, lines, bars, curves, trees.

import { el, svg, short, number } from "./dom.js";
import { flatten } from "./flatten.js";

const dark = () => document.documentElement.dataset.theme === "dark";
export const ink = () => (dark() ? "#e6ecf5" : "#1b2a41");
export const soft = () => (dark() ? "#9fb0c6" : "#5b6b82");
export const blue = () => (dark() ? "#7fb4f5" : "#1b4f8f");
export const warm = () => (dark() ? "#ff9d73" : "#b4451f");
export const paper = () => (dark() ? "#171f2a" : "#ffffff");
const ENDS = { light: [[255, 255, 255], [19, 70, 138]], dark: [[23, 31, 42], [150, 200, 255]] };
const BELOW = { light: [180, 69, 31], dark: [255, 157, 115] };

// 0…1 from paper to blue; below 0 from paper to warm.
export function colour(share) {
  const theme = dark() ? "dark" : "light";
  const [from, up] = ENDS[theme];
  const to = share < 0 ? BELOW[theme] : up;
  const s = Math.min(Math.abs(share), 1);
  return from.map((value, i) => Math.round(value + (to[i] - value) * s));
}

// The cells of [rows, columns] as a PNG, one pixel each.
export function cellsImage(values, rows, columns, scale) {
  const canvas = el("canvas", { width: columns, height: rows });
  paint(canvas, values, rows, columns, scale);
  return canvas.toDataURL("image/png");
}

export function paint(canvas, values, rows, columns, scale) {
  canvas.width = columns;
  canvas.height = rows;
  const pixels = new ImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++) {
    const [r, g, b] = colour(values[i] / (scale || 1));
    pixels.data.set([r, g, b, 255], 4 * i);
  }
  canvas.getContext("2d").putImageData(pixels, 0, 0);
}

export function largest(values) {
  let most = 0;
  for (const value of values) most = Math.max(most, Math.abs(value));
  return most || 1;
}

// A drawing with its title and what can be taken along: the picture, and the numbers behind it.
export function figure(title, drawing, numbers, more) {
  const name = title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");
  const save = (kind, make) => el("button", { type: "button", onclick: make, "aria-label": `${title} as ${kind}` }, kind);
  const whole = () => (drawing instanceof SVGElement ? drawing : flatten(drawing));
  const buttons = [save("SVG", () => download(`${name}.svg`, new Blob([asText(whole())], { type: "image/svg+xml" }))), save("PNG", () => savePng(`${name}.png`, whole()))];
  buttons.push(save("JSON", () => download(`${name}.json`, new Blob([JSON.stringify(numbers, null, 1)], { type: "application/json" }))));
  const box = el("figure", { "data-figure": name }, el("figcaption", {}, el("b", {}, title), buttons), el("div", { class: "scroll" }, drawing), more);
  return box;
}

function asText(drawing) {
  const copy = drawing.cloneNode(true);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.prepend(svg("rect", { width: "100%", height: "100%", fill: paper() }));
  return new XMLSerializer().serializeToString(copy);
}

function download(name, blob) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 5000);
}

function savePng(name, drawing) {
  const image = new Image();
  const [, , width, height] = drawing.getAttribute("viewBox").split(" ").map(Number);
  image.onload = () => {
    const canvas = el("canvas", { width: 2 * width, height: 2 * height });
    canvas.getContext("2d").drawImage(image, 0, 0, 2 * width, 2 * height);
    canvas.toBlob((blob) => download(name, blob));
  };
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(asText(drawing));
}

export function sheet(width, height, label, ...children) {
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label,
    "font-family": "system-ui, DejaVu Sans, sans-serif", "font-size": 11 }, children);
}

export function text(x, y, words, more) { return svg("text", { x, y, fill: ink(), ...more }, words); }

// A matrix. `readout` is told the cell under the pointer or the arrow keys; `pick` the one that is clicked.
export function heatmap({ values, rows, columns, rowNames, columnNames, scale, selected, readout, pick, write, label }) {
  const most = scale || largest(values);
  const size = Math.max(4, Math.min(30, Math.floor(720 / Math.max(columns, 1)), Math.floor(900 / Math.max(rows, 1)) + 3));
  const left = rowNames ? 8 + 7 * Math.min(16, Math.max(...rowNames.map((name) => short(name).length), 1)) : 4;
  const high = columnNames ? 12 + 5.2 * Math.min(16, Math.max(...columnNames.map((name) => short(name).length), 1)) : 4;
  const slant = 5 * 16 * 0.7;
  const width = left + size * columns + (columnNames ? slant : 6), height = high + size * rows + 6;
  const every = Math.ceil(10 / size);
  const drawing = sheet(width, height, label || "matrix");
  (rowNames || []).forEach((name, i) => i % every === 0 && drawing.append(
    text(left - 5, high + (i + 0.5) * size + 4, short(name), { "text-anchor": "end", fill: i === selected ? warm() : ink(), "font-weight": i === selected ? 700 : 400 })));
  (columnNames || []).forEach((name, i) => i % every === 0 && drawing.append(
    text(0, 0, short(name), { transform: `translate(${left + (i + 0.6) * size},${high - 4}) rotate(-50)` })));
  drawing.append(svg("image", { x: left, y: high, width: size * columns, height: size * rows, preserveAspectRatio: "none",
    "image-rendering": "pixelated", href: cellsImage(values, rows, columns, most) }));
  if (write && size >= 24) for (let i = 0; i < rows * columns; i++) if (Math.abs(values[i]) >= 0.1 * most) {
    const bright = (Math.abs(values[i]) / most > 0.5) !== dark();
    drawing.append(text(left + (i % columns + 0.5) * size, high + (Math.floor(i / columns) + 0.5) * size + 3, values[i].toFixed(2).replace(/^(-?)0\./, "$1."),
      { "text-anchor": "middle", "font-size": 9, fill: bright ? "#ffffff" : "#1b2a41" }));
  }
  if (selected !== undefined && selected >= 0 && selected < rows) drawing.append(svg("rect", { x: left, y: high + selected * size, width: size * columns, height: size, fill: "none", stroke: warm(), "stroke-width": 1.5 }));
  const mark = svg("rect", { width: size, height: size, fill: "none", stroke: warm(), "stroke-width": 2, visibility: "hidden" });
  const cover = svg("rect", { class: "pick", x: left, y: high, width: size * columns, height: size * rows, fill: "transparent", tabindex: 0, role: "application",
    "aria-label": `${label || "matrix"}: arrow keys move from cell to cell` });
  let at = [0, 0];
  const show = (row, column) => {
    at = [row, column];
    mark.setAttribute("x", left + column * size);
    mark.setAttribute("y", high + row * size);
    mark.setAttribute("visibility", "visible");
    if (readout) readout(row, column, values[row * columns + column]);
  };
  const find = (event) => {
    const box = cover.getBoundingClientRect();
    const limit = (share, n) => Math.min(n - 1, Math.max(0, Math.floor(share * n)));
    return [limit((event.clientY - box.top) / box.height, rows), limit((event.clientX - box.left) / box.width, columns)];
  };
  cover.addEventListener("pointermove", (event) => show(...find(event)));
  cover.addEventListener("click", (event) => pick && pick(...find(event)));
  cover.addEventListener("focus", () => show(...at));
  cover.addEventListener("keydown", (event) => {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (event.key === "Enter" && pick) pick(...at);
    if (!move) return;
    event.preventDefault();
    show(Math.min(rows - 1, Math.max(0, at[0] + move[0])), Math.min(columns - 1, Math.max(0, at[1] + move[1])));
  });
  drawing.append(mark, cover);
  return drawing;
}

// Two columns of words with a line for every weight, as thick as it is large; `from` draws one row alone.
export function lines({ values, rows, columns, rowNames, columnNames, from, pick, label }) {
  const step = 20, wide = 150, gap = 230;
  const height = Math.max(rows, columns) * step + 16;
  const drawing = sheet(2 * wide + gap, height, label || "attention lines");
  for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) {
    const weight = values[i * columns + j];
    if (weight < 0.02 || (from >= 0 && from < rows && i !== from)) continue;
    drawing.append(svg("line", { x1: wide, y1: i * step + 16, x2: wide + gap, y2: j * step + 16, stroke: blue(), "stroke-width": 0.5 + 4 * weight, "stroke-opacity": 0.15 + 0.85 * Math.min(weight, 1) },
      svg("title", {}, `${rowNames[i]} → ${columnNames[j]}: ${number(weight)}`)));
  }
  rowNames.forEach((name, i) => drawing.append(text(wide - 8, i * step + 20, short(name, 20), { "text-anchor": "end", class: "pick", fill: i === from ? warm() : ink(),
    "font-weight": i === from ? 700 : 400, tabindex: 0, role: "button", onclick: () => pick && pick(i), onkeydown: (event) => event.key === "Enter" && pick && pick(i) })));
  columnNames.forEach((name, j) => drawing.append(text(wide + gap + 8, j * step + 20, short(name, 20))));
  return drawing;
}

// Horizontal bars: `values`, and behind them `before` where there is something to compare with.
export function bars({ names, values, before, scale, digits = 3, label, notes }) {
  const step = 20, left = 150, wide = 330;
  const most = scale || Math.max(largest(values), before ? largest(before) : 0);
  const drawing = sheet(left + wide + 150, names.length * step + 8, label || "bars");
  names.forEach((name, i) => {
    const y = i * step + 4;
    drawing.append(text(left - 8, y + 13, short(name, 20), { "text-anchor": "end" }));
    if (before) drawing.append(svg("rect", { x: left, y, width: Math.max(0, wide * before[i] / most), height: 15, fill: soft(), "fill-opacity": 0.3 }));
    drawing.append(svg("rect", { x: left, y: y + (before ? 3 : 0), width: Math.max(0, wide * values[i] / most), height: before ? 9 : 15, fill: blue() }));
    const end = left + wide * Math.max(values[i], before ? before[i] : 0) / most;
    drawing.append(text(end + 6, y + 13, number(values[i], digits) + (notes ? `  ${notes[i]}` : ""), { class: "value" }));
  });
  return drawing;
}

// One or more curves over 0, 1, 2, …
export function curve({ rows, label, names }) {
  const left = 46, top = 8, wide = 420, high = 150;
  const all = rows.flat().filter((value) => value !== null);
  const low = Math.min(0, ...all), up = Math.max(0, ...all), span = up - low || 1, n = Math.max(...rows.map((row) => row.length));
  const drawing = sheet(left + wide + 20, top + high + 26, label);
  const y = (value) => top + high * (1 - (value - low) / span);
  for (const value of [low, (low + up) / 2, up]) drawing.append(svg("line", { x1: left, x2: left + wide, y1: y(value), y2: y(value), stroke: soft(), "stroke-opacity": 0.35 }),
    text(left - 5, y(value) + 4, number(value, 2), { "text-anchor": "end", fill: soft() }));
  rows.forEach((row, k) => drawing.append(svg("polyline", { fill: "none", stroke: rows.length > 1 ? `hsl(${(360 * k) / rows.length} 60% ${dark() ? 65 : 42}%)` : blue(), "stroke-width": 1.8,
    points: row.map((value, i) => `${left + (wide * i) / Math.max(n - 1, 1)},${y(value)}`).join(" ") }, svg("title", {}, names ? names[k] : label))));
  drawing.append(text(left, top + high + 18, "0", { fill: soft() }), text(left + wide, top + high + 18, String(n - 1), { "text-anchor": "end", fill: soft() }));
  return drawing;
}
