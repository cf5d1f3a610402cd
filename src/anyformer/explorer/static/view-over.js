// Over the input: what a chosen asker looks at in a picture, a sound, a clip, points or a table, head by head and rolled
// out; and every query that is no part of the input at a glance.

import { part, unpack } from "./api.js";
import { choice, el, number, visible } from "./dom.js";
import { bars, figure } from "./draw.js";
import { headGrid, most, nested } from "./head-grid.js";
import * as surface from "./surface.js";
import { patchViews } from "./view-images.js";

const CALLED = { latents: "latent", outputs: "output", pool: "query" };

export async function over(context) {
  const got = await context.ask("picture");
  const { box, state } = context;
  if (got.answers.length) box.append(figure("The answer", bars({ names: got.answers.map((one) => one.text), values: got.answers.map((one) => one.chance), scale: 1, label: "classes" }), got.answers));
  if (got.of > 1) box.append(whichRow(context, got.of));
  if (got.wave) box.append(figure("The wave", surface.wave(got), got.wave));
  const asker = got.askers.length ? chosen(got.askers, state.site) : null;
  if (got.pooled && (state.site === ANSWER || (!state.site && state.pos < 0))) await answered(context, got, asker);
  else if (asker) await attended(context, got, asker);
  if (context.info.patches && got.kind === "picture") await patchViews(context, got.before || 0, asker?.cells ? state.pos - asker.before : 0);
}

function whichRow(context, n) {
  const input = el("input", { id: `row-${context.n}`, type: "number", min: 0, max: n - 1, value: context.state.row, onchange: () => context.set({ row: Math.max(0, Math.min(n - 1, Number(input.value))) }) });
  return el("div", { class: "controls" }, el("label", {}, `Which of the ${n} in the file`, input));
}

// The one that the address names; else the query that reads the answer, or whoever comes first.
function chosen(askers, site) {
  return askers.find((one) => nameOf(one) === site) || askers.find((one) => !one.cells && one.queries === 1 && one.layers.length) || askers.find((one) => one.part !== "time") || askers[0];
}

const ANSWER = "answer"; // which some heads make of all tokens at once
const nameOf = (one) => `${one.stage}/${one.part}`;

// The class token, where there is one that looks; else the middle of the input.
function start(asker, shape) {
  if (!asker.cells || (asker.before && asker.part !== "time")) return 0;
  return asker.before + middle(shape);
}

const middle = (shape) => (shape.length > 1 ? shape.reduce((place, size) => place * size + Math.floor(size / 2), 0) : 0);

// The state in which the patch in the middle asks, and not what reads the answer; null: no patch asks here.
export function byPatch(got) {
  const asker = got.askers.find((one) => one.cells && one.layers.length && one.part !== "time");
  return asker ? { site: nameOf(asker), pos: asker.before + middle(got.shape) } : null;
}

function called(asker, at) {
  if (asker.cells) return null;
  const name = asker.names[at] ?? String(at);
  return /^\d+$/.test(name) ? `${CALLED[asker.stage] || "query"} ${name}` : `"${visible(name)}"`;
}

function controls(context, got, asker, layer, at) {
  const { set, n } = context;
  const row = el("div", { class: "controls" });
  whoAsks(context, got, nameOf(asker), row);
  if (asker.layers.length) row.append(choice("Layer", `layer-${n}`, asker.layers.map((i) => [i, i]), layer, (value) => set({ layer: Number(value) })));
  if (!asker.cells && asker.queries > 1) row.append(choice("Asker", `asker-${n}`, [...Array(Math.min(asker.queries, 600)).keys()].map((i) => [i, visible(asker.names[i] ?? String(i))]), at, (value) => set({ pos: Number(value) })));
  if (asker.cells) asker.names.forEach((name, i) => {
    const place = i < asker.before ? i : i + asker.cells;
    row.append(el("button", { type: "button", id: `${i ? `token-${i}` : "class"}-${n}`, "aria-pressed": String(place === at), disabled: asker.part === "time", onclick: () => set({ pos: place }) }, i < asker.before ? `The ${visible(name)} token` : visible(name)));
  });
  if (got.kind === "points" && got.numbers > 2) axisControls(context, got.numbers, row);
  return row;
}

function whoAsks({ set, n }, got, now, row) {
  const names = got.askers.map((one) => [nameOf(one), `${one.stage}: ${one.layers.length ? one.part : "rollout"}`]);
  if (got.pooled) names.unshift([ANSWER, "the answer"]);
  if (names.length > 1) row.append(choice("Who asks", `site-${n}`, names, now, (value) => set({ site: value, layer: 0, pos: -1 })));
}

// The head itself weighs all tokens: by a query of its own, or evenly.
async function answered(context, got, asker) {
  const found = await context.ask("answered");
  const row = el("div", { class: "controls" });
  whoAsks(context, got, ANSWER, row);
  if (got.kind === "points" && got.numbers > 2) axisControls(context, got.numbers, row);
  const options = { axes: context.state.axes.split(".").map(Number) };
  if (asker?.cells) options.pick = (i) => context.set({ site: nameOf(asker), pos: i + asker.before });
  const pair = el("div", { class: got.kind === "clip" || got.kind === "sound" ? "" : "pair" });
  const own = found.by === "attention" ? [figure("How the answer's query weighs the last layer", surface.draw(got, unpack(found.mean), "attention of the answer", options), nested(unpack(found.mean)), most(found.most))] : [];
  pair.append(...own, figure("Rollout of the answer through all layers", surface.draw(got, unpack(found.rolled.map), "rollout of the answer", options), nested(unpack(found.rolled.map)), most(found.rolled.most)));
  context.box.append(row, el("p", {}, `The answer is read off ${found.by === "mean" ? "the mean of all tokens" : "all tokens, weighed by a query of its own"}; click to ask one of them instead.`), pair);
}

function axisControls({ state, set, n }, numbers, row) {
  const [a, b] = state.axes.split(".").map(Number);
  const names = [...Array(Math.min(numbers, 8)).keys()].map((i) => [i, `number ${i}`]);
  row.append(choice("Along", `across-${n}`, names, a, (value) => set({ axes: `${value}.${b}` })), choice("Up", `up-${n}`, names, b, (value) => set({ axes: `${a}.${value}` })));
}

async function attended(context, got, asker) {
  const { box, state, set } = context;
  const at = state.pos < 0 || state.pos >= asker.queries ? start(asker, got.shape) : state.pos;
  const layer = asker.layers.includes(state.layer) ? state.layer : asker.layers[0];
  const options = { mark: asker.cells ? at - asker.before : -1, axes: state.axes.split(".").map(Number) };
  if (asker.cells) options.pick = (i) => set({ pos: i + asker.before });
  const pair = el("div", { class: got.kind === "clip" || got.kind === "sound" ? "" : "pair" });
  const found = asker.layers.length ? await context.ask("over", { stage: asker.stage, part: asker.part, layer, position: at }) : null;
  const who = called(asker, at) || (at < asker.before || at >= asker.before + asker.cells ? `the ${visible(found.query)} token` : `${got.kind === "points" ? "item" : got.kind === "table" ? "column" : "patch"} ${visible(found.query)}`);
  box.append(controls(context, got, asker, layer, at), el("p", {}, `What ${who} looks at${asker.cells ? "; click to ask another instead." : "."}${asker.part === "space" ? " Each frame by itself." : ""}`));
  if (found) {
    const mean = unpack(found.mean);
    pair.append(figure(`Layer ${layer}, mean of its heads`, surface.draw(got, mean, "attention over the input", options), nested(mean), most(found.most)));
  }
  const rolled = await context.ask("rolled", { stage: asker.stage, position: at }).catch((error) => { if (error.name === "AbortError") throw error; return { refused: error.message }; });
  if (rolled.map) pair.append(figure("Rollout through all layers", surface.draw(got, unpack(rolled.map), "rollout over the input", options), nested(unpack(rolled.map)), most(rolled.most)));
  box.append(pair);
  if (rolled.refused) box.append(el("p", {}, rolled.refused));
  if (found) box.append(headGrid(context, got, asker, layer, unpack(found.maps), options));
}

// Every latent, slot, joint or class query with what it looks at.
export async function queries(context) {
  const { box, state, set, n } = context;
  const got = await context.ask("picture");
  const askers = got.askers.filter((one) => one.layers.length && (one.cells ? one.names.length > one.before : true) && !(one.cells && one.queries === one.cells + one.before));
  if (!askers.length) return box.append(el("p", {}, "Nobody asks here but parts of the input themselves."));
  const asker = askers.find((one) => nameOf(one) === state.site) || askers.find((one) => one.queries > 1) || askers[0];
  const layer = asker.layers.includes(state.layer) ? state.layer : asker.layers.at(-1);
  const head = state.head === "" || Number(state.head) >= asker.heads ? null : Number(state.head);
  const block = asker.blocks[asker.layers.indexOf(layer)];
  const found = await context.ask("queries", { stage: asker.stage, part: asker.part, layer, head, top: state.top });
  const row = el("div", { class: "controls" });
  if (askers.length > 1) row.append(choice("Who asks", `site-${n}`, askers.map((one) => [nameOf(one), `${one.stage}: ${one.part}`]), nameOf(asker), (value) => set({ site: value, layer: 0, head: "", top: 0 })));
  row.append(choice("Layer", `layer-${n}`, asker.layers.map((i) => [i, i]), layer, (value) => set({ layer: Number(value) })),
    choice("Head", `head-${n}`, [["", "mean of all"], ...[...Array(asker.heads).keys()].map((i) => [i, i])], head ?? "", (value) => set({ head: value })));
  if (head !== null && asker.plain) row.append(el("button", { type: "button", id: `mute-${n}`, onclick: () => context.toggleMute(asker.stage, block, asker.part, head) }, context.isMuted(asker.stage, block, asker.part, head) ? "Let this head speak" : "Silence this head"));
  if (found.of > found.names.length) row.append(el("button", { type: "button", onclick: () => set({ top: state.top + found.names.length < found.of ? state.top + found.names.length : 0 }) }, `${found.names.length} of ${found.of}; the next`));
  box.append(row, el("p", {}, "Each picture is one query: bright is what it looks at. H: entropy over the input in bits. Click to see its heads."));
  const maps = unpack(found.maps);
  const cells = el("div", { class: "grid" });
  cells.style.gridTemplateColumns = `repeat(auto-fill, minmax(${got.kind === "clip" || got.kind === "sound" ? "20rem" : "8rem"}, 1fr))`;
  found.names.forEach((name, i) => {
    const open = () => set({ view: "picture", site: nameOf(asker), layer, pos: found.first + i });
    const drawn = surface.draw(got, part(maps, i), `query ${name}`, { wide: got.kind === "clip" ? 48 : got.kind === "sound" ? 300 : 130, axes: state.axes.split(".").map(Number) });
    cells.append(el("div", { class: "cell", "data-query": String(found.first + i) }, el("button", { type: "button", class: "open", "aria-label": `query ${name}`, onclick: open }, drawn),
      el("div", {}, el("b", {}, visible(name)), el("span", { class: "top" }, `most ${number(found.most[i], 4)}`), el("span", { class: "entropy" }, `H ${number(found.entropy[i], 2)}`))));
  });
  box.append(figure(`What each of the ${found.of} looks at`, cells, { names: found.names, maps: nested(maps) }));
}
