// Attention: all heads, one head, alignment, rollout and flow.

import { part, unpack } from "./api.js";
import { choice, el, number, short, visible } from "./dom.js";
import { bars, color, figure, heatmap, largest, lines, paint } from "./draw.js";
import { readable } from "./colors.js";
import { blockOf, controls, headOf, layerOf, ablateButton, nameOf, sites, where } from "./attention-sites.js";

export { sites } from "./attention-sites.js";

const LONG_TEXT = 256; // number of tokens above which layers are requested one after another

export function rowsOf(tensor) {
  const [rows, columns] = tensor.shape;
  const row = (i) => tensor.values.subarray(i * columns, (i + 1) * columns);
  return [...Array(rows).keys()].map((i) => Array.from(row(i), (value) => Number(value.toPrecision(5))));
}

// Every layer and head.

export async function grid(context) {
  const { all, site } = await sites(context);
  if (!site) return context.box.append(el("p", {}, "This model has no attention layers."));
  context.box.append(controls(context, all, site, { layers: false, heads: false }),
    el("p", {}, "One attention matrix per head: rows are queries, columns are keys. H: entropy in bits; lower is sharper. D: mean distance in tokens between query and key. Click a matrix to enlarge it."));
  const cells = el("div", { class: "grid" });
  cells.style.gridTemplateColumns = `repeat(${Math.min(site.heads, 16)}, minmax(3.6rem, 8rem))`;
  const numbers = [];
  const press = () => ablationEffects(context, site, cells).catch(() => {});
  const measure = el("button", { type: "button", id: `measure-${context.n}`, onclick: press }, "Measure the effect of ablating each head");
  context.box.append(el("div", { class: "controls" }, site.plain ? measure : ""), figure("All heads", cells, numbers));
  await layers(context, site, cells, numbers);
}

async function layers(context, site, cells, numbers) {
  const ask = (from, to) => context.ask("heads", { stage: site.stage, part: site.part, layers: site.layers.slice(from, to) });
  const add = (found) => found.rows.forEach((row) => {
    numbers.push({ layer: row.layer, entropy: row.entropy, distance: row.distance });
    layer(context, site, cells, row);
  });
  const first = await ask(0, 2);
  add(first);
  const chunk = Math.max(1, Math.floor(200000 / (first.queries * first.keys + 1)));
  const rest = async () => { for (let i = 2; i < site.layers.length; i += chunk) add(await ask(i, i + chunk)); };
  if (first.queries > LONG_TEXT) rest().catch(() => {}); // the first layers are on the page; the rest follow
  else await rest();
}

function layer(context, site, cells, row) {
  const all = unpack(row.small);
  for (let head = 0; head < site.heads; head++) {
    const one = part(all, head);
    const name = `layer ${row.layer} head ${head}`;
    const values = `entropy ${row.entropy[head].toFixed(2)} bits, distance ${row.distance[head].toFixed(1)} tokens`;
    const canvas = el("canvas", { role: "img", "aria-label": `${name}: ${values}` });
    paint(canvas, one.values, one.shape[0], one.shape[1], Math.min(1, largest(one.values)));
    const block = blockOf(site, row.layer), off = context.isAblated(site.stage, block, site.part, head);
    const enlarge = () => context.set({ view: "head", layer: row.layer, head: String(head), site: nameOf(site) });
    const open = el("button", { type: "button", class: "open", title: name, onclick: enlarge }, canvas);
    const ablate = el("button", { type: "button", class: "ablate", "aria-pressed": String(off), "aria-label": `Ablate ${name}`, title: "Ablate this head",
      onclick: () => context.toggleAblation(site.stage, block, site.part, head) }, off ? "off" : "on");
    cells.append(el("div", { class: off ? "cell ablated" : "cell", "data-head": `${row.layer}.${head}` }, open,
      el("div", {}, el("b", {}, `${row.layer}.${head}`), site.plain ? ablate : null),
      el("div", {}, el("span", { class: "entropy" }, `H ${row.entropy[head].toFixed(2)}`), el("span", { class: "distance" }, `D ${row.distance[head].toFixed(1)}`))));
  }
}

// Ablate each head in turn. Δ is the change of the output: KL divergence in bits, or the relative change of the last
// hidden states for models without class probabilities.
async function ablationEffects(context, site, cells) {
  for (const layer of site.layers) {
    const got = await context.ask("ablation", { stage: site.stage, part: site.part, layer });
    const title = got.bits ? "KL divergence of the output without this head, in bits" : "relative change of the last hidden states without this head";
    got.changes.forEach((change, head) => {
      const cell = cells.querySelector(`[data-head="${layer}.${head}"]`);
      cell.querySelector(".effect")?.remove();
      cell.append(el("div", { class: "effect", title }, `Δ ${number(change, 4)}`));
    });
  }
}

// One head.

const MODES = [["matrix", "matrix"], ["lines", "lines"], ["text", "highlighted text"]];

export async function head(context) {
  const { all, site } = await sites(context);
  const one = headOf(context, site);
  const row = controls(context, all, site);
  row.append(choice("Show as", `mode-${context.n}`, MODES, context.state.mode, (value) => context.set({ mode: value })), ablateButton(context, site, one) || "");
  context.box.append(row);
  if (context.state.mode === "text") {
    await highlightedText(context, site, one);
    return foundHeads(context, site);
  }
  const got = await context.ask("head", { ...where(context, site), head: one, top: context.state.top, left: context.state.left });
  drawMatrix(context, got, context.state.mode, `${site.stage}, ${site.part}-attention, layer ${layerOf(context, site)}, ${one === null ? "mean of heads" : `head ${one}`}`);
  await foundHeads(context, site);
}

// The heads in which the selected query attends most to the selected key. A click on a matrix cell selects both.
async function foundHeads(context, site) {
  const { state, box, set } = context;
  if (state.pos < 0 || state.to < 0) return;
  const got = await context.ask("find_heads", { stage: site.stage, part: site.part, position: state.pos, to: state.to });
  const go = (one) => set({ layer: one.layer, head: String(one.head) });
  const here = (one) => one.layer === layerOf(context, site) && one.head === headOf(context, site);
  const chips = got.heads.map((one) => el("button", { type: "button", class: "chip", "aria-pressed": String(here(one)), onclick: () => go(one) },
    `${one.layer}.${one.head}`, el("small", {}, number(one.weight, 3))));
  box.append(figure(`Heads in which "${visible(got.query)}" attends most to "${visible(got.key)}" (of ${got.of} heads)`, el("div", { class: "chips found-heads" }, chips), got.heads));
}

export function drawMatrix(context, got, mode, title) {
  const cells = unpack(got.cells);
  const [rows, columns] = cells.shape;
  const output = el("output", { id: `readout-${context.n}` }, "Point at a cell or use the arrow keys to read a weight; click to select the tokens.");
  const selected = context.state.pos < 0 ? undefined : context.state.pos - got.top;
  const shape = { values: cells.values, rows, columns, rowNames: got.queries, columnNames: got.keys, label: title };
  const numbers = () => ({ queries: got.queries, keys: got.keys, top: got.top, left: got.left, weights: rowsOf(cells) });
  const readout = (i, j, value) => { output.textContent = `${visible(got.queries[i])} → ${visible(got.keys[j])}: ${number(value, 4)}`; };
  const drawing = mode === "lines"
    ? lines({ ...shape, from: selected ?? -1, pick: (i) => context.set({ pos: i === selected ? -1 : i + got.top }) })
    : heatmap({ ...shape, selected, write: true, readout, pick: (i, j) => context.set({ pos: i + got.top, to: j + got.left }) });
  context.box.append(figure(title, drawing, numbers, mode === "lines" ? null : output));
  if (got.overview) overview(context, got);
}

// For long inputs, an overview of the whole matrix. A click selects the part that is drawn in full.
export function overview(context, got, box = context.box) {
  const cells = unpack(got.overview);
  const [rows, columns] = cells.shape;
  const corner = (i, n, size) => Math.max(0, Math.round((i / n) * size - 64));
  const pick = (i, j) => context.set({ top: corner(i, rows, got.of[0]), left: corner(j, columns, got.of[1]) });
  box.append(figure(`Overview, ${got.of[0]} × ${got.of[1]}: click to show a part`,
    heatmap({ values: cells.values, rows, columns, pick, label: "overview" }), () => ({ weights: rowsOf(cells) })));
}

async function highlightedText(context, site, one) {
  const got = await context.ask("row", { ...where(context, site), head: one, position: context.state.pos });
  const { words } = await context.ask("tokens");
  const weight = new Map(got.places.map((place, i) => [place, got.values[i]]));
  const max = Math.max(...got.values, 1e-9);
  const names = words[site.keys] ? words[site.keys].map((word) => word.text) : got.keys;
  const own = site.keys === site.stage;
  const chips = names.map((name, i) => {
    const value = weight.get(i) || 0;
    const chip = el("button", { type: "button", class: "chip", "data-weight": value, "aria-pressed": String(own && i === got.position), title: number(value, 4),
      onclick: () => own && context.set({ pos: i }) }, visible(name), el("small", {}, number(value, 3)));
    chip.style.background = `rgb(${color(value / max)})`;
    if (value / max > 0.55) chip.style.color = readable(1);
    return chip;
  });
  if (!own && words[site.stage]) queryChips(context, words[site.stage], got.position);
  context.box.append(figure(`Attention of "${visible(got.query)}"`, el("div", { class: "chips" }, chips), got));
}

// In cross-attention, queries and keys are different tokens: list the queries.
function queryChips(context, words, at) {
  const chips = words.map((word, i) => el("button", { type: "button", class: "chip", "aria-pressed": String(i === at), onclick: () => context.set({ pos: i }) }, visible(word.text)));
  context.box.append(el("div", { class: "chips queries", role: "group", "aria-label": "Queries" }, chips));
}

export async function alignment(context) {
  const { all, site } = await sites(context, "cross");
  if (!site) return context.box.append(el("p", {}, "This encoder-decoder has no cross-attention."));
  const row = controls(context, all.filter((one) => one.part === "cross"), site);
  const one = headOf(context, site);
  row.append(ablateButton(context, site, one) || "");
  context.box.append(row);
  const got = await context.ask("head", { ...where(context, site), head: one });
  drawMatrix(context, got, "matrix", "Alignment");
  drawMatrix(context, { ...got, overview: null }, "lines", "Alignment as lines");
}

// Through all layers.

const MAX_FLOW_TOKENS = 48; // maximum number of tokens for attention flow
const MAX_BARS = 40;

export async function flow(context) {
  const { all } = await sites(context);
  const own = all.filter((one) => one.part === "self");
  if (!own.length) return context.box.append(el("p", {}, "This model has no self-attention layers for rollout."));
  const site = own.find((one) => nameOf(one) === context.state.site) || own[0];
  const chosen = controls(context, own, site, { layers: false, heads: false });
  const shares = [["0", "0.5 A + 0.5 I"], ["1", "none (product of A)"]];
  chosen.append(choice("Residual", `raw-${context.n}`, shares, String(context.state.raw), (value) => context.set({ raw: Number(value) })));
  context.box.append(chosen);
  const request = { stage: site.stage, position: context.state.pos };
  const got = await context.ask("rollout", { ...request, raw: Boolean(context.state.raw), top: context.state.top, left: context.state.left });
  drawMatrix(context, got, "matrix", "Rollout through all layers");
  const row = strongest(got.row);
  context.box.append(figure(`Rollout of token ${got.position}`, bars({ names: row.map((one) => one.name), values: row.map((one) => one.value), label: "rollout" }), got.row));
  if (got.of[0] > MAX_FLOW_TOKENS) return context.box.append(el("p", {}, `Attention flow is computed for at most ${MAX_FLOW_TOKENS} tokens.`));
  const flowed = await context.ask("flow", request);
  context.box.append(figure(`Attention flow to token ${flowed.position}`, bars({ names: flowed.keys, values: flowed.flow, label: "flow" }), flowed));
}

// All tokens in order, or the largest first if there are many.
function strongest(row) {
  const all = row.places.map((place, i) => ({ name: `${place} ${short(row.keys[i])}`, value: row.values[i] }));
  return all.length > MAX_BARS ? all.sort((a, b) => b.value - a.value).slice(0, MAX_BARS) : all;
}
