// The computation of one head for one token with the values of the model, and the attention mask.

import { unpack } from "./api.js";
import { choice, el, number, slider, table, visible } from "./dom.js";
import { bars, figure, heatmap } from "./draw.js";
import { controls, headOf, layerOf, ablateButton, sites, where } from "./attention-sites.js";
import { overview, rowsOf } from "./view-heads.js";

const SHOWN_FEATURES = 64; // features of a vector

export async function steps(context) {
  const { all, site } = await sites(context);
  const plain = all.filter((one) => one.plain);
  const here = site?.plain ? site : plain[0];
  if (!here) return context.box.append(el("p", {}, "This layer has no scaled dot-product attention to show."));
  const one = headOf(context, here, false);
  const got = await context.ask("steps", { ...where(context, here), head: one, position: context.state.pos });
  const row = controls(context, plain, here, { mean: false });
  const token = el("input", { id: `pos-${context.n}`, type: "number", min: 0, value: got.position, onchange: () => context.set({ pos: Number(token.value) }) });
  row.append(el("label", {}, "Token", token), ablateButton(context, here, one) || "");
  const cut = got.width > SHOWN_FEATURES ? `; the first ${SHOWN_FEATURES} are shown` : "";
  const place = `head ${one} of ${here.stage} ${here.part} layer ${layerOf(context, here)}`;
  context.box.append(row, el("p", {}, `Token ${got.position}, "${visible(got.word)}", in ${place}; head width ${got.width}${cut}. `,
    "Point at a cell to read its value."));
  before(context, got);
  scores(context, got);
}

// Vectors as rows of a heat map with a readout.
function strip(title, rows, names, more) {
  const output = el("output", {}, more || "");
  const readout = (i, j, value) => { output.textContent = `${visible(names[i])}, feature ${j}: ${number(value, 4)}`; };
  const columns = rows[0].length;
  const values = Float64Array.from(rows.flat());
  const drawing = heatmap({ values, rows: rows.length, columns, rowNames: names, readout, write: columns <= 24, label: title });
  return figure(title, drawing, { names, vectors: rows }, output);
}

function before({ box }, got) {
  const first = got.norm?.order === "post" ? null : got.norm;
  if (first) box.append(norm("1. Norm", first, "before attention"));
  else box.append(strip("1. Input of the attention", [got.read], [got.word]));
  const own = got.own ? [[got.query, got.own.key, got.own.value], ["query", "key", "value"]] : [[got.query], ["query"]];
  box.append(strip(`2. ${got.own ? "Query, key and value" : "Query"} of "${visible(got.word)}"`, ...own), strip("3. Keys", got.keys, got.names));
}

// Scores, weights and results, for an adjustable softmax temperature.
function scores(context, got) {
  const holder = el("div", {});
  const draw = (softmaxTemperature) => {
    const weights = softmaxTemperature === 1 ? got.weights : softmaxAt(got, softmaxTemperature);
    holder.replaceChildren(scoreTable(got, weights, softmaxTemperature),
      figure("5. Attention weights", bars({ names: got.names, values: weights, before: got.weights, label: "weights", scale: 1 }), { names: got.names, weights }),
      ...after(got, weights));
  };
  const change = (value) => { context.set({ softmaxTemperature: value }, true); draw(value); };
  const options = { min: 0.1, max: 5, step: 0.1, value: context.state.softmaxTemperature, show: (x) => x.toFixed(1) };
  context.box.append(el("div", { class: "controls" }, slider("Softmax temperature", `softmax-temperature-${context.n}`, options, change)), holder);
  draw(context.state.softmaxTemperature);
}

const scaled = (got, i) => got.scores[i] * got.scale + (got.bias ? got.bias[i] : 0);

function scoreTable(got, weights, softmaxTemperature) {
  const biased = (cell) => (got.bias ? [cell] : []);
  const heads = ["#", "key", "q·k", `× ${number(got.scale, 3)}`, ...biased("+ bias"), "mask", softmaxTemperature === 1 ? "softmax" : "softmax at this temperature"];
  const rows = got.names.map((name, i) => [String(got.places[i]), visible(name), number(got.scores[i], 3), number(got.scores[i] * got.scale, 3),
    ...biased(got.bias && number(got.bias[i], 3)), got.allowed[i] ? "allowed" : "−∞", number(weights[i], 4)]);
  const rest = `The ${got.names.length} of ${got.of} keys with the largest weights; the weights of the other keys sum to ${number(got.rest, 4)}.`;
  return figure("4. Scores, scale, mask and softmax", table(heads, rows), got, got.of > got.names.length ? el("p", {}, rest) : null);
}

// Softmax over the shown keys; keys that are not shown keep their total weight.
function softmaxAt(got, softmaxTemperature) {
  const values = got.scores.map((_, i) => (got.allowed[i] ? scaled(got, i) / softmaxTemperature : -Infinity));
  const max = Math.max(...values);
  const powers = values.map((value) => Math.exp(value - max));
  const total = powers.reduce((a, b) => a + b, 0) || 1;
  return powers.map((value) => (value / total) * (1 - got.rest));
}

// Weighted values, their sum, and the output projection.
function after(got, weights) {
  const times = (row, factor) => row.map((value) => value * factor);
  const weighted = got.values.map((row, i) => times(row, weights[i]));
  const moved = got.result.map((value, j) => value + got.values.reduce((sum, row, i) => sum + (weights[i] - got.weights[i]) * row[j], 0));
  const drawn = [
    figure("6. Weighted values", el("div", { class: "pair" },
      strip("Values", got.values, got.names), strip("Value times weight", weighted, got.names)), { names: got.names, values: got.values, weighted }),
    strip("7. Sum: output of the head", [moved], [got.word]),
    strip(`8. After the output projection: added to "${visible(got.word)}"`, [got.adds], [got.word], "Computed at temperature 1."),
  ];
  return got.norm?.order === "post" ? [...drawn, norm("9. Norm", got.norm, "after the residual sum")] : drawn;
}

function norm(title, found, when) {
  const about = (one) => `mean ${number(one.mean)}, std ${number(one.std)}`;
  return figure(`${title}: ${found.kind}, ${when}`, el("div", {}, strip("Before", [found.before.values], ["before"]), strip("After", [found.after.values], ["after"])), found,
    el("p", { class: "norm" }, `before: ${about(found.before)} · after: ${about(found.after)}`));
}

// The mask.

const SHADES = [1, 0.06, -0.25, -0.55, -0.9]; // allowed, then one shade for each mask

export async function mask(context) {
  const { all, site } = await sites(context);
  const plain = all.filter((one) => one.plain);
  const here = site?.plain ? site : plain[0];
  if (!here) return context.box.append(el("p", {}, "This model has no attention masks to show."));
  const one = headOf(context, here);
  const { state, set, n, box } = context;
  const row = controls(context, plain, here);
  const pads = { min: 0, max: 12, step: 1, value: state.pad };
  let waiting;
  const change = (value) => { set({ pad: value }, true); clearTimeout(waiting); waiting = setTimeout(() => draw().catch(() => {}), 60); };
  row.append(slider("Padding tokens", `pad-${n}`, pads, change),
    choice("Padding side", `side-${n}`, [["right", "right"], ["left", "left"]], state.side, (value) => set({ side: value })), ablateButton(context, here, one) || "");
  const holder = el("div", {});
  box.append(row, holder);
  const draw = async () => {
    const got = await context.ask("mask", { ...where(context, here), head: one, top: state.top, left: state.left, padding: state.pad, padding_left: state.side === "left" });
    holder.replaceChildren(...drawMask(got, one));
    if (got.overview) overview(context, got, holder);
  };
  await draw();
}

function drawMask(got, one) {
  const named = { queries: got.queries, keys: got.keys };
  const shape = { rows: got.queries.length, columns: got.keys.length, rowNames: got.queries, columnNames: got.keys, scale: 1 };
  const pairOf = (i, j) => `${visible(got.queries[i])} → ${visible(got.keys[j])}`;
  const moved = got.moved === 0 ? "0" : got.moved?.toExponential(1);
  return [
    maskMap(got, named, shape, pairOf),
    got.moved === null ? "" : el("p", { class: "moved" }, `Largest relative change of the real tokens caused by padding: ${moved}`),
    weightsMap(got, named, shape, pairOf, one === null ? "mean of heads" : `head ${one}`),
  ];
}

function maskMap(got, named, shape, pairOf) {
  const codes = Float64Array.from(unpack(got.cells).values, Math.round);
  const shade = codes.map((code) => SHADES[Math.min(code, SHADES.length - 1)]);
  const output = el("output", { class: "verdict" }, "Point at a cell.");
  const readout = (i, j, code) => { output.textContent = `${pairOf(i, j)}: ${code ? `masked, ${got.parts[code - 1].label}` : "allowed"}`; };
  const parts = got.parts.map((part) => `${part.label}: ${part.masked} of ${got.of[0] * got.of[1]} pairs`);
  const list = el("ul", { class: "parts" }, (parts.length ? parts : ["no positions are masked"]).map((words) => el("li", {}, words)));
  const numbers = () => ({ ...named, masked_by: rowsOf({ shape: [shape.rows, shape.columns], values: codes }), parts: got.parts });
  const drawing = heatmap({ ...shape, values: codes, shade, readout, label: "mask" });
  return figure("Mask: blue where a query (row) may attend to a key (column)", drawing, numbers, el("div", {}, output, list));
}

function weightsMap(got, named, shape, pairOf, whose) {
  const weights = unpack(got.weights);
  const output = el("output", {}, "Masked weights are exactly zero.");
  const readout = (i, j, value) => { output.textContent = `${pairOf(i, j)}: ${number(value, 4)}`; };
  const drawing = heatmap({ ...shape, values: weights.values, write: true, label: "weights", readout });
  return figure(`Attention weights, ${whose}`, drawing, () => ({ ...named, weights: rowsOf(weights) }), output);
}
