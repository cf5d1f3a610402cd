// Charts: matrices, lines, bars and curves. Each is one SVG, so it can be downloaded.

import { blue, color, dark, ink, readable, soft, warm } from "./colors.js";
import { el, svg, short, number } from "./dom.js";

export { blue, color, ink, paper, soft, warm } from "./colors.js";
export { figure } from "./export-figure.js";

// A matrix [rows, columns] as a PNG with one pixel a cell.
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
    const [r, g, b] = color(values[i] / (scale || 1));
    pixels.data.set([r, g, b, 255], 4 * i);
  }
  canvas.getContext("2d").putImageData(pixels, 0, 0);
}

export function largest(values) {
  let max = 0;
  for (const value of values) max = Math.max(max, Math.abs(value));
  return max || 1;
}

export function sheet(width, height, label, ...children) {
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label,
    "font-family": "system-ui, DejaVu Sans, sans-serif", "font-size": 11 }, children);
}

const phone = () => innerWidth < 640; // some charts are narrower on small screens

export function text(x, y, words, more) { return svg("text", { x, y, fill: ink(), ...more }, words); }

// A heat map. `readout` is called with the cell under the pointer or the keyboard cursor, `pick` with a clicked cell;
// `write` prints the values into cells that are wide enough.
export function heatmap({ values, rows, columns, rowNames, columnNames, scale, selected, readout, pick, write, label, shade }) {
  const max = scale || largest(values);
  const named = (names, each) => (names ? each * Math.min(16, Math.max(...names.map((name) => short(name).length), 1)) : 0);
  const place = { rows, columns, size: Math.max(4, Math.min(30, Math.floor(720 / Math.max(columns, 1)), Math.floor(900 / Math.max(rows, 1)) + 3)) };
  place.left = rowNames ? 8 + named(rowNames, 7) : 4;
  place.top = columnNames ? 12 + named(columnNames, 5.2) : 4;
  const { size, left, top } = place;
  const drawing = sheet(left + size * columns + (columnNames ? 56 : 6), top + size * rows + 6, label || "matrix");
  edges(drawing, place, rowNames, columnNames, selected);
  drawing.append(svg("image", { x: left, y: top, width: size * columns, height: size * rows, preserveAspectRatio: "none",
    "image-rendering": "pixelated", href: cellsImage(shade || values, rows, columns, max) }));
  if (write && size >= 24) written(drawing, place, values, max);
  if (selected >= 0 && selected < rows) {
    const row = { x: left, y: top + selected * size, width: size * columns, height: size };
    drawing.append(svg("rect", { ...row, fill: "none", stroke: warm(), "stroke-width": 1.5 }));
  }
  drawing.append(...cursor(place, label || "matrix", (i, j) => readout && readout(i, j, values[i * columns + j]), pick, selected));
  return drawing;
}

// Row and column names, as many as fit.
function edges(drawing, { size, left, top }, rowNames, columnNames, selected) {
  const every = Math.ceil(10 / size);
  (rowNames || []).forEach((name, i) => i % every === 0 && drawing.append(text(left - 5, top + (i + 0.5) * size + 4, short(name),
    { "text-anchor": "end", fill: i === selected ? warm() : ink(), "font-weight": i === selected ? 700 : 400 })));
  (columnNames || []).forEach((name, i) => i % every === 0 && drawing.append(
    text(0, 0, short(name), { transform: `translate(${left + (i + 0.6) * size},${top - 4}) rotate(-50)` })));
}

function written(drawing, { size, left, top, columns }, values, max) {
  values.forEach((value, i) => {
    if (Math.abs(value) < 0.1 * max) return;
    drawing.append(text(left + (i % columns + 0.5) * size, top + (Math.floor(i / columns) + 0.5) * size + 3, value.toFixed(2).replace(/^(-?)0\./, "$1."),
      { "text-anchor": "middle", "font-size": 9, fill: readable(value / max) }));
  });
}

// A cursor that follows the pointer and the arrow keys.
function cursor({ size, left, top, rows, columns }, label, onMove, pick, start) {
  const mark = svg("rect", { width: size, height: size, fill: "none", stroke: warm(), "stroke-width": 2, visibility: "hidden" });
  const cover = svg("rect", { class: "pick", x: left, y: top, width: size * columns, height: size * rows, fill: "transparent", tabindex: 0, role: "application",
    "aria-roledescription": "matrix", "aria-label": `${label}, ${rows} by ${columns}: arrow keys move from cell to cell${pick ? ", Enter chooses" : ""}` });
  let at = [start >= 0 && start < rows ? start : 0, 0];
  const within = (value, n) => Math.min(n - 1, Math.max(0, value));
  const show = (row, column) => {
    at = [within(row, rows), within(column, columns)];
    mark.setAttribute("x", left + at[1] * size);
    mark.setAttribute("y", top + at[0] * size);
    mark.setAttribute("visibility", "visible");
    onMove(...at);
  };
  const find = (event) => {
    const box = cover.getBoundingClientRect();
    return [within(Math.floor((rows * (event.clientY - box.top)) / box.height), rows), within(Math.floor((columns * (event.clientX - box.left)) / box.width), columns)];
  };
  cover.addEventListener("pointermove", (event) => show(...find(event)));
  cover.addEventListener("click", (event) => pick && pick(...find(event)));
  cover.addEventListener("focus", () => show(...at));
  cover.addEventListener("keydown", (event) => {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (event.key === "Enter" && pick) pick(...at);
    if (!move) return;
    event.preventDefault();
    show(at[0] + move[0], at[1] + move[1]);
  });
  return [mark, cover];
}

// Two columns of tokens with a line for every weight; the line width grows with the weight. `from` draws one row only.
export function lines({ values, rows, columns, rowNames, columnNames, from, pick, label }) {
  const step = 20, [wide, gap, max] = phone() ? [106, 110, 13] : [150, 230, 20];
  const drawing = sheet(2 * wide + gap, Math.max(rows, columns) * step + 16, label || "attention lines");
  const one = from >= 0 && from < rows;
  for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) {
    const weight = values[i * columns + j];
    if (weight < 0.02 || (one && i !== from)) continue;
    const ends = { x1: wide, y1: i * step + 16, x2: wide + gap, y2: j * step + 16 };
    drawing.append(svg("line", { ...ends, stroke: blue(), "stroke-width": 0.5 + 4 * weight, "stroke-opacity": 0.15 + 0.85 * Math.min(weight, 1) },
      svg("title", {}, `${rowNames[i]} → ${columnNames[j]}: ${number(weight)}`)));
  }
  rowNames.forEach((name, i) => {
    const chosen = i === from;
    const press = (event) => { if (pick && [" ", "Enter"].includes(event.key)) { event.preventDefault(); pick(i); } };
    drawing.append(text(wide - 8, i * step + 20, short(name, max), { "text-anchor": "end", class: "pick", tabindex: 0, role: "button", "aria-pressed": String(chosen),
      fill: chosen ? warm() : ink(), "font-weight": chosen ? 700 : 400, onclick: () => pick && pick(i), onkeydown: press }));
  });
  columnNames.forEach((name, j) => {
    const weight = one ? values[from * columns + j] : 0;
    const words = short(name, max) + (weight >= 0.02 ? `  ${number(weight, 2)}` : "");
    drawing.append(text(wide + gap + 8, j * step + 20, words, { class: "key", "font-weight": weight >= 0.2 ? 700 : 400 }));
  });
  return drawing;
}

// Horizontal bars of `values`, with `before` behind them for comparison.
export function bars({ names, values, before, scale, digits = 3, label, notes }) {
  const step = 20, [left, wide, right] = phone() ? [100, 130, 95] : [150, 330, 150];
  const max = scale || Math.max(largest(values), before ? largest(before) : 0);
  const drawing = sheet(left + wide + right, names.length * step + 8, label || "bars");
  names.forEach((name, i) => {
    const y = i * step + 4;
    drawing.append(text(left - 8, y + 13, short(name, left > 120 ? 20 : 13), { "text-anchor": "end" }));
    if (before) drawing.append(svg("rect", { x: left, y, width: Math.max(0, wide * before[i] / max), height: 15, fill: soft(), "fill-opacity": 0.3 }));
    drawing.append(svg("rect", { x: left, y: y + (before ? 3 : 0), width: Math.max(0, wide * values[i] / max), height: before ? 9 : 15, fill: blue() }));
    const end = left + wide * Math.max(values[i], before ? before[i] : 0) / max;
    drawing.append(text(end + 6, y + 13, number(values[i], digits) + (notes ? `  ${notes[i]}` : ""), { class: "value" }));
  });
  return drawing;
}

// One or more curves over the indices 0, 1, 2, …
export function curve({ rows, label, names }) {
  const left = 46, top = 8, wide = phone() ? 250 : 420, high = 150;
  const all = rows.flat().filter((value) => value !== null);
  const low = Math.min(0, ...all), up = Math.max(0, ...all), span = up - low || 1, n = Math.max(...rows.map((row) => row.length));
  const drawing = sheet(left + wide + 20, top + high + 26, label);
  const y = (value) => top + high * (1 - (value - low) / span);
  const hue = (k) => (rows.length > 1 ? `hsl(${(360 * k) / rows.length} 60% ${dark() ? 65 : 42}%)` : blue());
  for (const value of [low, (low + up) / 2, up]) drawing.append(
    svg("line", { x1: left, x2: left + wide, y1: y(value), y2: y(value), stroke: soft(), "stroke-opacity": 0.35 }),
    text(left - 5, y(value) + 4, number(value, 2), { "text-anchor": "end", fill: soft() }));
  rows.forEach((row, k) => drawing.append(svg("polyline", { fill: "none", stroke: hue(k), "stroke-width": 1.8,
    points: row.map((value, i) => `${left + (wide * i) / Math.max(n - 1, 1)},${y(value)}`).join(" ") }, svg("title", {}, names ? names[k] : label))));
  drawing.append(text(left, top + high + 18, "0", { fill: soft() }), text(left + wide, top + high + 18, String(n - 1), { "text-anchor": "end", fill: soft() }));
  return drawing;
}
