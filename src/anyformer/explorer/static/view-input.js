// Attention over an image, audio, video, points or a table: of one query for each head and as rollout; and of all learned
// queries at once.

import { part, unpack } from "./api.js";
import { choice, el, number, visible } from "./dom.js";
import { bars, figure } from "./draw.js";
import { headGrid, maxOutput, nested } from "./head-grid.js";
import * as inputMap from "./input-map.js";
import { patchViews } from "./view-images.js";

const QUERY_NAMES = { latents: "latent", outputs: "output", pool: "query" };

export async function input(context) {
  const got = await context.ask("input");
  const { box, state } = context;
  if (got.predictions.length) box.append(figure("Predictions", bars({ names: got.predictions.map((one) => one.text), values: got.predictions.map((one) => one.probability), scale: 1, label: "classes" }), got.predictions));
  if (got.of > 1) box.append(rowField(context, got.of));
  if (got.waveform) box.append(figure("Waveform", inputMap.waveform(got), got.waveform));
  const attention = got.attentions.length ? selected(got.attentions, state.site) : null;
  if (got.pooled && (state.site === OUTPUT || (!state.site && state.pos < 0))) await poolingMap(context, got, attention);
  else if (attention) await attentionMap(context, got, attention);
  if (context.info.patches && got.kind === "image") await patchViews(context, got.before || 0, attention?.cells ? state.pos - attention.before : 0);
}

function rowField(context, n) {
  const input = el("input", { id: `row-${context.n}`, type: "number", min: 0, max: n - 1, value: context.state.row, onchange: () => context.set({ row: Math.max(0, Math.min(n - 1, Number(input.value))) }) });
  return el("div", { class: "controls" }, el("label", {}, `Row of the file (0 to ${n - 1})`, input));
}

// The attention that the URL names; else that of the single query of the head; else the first.
function selected(attentions, site) {
  return attentions.find((one) => nameOf(one) === site) || attentions.find((one) => !one.cells && one.queries === 1 && one.layers.length) || attentions.find((one) => one.part !== "time") || attentions[0];
}

const OUTPUT = "output"; // the pooling of the head, over all tokens
const nameOf = (one) => `${one.stage}/${one.part}`;

// The class token if there is one; else the middle cell of the input.
function start(attention, shape) {
  if (!attention.cells || (attention.before && attention.part !== "time")) return 0;
  return attention.before + middle(shape);
}

const middle = (shape) => (shape.length > 1 ? shape.reduce((place, size) => place * size + Math.floor(size / 2), 0) : 0);

// The page state that selects the middle patch as the query; null if patches are not queries.
export function byPatch(got) {
  const attention = got.attentions.find((one) => one.cells && one.layers.length && one.part !== "time");
  return attention ? { site: nameOf(attention), pos: attention.before + middle(got.shape) } : null;
}

function describeQuery(attention, at) {
  if (attention.cells) return null;
  const name = attention.names[at] ?? String(at);
  return /^\d+$/.test(name) ? `${QUERY_NAMES[attention.stage] || "query"} ${name}` : `"${visible(name)}"`;
}

function controls(context, got, attention, layer, at) {
  const { set, n } = context;
  const row = el("div", { class: "controls" });
  attentionChoice(context, got, nameOf(attention), row);
  if (attention.layers.length) row.append(choice("Layer", `layer-${n}`, attention.layers.map((i) => [i, i]), layer, (value) => set({ layer: Number(value) })));
  if (!attention.cells && attention.queries > 1) row.append(choice("Query", `query-${n}`, [...Array(Math.min(attention.queries, 600)).keys()].map((i) => [i, visible(attention.names[i] ?? String(i))]), at, (value) => set({ pos: Number(value) })));
  if (attention.cells) attention.names.forEach((name, i) => {
    const place = i < attention.before ? i : i + attention.cells;
    row.append(el("button", { type: "button", id: `${i ? `token-${i}` : "class"}-${n}`, "aria-pressed": String(place === at), disabled: attention.part === "time", onclick: () => set({ pos: place }) }, i < attention.before ? `${visible(name)} token` : visible(name)));
  });
  if (got.kind === "points" && got.numbers > 2) axisControls(context, got.numbers, row);
  return row;
}

function attentionChoice({ set, n }, got, now, row) {
  const names = got.attentions.map((one) => [nameOf(one), `${one.stage}: ${one.layers.length ? one.part : "rollout"}`]);
  if (got.pooled) names.unshift([OUTPUT, "output (pooling)"]);
  if (names.length > 1) row.append(choice("Queries", `site-${n}`, names, now, (value) => set({ site: value, layer: 0, pos: -1 })));
}

// The head pools all tokens, by attention or by their mean.
async function poolingMap(context, got, attention) {
  const found = await context.ask("pooling");
  const row = el("div", { class: "controls" });
  attentionChoice(context, got, OUTPUT, row);
  if (got.kind === "points" && got.numbers > 2) axisControls(context, got.numbers, row);
  const options = { axes: context.state.axes.split(".").map(Number) };
  if (attention?.cells) options.pick = (i) => context.set({ site: nameOf(attention), pos: i + attention.before });
  const pair = el("div", { class: got.kind === "clip" || got.kind === "audio" ? "" : "pair" });
  const own = found.by === "attention" ? [figure("Pooling weights over the last layer", inputMap.draw(got, unpack(found.mean), "pooling weights", options), nested(unpack(found.mean)), maxOutput(found.max))] : [];
  pair.append(...own, figure("Rollout of the output through all layers", inputMap.draw(got, unpack(found.rollout.map), "rollout of the output", options), nested(unpack(found.rollout.map)), maxOutput(found.rollout.max)));
  context.box.append(row, el("p", {}, `The head pools ${found.by === "mean" ? "the mean of all tokens" : "all tokens by attention"}. Click a token to see its attention.`), pair);
}

function axisControls({ state, set, n }, numbers, row) {
  const [a, b] = state.axes.split(".").map(Number);
  const names = [...Array(Math.min(numbers, 8)).keys()].map((i) => [i, `feature ${i}`]);
  row.append(choice("Horizontal axis", `across-${n}`, names, a, (value) => set({ axes: `${value}.${b}` })), choice("Vertical axis", `up-${n}`, names, b, (value) => set({ axes: `${a}.${value}` })));
}

async function attentionMap(context, got, attention) {
  const { box, state, set } = context;
  const at = state.pos < 0 || state.pos >= attention.queries ? start(attention, got.shape) : state.pos;
  const layer = attention.layers.includes(state.layer) ? state.layer : attention.layers[0];
  const options = { mark: attention.cells ? at - attention.before : -1, axes: state.axes.split(".").map(Number) };
  if (attention.cells) options.pick = (i) => set({ pos: i + attention.before });
  const pair = el("div", { class: got.kind === "clip" || got.kind === "audio" ? "" : "pair" });
  const found = attention.layers.length ? await context.ask("attention_map", { stage: attention.stage, part: attention.part, layer, position: at }) : null;
  const who = describeQuery(attention, at) || (at < attention.before || at >= attention.before + attention.cells ? `the ${visible(found.query)} token` : `${got.kind === "points" ? "item" : got.kind === "table" ? "column" : "patch"} ${visible(found.query)}`);
  box.append(controls(context, got, attention, layer, at), el("p", {}, `Attention of ${who}.${attention.cells ? " Click a cell to select another query." : ""}${attention.part === "space" ? " Frames are independent." : ""}`));
  if (found) {
    const mean = unpack(found.mean);
    pair.append(figure(`Layer ${layer}, mean of heads`, inputMap.draw(got, mean, "attention over the input", options), nested(mean), maxOutput(found.max)));
  }
  const rollout = await context.ask("input_rollout", { stage: attention.stage, position: at }).catch((error) => { if (error.name === "AbortError") throw error; return { error: error.message }; });
  if (rollout.map) pair.append(figure("Rollout through all layers", inputMap.draw(got, unpack(rollout.map), "rollout over the input", options), nested(unpack(rollout.map)), maxOutput(rollout.max)));
  box.append(pair);
  if (rollout.error) box.append(el("p", {}, rollout.error));
  if (found) box.append(headGrid(context, got, attention, layer, unpack(found.maps), options));
}

// The attention of every latent, object, keypoint or class query.
export async function queries(context) {
  const { box, state, set, n } = context;
  const got = await context.ask("input");
  const attentions = got.attentions.filter((one) => one.layers.length && (one.cells ? one.names.length > one.before : true) && !(one.cells && one.queries === one.cells + one.before));
  if (!attentions.length) return box.append(el("p", {}, "This model has no learned queries; only tokens of the input attend."));
  const attention = attentions.find((one) => nameOf(one) === state.site) || attentions.find((one) => one.queries > 1) || attentions[0];
  const layer = attention.layers.includes(state.layer) ? state.layer : attention.layers.at(-1);
  const head = state.head === "" || Number(state.head) >= attention.heads ? null : Number(state.head);
  const block = attention.blocks[attention.layers.indexOf(layer)];
  const found = await context.ask("queries", { stage: attention.stage, part: attention.part, layer, head, top: state.top });
  const row = el("div", { class: "controls" });
  if (attentions.length > 1) row.append(choice("Queries", `site-${n}`, attentions.map((one) => [nameOf(one), `${one.stage}: ${one.part}`]), nameOf(attention), (value) => set({ site: value, layer: 0, head: "", top: 0 })));
  row.append(choice("Layer", `layer-${n}`, attention.layers.map((i) => [i, i]), layer, (value) => set({ layer: Number(value) })),
    choice("Head", `head-${n}`, [["", "mean of heads"], ...[...Array(attention.heads).keys()].map((i) => [i, i])], head ?? "", (value) => set({ head: value })));
  if (head !== null && attention.plain) row.append(el("button", { type: "button", id: `ablate-${n}`, onclick: () => context.toggleAblation(attention.stage, block, attention.part, head) }, context.isAblated(attention.stage, block, attention.part, head) ? "Restore this head" : "Ablate this head"));
  if (found.of > found.names.length) row.append(el("button", { type: "button", onclick: () => set({ top: state.top + found.names.length < found.of ? state.top + found.names.length : 0 }) }, `${found.names.length} of ${found.of}; show the next`));
  box.append(row, el("p", {}, "One map per query; bright regions have high attention. H: entropy over the input in bits. Click a map to see its heads."));
  const maps = unpack(found.maps);
  const cells = el("div", { class: "grid" });
  cells.style.gridTemplateColumns = `repeat(auto-fill, minmax(${got.kind === "clip" || got.kind === "audio" ? "20rem" : "8rem"}, 1fr))`;
  found.names.forEach((name, i) => {
    const open = () => set({ view: "input", site: nameOf(attention), layer, pos: found.first + i });
    const drawn = inputMap.draw(got, part(maps, i), `query ${name}`, { wide: got.kind === "clip" ? 48 : got.kind === "audio" ? 300 : 130, axes: state.axes.split(".").map(Number) });
    cells.append(el("div", { class: "cell", "data-query": String(found.first + i) }, el("button", { type: "button", class: "open", "aria-label": `query ${name}`, onclick: open }, drawn),
      el("div", {}, el("b", {}, visible(name)), el("span", { class: "top" }, `max ${number(found.max[i], 4)}`), el("span", { class: "entropy" }, `H ${number(found.entropy[i], 2)}`))));
  });
  box.append(figure(`Attention of all ${found.of} queries`, cells, { names: found.names, maps: nested(maps) }));
}
