// One head for one token with the real numbers, as in the lectures; and the mask that it obeys.

import { unpack } from "./api.js";
import { choice, el, number, slider, table, visible } from "./dom.js";
import { bars, figure, heatmap } from "./draw.js";
import { controls, headOf, layerOf, muteButton, sites, where } from "./sites.js";
import { overview, rowsOf } from "./view-heads.js";

const DRAWN = 64; // numbers of a vector

export async function steps(context) {
  const { all, site } = await sites(context);
  const plain = all.filter((one) => one.plain);
  const here = site?.plain ? site : plain[0];
  if (!here) return context.box.append(el("p", {}, "Here are no queries, keys and values to take apart."));
  const one = headOf(context, here, false);
  const got = await context.ask("steps", { ...where(context, here), head: one, position: context.state.pos });
  const row = controls(context, plain, here, { mean: false });
  const token = el("input", { id: `pos-${context.n}`, type: "number", min: 0, value: got.position, onchange: () => context.set({ pos: Number(token.value) }) });
  row.append(el("label", {}, "Token", token), muteButton(context, here, one) || "");
  const cut = got.width > DRAWN ? `, of which the first ${DRAWN} are drawn` : "";
  const place = `head ${one} of ${here.stage} ${here.part} layer ${layerOf(context, here)}`;
  context.box.append(row, el("p", {}, `Token ${got.position}, "${visible(got.word)}", in ${place}; its vectors are ${got.width} numbers wide${cut}. `,
    "Point at a cell to read its number."));
  before(context, got);
  scores(context, got);
}

// A few vectors as rows of a matrix, with what the pointer reads.
function strip(title, rows, names, more) {
  const said = el("output", {}, more || "");
  const readout = (i, j, value) => { said.textContent = `${visible(names[i])}, number ${j}: ${number(value, 4)}`; };
  const columns = rows[0].length;
  const values = Float64Array.from(rows.flat());
  const drawing = heatmap({ values, rows: rows.length, columns, rowNames: names, readout, write: columns <= 24, label: title });
  return figure(title, drawing, { names, vectors: rows }, said);
}

function before({ box }, got) {
  const first = got.norm?.order === "post" ? null : got.norm;
  if (first) box.append(norm("1. The norm", first, "before attention reads"));
  else box.append(strip("1. What attention reads", [got.read], [got.word]));
  const own = got.own ? [[got.query, got.own.key, got.own.value], ["query", "key", "value"]] : [[got.query], ["query"]];
  box.append(strip(`2. ${got.own ? "Query, key and value" : "The query"} of "${visible(got.word)}"`, ...own), strip("3. The keys", got.keys, got.names));
}

// What follows from the scores; a temperature changes all of it.
function scores(context, got) {
  const holder = el("div", {});
  const draw = (softness) => {
    const weights = softness === 1 ? got.weights : soften(got, softness);
    holder.replaceChildren(scoreTable(got, weights, softness),
      figure("5. The weights", bars({ names: got.names, values: weights, before: got.weights, label: "weights", scale: 1 }), { names: got.names, weights }),
      ...after(got, weights));
  };
  const change = (value) => { context.set({ softness: value }, true); draw(value); };
  const options = { min: 0.1, max: 5, step: 0.1, value: context.state.softness, show: (x) => x.toFixed(1) };
  context.box.append(el("div", { class: "controls" }, slider("Softmax temperature", `softness-${context.n}`, options, change)), holder);
  draw(context.state.softness);
}

const scaled = (got, i) => got.scores[i] * got.scale + (got.bias ? got.bias[i] : 0);

function scoreTable(got, weights, softness) {
  const biased = (cell) => (got.bias ? [cell] : []);
  const heads = ["#", "key", "q·k", `× ${number(got.scale, 3)}`, ...biased("+ bias"), "mask", softness === 1 ? "softmax" : "softmax at this temperature"];
  const rows = got.names.map((name, i) => [String(got.places[i]), visible(name), number(got.scores[i], 3), number(got.scores[i] * got.scale, 3),
    ...biased(got.bias && number(got.bias[i], 3)), got.allowed[i] ? "may" : "−∞", number(weights[i], 4)]);
  const rest = `The ${got.names.length} of ${got.of} keys with the largest weights; the others have ${number(got.rest, 4)} together.`;
  return figure("4. Scores, scale, mask and softmax", table(heads, rows), got, got.of > got.names.length ? el("p", {}, rest) : null);
}

// Softmax of what is shown; keys that are not drawn keep their share.
function soften(got, softness) {
  const values = got.scores.map((_, i) => (got.allowed[i] ? scaled(got, i) / softness : -Infinity));
  const most = Math.max(...values);
  const powers = values.map((value) => Math.exp(value - most));
  const total = powers.reduce((a, b) => a + b, 0) || 1;
  return powers.map((value) => (value / total) * (1 - got.rest));
}

// Values times weights, their sum, and what becomes of it.
function after(got, weights) {
  const times = (row, factor) => row.map((value) => value * factor);
  const weighted = got.values.map((row, i) => times(row, weights[i]));
  const moved = got.result.map((value, j) => value + got.values.reduce((sum, row, i) => sum + (weights[i] - got.weights[i]) * row[j], 0));
  const drawn = [
    figure("6. Weighted values", el("div", { class: "pair" },
      strip("The values", got.values, got.names), strip("Each times its weight", weighted, got.names)), { names: got.names, values: got.values, weighted }),
    strip("7. Added up: what the head says", [moved], [got.word]),
    strip(`8. Through the output projection: what the head adds to "${visible(got.word)}"`, [got.adds], [got.word], "At temperature 1, as the model runs."),
  ];
  return got.norm?.order === "post" ? [...drawn, norm("9. The norm", got.norm, "after the sum")] : drawn;
}

function norm(title, found, when) {
  const about = (one) => `mean ${number(one.mean)}, spread ${number(one.std)}`;
  return figure(`${title}: ${found.kind}, ${when}`, el("div", {}, strip("Before", [found.before.values], ["before"]), strip("After", [found.after.values], ["after"])), found,
    el("p", { class: "norm" }, `before: ${about(found.before)} · after: ${about(found.after)}`));
}

// The mask.

const SHADES = [1, 0.06, -0.25, -0.55, -0.9]; // allowed, then by the part that forbids

export async function mask(context) {
  const { all, site } = await sites(context);
  const plain = all.filter((one) => one.plain);
  const here = site?.plain ? site : plain[0];
  if (!here) return context.box.append(el("p", {}, "Here is no attention with a mask."));
  const one = headOf(context, here);
  const { state, set, n, box } = context;
  const row = controls(context, plain, here);
  const pads = { min: 0, max: 12, step: 1, value: state.pad };
  let waiting;
  const change = (value) => { set({ pad: value }, true); clearTimeout(waiting); waiting = setTimeout(() => draw().catch(() => {}), 60); };
  row.append(slider("Padding", `pad-${n}`, pads, change),
    choice("on the", `side-${n}`, [["right", "right"], ["left", "left"]], state.side, (value) => set({ side: value })), muteButton(context, here, one) || "");
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
    forbidden(got, named, shape, pairOf),
    got.moved === null ? "" : el("p", { class: "moved" }, `With this padding no number of the real tokens moves by more than ${moved} of the largest.`),
    under(got, named, shape, pairOf, one === null ? "mean of heads" : `head ${one}`),
  ];
}

function forbidden(got, named, shape, pairOf) {
  const codes = Float64Array.from(unpack(got.cells).values, Math.round);
  const shade = codes.map((code) => SHADES[Math.min(code, SHADES.length - 1)]);
  const said = el("output", { class: "verdict" }, "Point at a cell.");
  const readout = (i, j, code) => { said.textContent = `${pairOf(i, j)}: ${code ? `forbidden, ${got.parts[code - 1].says}` : "allowed"}`; };
  const parts = got.parts.map((part) => `${part.says}: ${part.forbids} of ${got.of[0] * got.of[1]} pairs`);
  const list = el("ul", { class: "parts" }, (parts.length ? parts : ["nothing is forbidden here"]).map((words) => el("li", {}, words)));
  const numbers = () => ({ ...named, forbidden_by: rowsOf({ shape: [shape.rows, shape.columns], values: codes }), parts: got.parts });
  const drawing = heatmap({ ...shape, values: codes, shade, readout, label: "mask" });
  return figure("The mask: blue where a query (row) may look at a key (column)", drawing, numbers, el("div", {}, said, list));
}

function under(got, named, shape, pairOf, whose) {
  const weights = unpack(got.weights);
  const said = el("output", {}, "Forbidden weights are exactly zero.");
  const readout = (i, j, value) => { said.textContent = `${pairOf(i, j)}: ${number(value, 4)}`; };
  const drawing = heatmap({ ...shape, values: weights.values, write: true, label: "weights", readout });
  return figure(`The weights under it, ${whose}`, drawing, () => ({ ...named, weights: rowsOf(weights) }), said);
}
