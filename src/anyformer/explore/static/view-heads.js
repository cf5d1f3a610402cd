// Attention: all heads, one head, one head step by step, and through all layers.

import { part, unpack } from "./api.js";
import { choice, el, number, short, slider, table, visible } from "./dom.js";
import { bars, colour, figure, heatmap, largest, lines, paint } from "./draw.js";

// The places of attention that a model has, and the one that is chosen.
export async function sites(context, wanted) {
  const found = await context.ask("tokens");
  const all = found.sites;
  const fitting = wanted ? all.filter((one) => one.part === wanted) : all;
  const named = fitting.find((one) => `${one.stage}/${one.part}` === context.state.site);
  return { found, all, site: named || fitting[0] };
}

function controls(context, all, site, { heads = true, mean = true } = {}) {
  const { state, set, n } = context;
  const row = el("div", { class: "controls" });
  if (all.length > 1) row.append(choice("Attention", `site-${n}`, all.map((one) => [`${one.stage}/${one.part}`, `${one.stage} ${one.part}`]), `${site.stage}/${site.part}`, (value) => set({ site: value, layer: 0, head: "", pos: -1 })));
  row.append(choice("Layer", `layer-${n}`, [...Array(site.layers).keys()].map((i) => [i, i]), layerOf(context, site), (value) => set({ layer: Number(value) })));
  if (heads) row.append(choice("Head", `head-${n}`, [...(mean ? [["", "mean of all"]] : []), ...[...Array(site.heads).keys()].map((i) => [i, i])], headOf(context, site, mean) ?? "", (value) => set({ head: value })));
  return row;
}

const layerOf = (context, site) => Math.min(context.state.layer, site.layers - 1);
function headOf(context, site, mean = true) {
  if (context.state.head === "" && mean) return null;
  return Math.min(Number(context.state.head), site.heads - 1);
}
const where = (context, site) => ({ stage: site.stage, part: site.part, layer: layerOf(context, site) });

function muteButton(context, site, head) {
  if (head === null || !site.plain) return null;
  const { stage, part, layer } = where(context, site);
  const off = context.isMuted(stage, layer, part, head);
  return el("button", { type: "button", id: `mute-${context.n}`, "aria-pressed": String(off), onclick: () => context.toggleMute(stage, layer, part, head) }, off ? "Let this head speak" : "Silence this head");
}

// Every layer and head, asked layer by layer where the text is long.
export async function grid(context) {
  const { all, site } = await sites(context);
  if (!site) return context.box.append(el("p", {}, "This model has no attention to look at."));
  const row = controls(context, all, site, { heads: false });
  row.lastChild.remove();
  context.box.append(row, el("p", {}, "Each square is a head: rows are queries, columns keys. H: entropy in bits, low is sharp. D: how many tokens away it looks. Click to enlarge."));
  const cells = el("div", { class: "grid" });
  cells.style.gridTemplateColumns = `repeat(${Math.min(site.heads, 16)}, minmax(3.6rem, 8rem))`;
  const numbers = [];
  const measure = site.plain ? el("button", { type: "button", id: `measure-${context.n}`, onclick: () => without(context, site, cells).catch(() => {}) }, "Measure what is lost without each head") : "";
  context.box.append(el("div", { class: "controls" }, measure), figure("All heads", cells, numbers));
  await drawLayers(context, site, cells, numbers, [...Array(site.layers).keys()]);
}

// Each head is silenced in turn; Δ is how far the answer moves, in bits (or as a share, where there are no words).
async function without(context, site, cells) {
  for (let layer = 0; layer < site.layers; layer++) {
    const got = await context.ask("without", { stage: site.stage, part: site.part, layer });
    got.changes.forEach((change, head) => {
      const cell = cells.querySelector(`[data-head="${layer}.${head}"]`);
      cell.querySelector(".lost")?.remove();
      cell.append(el("div", { class: "lost", title: got.bits ? "bits by which the answer moves without it" : "share by which the last vectors move without it" }, `Δ ${number(change, 4)}`));
    });
  }
}

async function drawLayers(context, site, cells, numbers, layers) {
  const first = await context.ask("heads", { stage: site.stage, part: site.part, layers: layers.slice(0, 2) });
  const chunk = Math.max(1, Math.floor(200000 / (first.queries * first.keys + 1)));
  const add = (found) => found.rows.forEach((row) => { numbers.push({ layer: row.layer, entropy: row.entropy, distance: row.distance }); layer(context, site, cells, row); });
  add(first);
  const rest = async () => {
    for (let i = 2; i < layers.length; i += chunk) add(await context.ask("heads", { stage: site.stage, part: site.part, layers: layers.slice(i, i + chunk) }));
  };
  if (first.queries > 256) rest().catch(() => {}); // the first layers are on the page; the others follow
  else await rest();
}

function layer(context, site, cells, row) {
  const all = unpack(row.small);
  for (let head = 0; head < site.heads; head++) {
    const one = part(all, head);
    const canvas = el("canvas", { role: "img", "aria-label": `layer ${row.layer} head ${head}` });
    paint(canvas, one.values, one.shape[0], one.shape[1], Math.min(1, largest(one.values)));
    const off = context.isMuted(site.stage, row.layer, site.part, head);
    const open = el("button", { type: "button", class: "open", title: `layer ${row.layer}, head ${head}`, onclick: () => context.set({ view: "head", layer: row.layer, head: String(head), site: `${site.stage}/${site.part}` }) }, canvas);
    const mute = site.plain ? el("button", { type: "button", class: "mute", "aria-pressed": String(off), title: "Silence this head", onclick: () => context.toggleMute(site.stage, row.layer, site.part, head) }, off ? "off" : "on") : null;
    cells.append(el("div", { class: off ? "cell muted" : "cell", "data-head": `${row.layer}.${head}` }, open,
      el("div", {}, el("b", {}, `${row.layer}.${head}`), mute), el("div", {}, el("span", { class: "entropy" }, `H ${row.entropy[head].toFixed(2)}`), el("span", { class: "distance" }, `D ${row.distance[head].toFixed(1)}`))));
  }
}

export async function head(context) {
  const { found, all, site } = await sites(context);
  const one = headOf(context, site);
  const row = controls(context, all, site);
  row.append(choice("as", `mode-${context.n}`, [["matrix", "matrix"], ["lines", "lines"], ["painted", "painted text"]], context.state.mode, (value) => context.set({ mode: value })), muteButton(context, site, one) || "");
  context.box.append(row);
  if (context.state.mode === "painted") return painted(context, found, site, one);
  const got = await context.ask("head", { ...where(context, site), head: one, top: context.state.top, left: context.state.left });
  drawMatrix(context, site, got, context.state.mode, `${site.stage} ${site.part} layer ${layerOf(context, site)} ${one === null ? "mean of heads" : `head ${one}`}`);
}

function drawMatrix(context, site, got, mode, title) {
  const cells = unpack(got.cells);
  const [rows, columns] = cells.shape;
  const said = el("output", { id: `readout-${context.n}` }, "Point at a cell, or move with the arrow keys.");
  const selected = context.state.pos < 0 ? undefined : context.state.pos - got.top;
  const pick = (i) => context.set({ pos: i + got.top });
  const shape = { values: cells.values, rows, columns, rowNames: got.queries, columnNames: got.keys, label: title };
  const numbers = { queries: got.queries, keys: got.keys, top: got.top, left: got.left, weights: rowsOf(cells) };
  const drawing = mode === "lines"
    ? lines({ ...shape, from: selected === undefined ? -1 : selected, pick: (i) => context.set({ pos: i === selected ? -1 : i + got.top }) })
    : heatmap({ ...shape, selected, write: true, readout: (i, j, value) => { said.textContent = `${visible(got.queries[i])} → ${visible(got.keys[j])}: ${number(value, 4)}`; }, pick });
  context.box.append(figure(title, drawing, numbers, mode === "lines" ? null : said));
  if (got.overview) overview(context, got);
}

export function rowsOf(tensor) {
  const [, columns] = tensor.shape;
  return [...Array(tensor.shape[0]).keys()].map((i) => Array.from(tensor.values.subarray(i * columns, (i + 1) * columns), (value) => Number(value.toPrecision(5))));
}

// Of a long text the whole is drawn small; a click on it chooses the part that is drawn in full.
function overview(context, got) {
  const cells = unpack(got.overview);
  const [rows, columns] = cells.shape;
  const pick = (i, j) => context.set({ top: Math.max(0, Math.round((i / rows) * got.of[0] - 64)), left: Math.max(0, Math.round((j / columns) * got.of[1] - 64)) });
  context.box.append(figure(`The whole ${got.of[0]} × ${got.of[1]}: click to see a part`, heatmap({ values: cells.values, rows, columns, pick, label: "overview" }), { weights: rowsOf(cells) }));
}

async function painted(context, found, site, one) {
  const got = await context.ask("row", { ...where(context, site), head: one, position: context.state.pos });
  const weight = new Map(got.places.map((place, i) => [place, got.values[i]]));
  const most = Math.max(...got.values, 1e-9);
  const keyWords = found.words[site.keys];
  const names = keyWords ? keyWords.map((word) => word.text) : got.keys;
  const chips = names.map((name, i) => {
    const value = weight.get(i) || 0;
    const chip = el("button", { type: "button", class: "chip", "data-weight": value, "aria-pressed": String(site.keys === site.stage && i === got.position), title: number(value, 4),
      onclick: () => site.keys === site.stage && context.set({ pos: i }) }, visible(name), el("small", {}, number(value, 3)));
    chip.style.background = `rgb(${colour(value / most)})`;
    if (value / most > 0.55) chip.style.color = document.documentElement.dataset.theme === "dark" ? "#10151d" : "#ffffff";
    return chip;
  });
  context.box.append(figure(`What "${visible(got.query)}" looks at`, el("div", { class: "chips" }, chips), got));
}

export async function alignment(context) {
  const { all, site } = await sites(context, "cross");
  if (!site) return context.box.append(el("p", {}, "This encoder-decoder has no attention between its two sides."));
  const fitting = all.filter((one) => one.part === "cross");
  context.box.append(controls(context, fitting, site));
  const got = await context.ask("head", { ...where(context, site), head: headOf(context, site) });
  drawMatrix(context, site, got, "matrix", "Alignment");
  drawMatrix(context, site, got, "lines", "Alignment as lines");
}

// One head for one token, with the real numbers.
export async function steps(context) {
  const { all, site } = await sites(context);
  const plain = all.filter((one) => one.plain);
  const here = site?.plain ? site : plain[0];
  if (!here) return context.box.append(el("p", {}, "Here are no queries, keys and values to take apart."));
  const one = headOf(context, here, false);
  const got = await context.ask("steps", { ...where(context, here), head: one, position: context.state.pos });
  const row = controls(context, plain, here, { mean: false });
  row.append(el("label", {}, "Token", el("input", { id: `pos-${context.n}`, type: "number", min: 0, value: got.position, onchange: (event) => context.set({ pos: Number(event.target.value) }) })), muteButton(context, here, one) || "");
  context.box.append(row, el("p", {}, `Token ${got.position}, "${visible(got.word)}", in head ${one} of ${here.stage} ${here.part} layer ${layerOf(context, here)}; its vectors are ${got.width} numbers wide${got.width > 64 ? ", the first 64 are drawn" : ""}.`));
  context.box.append(strip("1. The query", [got.query], [got.word]), strip("2. The keys", got.keys, got.names));
  scores(context, got);
  const mask = unpack(got.mask);
  context.box.append(figure("The mask: blue where a query (row) may look at a key (column)", heatmap({ values: mask.values, rows: mask.shape[0], columns: mask.shape[1], scale: 1, label: "mask" }), rowsOf(mask)));
  context.box.append(strip("5. The values", got.values, got.names), strip("6. Weighted and added up: what the head says", [got.result], [got.word]));
  if (got.norm) norm(context, got.norm);
}

function strip(title, rows, names) {
  return figure(title, heatmap({ values: Float64Array.from(rows.flat()), rows: rows.length, columns: rows[0].length, rowNames: names, label: title }), { names, rows });
}

function scores(context, got) {
  const holder = el("div", {});
  const scaled = got.scores.map((score, i) => score * got.scale + (got.bias ? got.bias[i] : 0));
  const draw = (softness) => {
    const weights = soften(scaled.map((score, i) => (got.allowed[i] ? score / softness : -Infinity)), got.rest);
    const rows = got.names.map((name, i) => [String(got.places[i]), visible(name), number(got.scores[i], 3), number(got.scores[i] * got.scale, 3), ...(got.bias ? [number(got.bias[i], 3)] : []),
      got.allowed[i] ? "may" : "masked", softness === 1 ? number(got.weights[i], 4) : number(weights[i], 4)]);
    const heads = ["#", "key", "q·k", `× ${number(got.scale, 3)}`, ...(got.bias ? ["+ bias"] : []), "mask", softness === 1 ? "softmax" : "softmax at this temperature"];
    holder.replaceChildren(figure("3. Scores, scale, mask and softmax", table(heads, rows), got),
      figure("4. The weights", bars({ names: got.names, values: softness === 1 ? got.weights : weights, before: got.weights, label: "weights", scale: 1 }), { names: got.names, weights }));
  };
  context.box.append(el("div", { class: "controls" }, slider("Softmax temperature", `softness-${context.n}`, { min: 0.1, max: 5, step: 0.1, value: context.state.softness, show: (x) => x.toFixed(1) }, (value) => { context.set({ softness: value }, true); draw(value); })), holder);
  draw(context.state.softness);
}

// Softmax of what is shown; keys that are not drawn keep their share.
function soften(values, rest) {
  const most = Math.max(...values);
  const powers = values.map((value) => Math.exp(value - most));
  const total = powers.reduce((a, b) => a + b, 0) || 1;
  return powers.map((value) => (value / total) * (1 - rest));
}

function norm(context, found) {
  const rows = [found.before, found.after];
  const title = `${found.kind}, ${found.order === "pre" ? "before attention reads" : "after the sum"}`;
  context.box.append(figure(`7. ${title}`, heatmap({ values: Float64Array.from(rows.flatMap((one) => one.values)), rows: 2, columns: rows[0].values.length, rowNames: ["before", "after"], label: title }), found,
    el("p", {}, `before: mean ${number(found.before.mean)}, spread ${number(found.before.std)} · after: mean ${number(found.after.mean)}, spread ${number(found.after.std)}`)));
}

export async function flow(context) {
  const { all } = await sites(context);
  const own = all.filter((one) => one.part === "self");
  if (!own.length) return context.box.append(el("p", {}, "This model has no layers of self-attention to follow attention through."));
  const site = own.find((one) => `${one.stage}/${one.part}` === context.state.site) || own[0];
  if (own.length > 1) context.box.append(el("div", { class: "controls" }, choice("Stage", `site-${context.n}`, own.map((one) => [`${one.stage}/self`, one.stage]), `${site.stage}/self`, (value) => context.set({ site: value, pos: -1 }))));
  const got = await context.ask("rollout", { stage: site.stage, position: context.state.pos, top: context.state.top, left: context.state.left });
  drawMatrix(context, site, got, "matrix", "Rollout through all layers");
  const names = got.row.places.map((place) => `${place} ${short(got.keys[place - got.left] ?? "")}`);
  context.box.append(figure(`Rollout of token ${got.position}`, bars({ names: names.slice(0, 40), values: got.row.values.slice(0, 40), label: "rollout" }), got.row));
  if (got.of[0] > 48) return context.box.append(el("p", {}, "Flow is worked out for up to 48 tokens."));
  const flowed = await context.ask("flow", { stage: site.stage, position: context.state.pos });
  context.box.append(figure(`Flow into token ${flowed.position}`, bars({ names: flowed.keys, values: flowed.flow, label: "flow" }), flowed));
}
