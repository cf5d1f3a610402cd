// Images: patch filters and positions, masked reconstruction, detections, and attention of generated tokens.

import { part, unpack } from "./api.js";
import { choice, el, number, slider, svg, table, visible } from "./dom.js";
import { figure, heatmap, sheet, text } from "./draw.js";
import { headGrid, maxOutput, maximum } from "./head-grid.js";
import * as inputMap from "./input-map.js";
import { rowsOf } from "./view-heads.js";

const filters = new Map(); // per model; they do not depend on the input

// `before`: number of tokens before the patches. `patch`: the selected patch.
export async function patchViews(context, before, patch) {
  const at = Math.max(0, patch);
  const row = el("div", { class: "pair" });
  context.box.append(row);
  const positions = await context.ask("patch_positions", { position: at }).catch((error) => unavailable(error, row));
  if (positions) {
    const map = unpack(positions.map);
    row.append(figure(`Position similarity of patch ${Math.floor(at / map.shape[1])},${at % map.shape[1]} (cosine)`, heatmap({ values: map.values, rows: map.shape[0], columns: map.shape[1], scale: 1, label: "positions", pick: (i, j) => context.set({ pos: i * map.shape[1] + j + before }), write: true }), rowsOf(map)));
  }
  const found = filters.get(context.id) || (await context.ask("filters").catch((error) => unavailable(error, row)));
  if (found) filters.set(context.id, found);
  if (found) row.append(figure("Principal components of the patch embedding", filterDrawing(found), found.share));
}

function unavailable(error, row) {
  if (error.name === "AbortError") throw error;
  row.append(el("p", {}, error.message));
}

function filterDrawing(found) {
  const all = unpack(found.filters);
  const [n, height, width, channels] = all.shape;
  const size = 56;
  const drawing = sheet(7 * (size + 8), Math.ceil(n / 7) * (size + 22), "filters");
  for (let k = 0; k < n; k++) {
    const one = part(all, k);
    const canvas = el("canvas", { width, height });
    const pixels = new ImageData(width, height);
    for (let i = 0; i < width * height; i++) {
      const value = (c) => Math.round(255 * one.values[i * channels + Math.min(c, channels - 1)]);
      pixels.data.set([value(0), value(1), value(2), 255], 4 * i);
    }
    canvas.getContext("2d").putImageData(pixels, 0, 0);
    const [x, y] = [(k % 7) * (size + 8), Math.floor(k / 7) * (size + 22)];
    drawing.append(svg("image", { href: canvas.toDataURL("image/png"), x, y, width: size, height: size, "image-rendering": "pixelated" }), text(x + size / 2, y + size + 13, `${(100 * found.share[k]).toFixed(1)}%`, { "text-anchor": "middle", "font-size": 10 }));
  }
  return drawing;
}

export async function reconstruction(context) {
  const { state, set, box } = context;
  const holder = el("div", {}), three = el("div", { class: "grid" });
  three.style.gridTemplateColumns = "repeat(auto-fit, minmax(min(18rem, 100%), 1fr))";
  const draw = async () => {
    const got = await context.ask("reconstruction", { share: state.share, seed: state.seed });
    const one = (name, title) => figure(title, got.images ? frames(got.images[name], title) : sheet(260, 260, title, svg("image", { href: got[name], width: 260, height: 260, "image-rendering": "pixelated" })), { loss: got.loss });
    holder.replaceChildren(el("p", { class: "loss" }, `${got.masked} of ${got.patches} patches are masked; mean squared error ${number(got.loss, 4)}`),
      three);
    three.replaceChildren(one("visible", "Visible patches"), one("reconstruction", "Reconstruction"), one("image", "Original"));
  };
  let waiting;
  box.append(el("div", { class: "controls" }, slider("Mask ratio", `share-${context.n}`, { min: 0.05, max: 0.95, step: 0.05, value: state.share, show: (x) => `${Math.round(100 * x)}%` }, (value) => { set({ share: value }, true); clearTimeout(waiting); waiting = setTimeout(() => draw().catch(() => {}), 60); }),
    el("button", { type: "button", onclick: () => set({ seed: state.seed + 1 }) }, "Mask other patches")), holder);
  await draw();
  if (context.info.patches) await patchViews(context, 0, state.pos);
}

function frames(images, title) {
  const side = 84, gap = 4, across = Math.min(images.length, 8);
  return inputMap.fit(sheet(across * (side + gap), Math.ceil(images.length / across) * (side + gap), title, images.map((href, i) => svg("image", { href, x: (i % across) * (side + gap), y: Math.floor(i / across) * (side + gap), width: side, height: side, preserveAspectRatio: "none", "image-rendering": "pixelated" }))));
}

export async function boxes(context) {
  const { state, set, box } = context;
  const got = await context.ask("boxes", { threshold: state.threshold });
  const query = state.pos < 0 ? (got.detections[0]?.query ?? got.top.query) : Math.min(state.pos, got.queries - 1);
  const seen = await context.ask("input");
  const attention = seen.attentions.find((one) => !one.cells && one.queries === got.queries);
  const layer = attention.layers.includes(state.layer) ? state.layer : attention.layers[0];
  const found = await context.ask("attention_map", { stage: attention.stage, part: attention.part, layer, position: query });
  const mean = unpack(found.mean);
  let waiting;
  box.append(el("div", { class: "controls" }, slider("Score threshold", `threshold-${context.n}`, { min: 0, max: 1, step: 0.01, value: state.threshold, show: (x) => x.toFixed(2) }, (value) => { set({ threshold: value }, true); clearTimeout(waiting); waiting = setTimeout(() => set({}), 250); }),
    choice("Layer", `layer-${context.n}`, attention.layers.map((i) => [i, i]), layer, (value) => set({ layer: Number(value) })),
    choice("Query", `query-${context.n}`, [...Array(got.queries).keys()].map((i) => [i, i]), query, (value) => set({ pos: Number(value) }))));
  box.append(el("div", { class: "pair" }, figure(`${got.detections.length} detections above ${state.threshold.toFixed(2)}; highest score ${number(got.top.score)} (query ${got.top.query})`, boxDrawing(context, got, seen.size, query), got.detections),
    figure(`Attention of query ${query}: layer ${layer}, mean of heads`, inputMap.draw(seen, mean, "cross-attention", {}), rowsOf(mean), maxOutput(found.max))));
  box.append(headGrid(context, seen, attention, layer, unpack(found.maps), { mark: -1, axes: [0, 1] }));
  box.append(figure("All detections", table(["class", "score", "query", "left", "top", "right", "bottom"], got.detections.slice(0, 50).map((one) => [one.text, number(one.score), String(one.query), ...one.box.map((side) => number(side))])), got.detections));
}

function boxDrawing(context, got, size, query) {
  const wide = 420, high = Math.round((wide * size[0]) / size[1]);
  const drawing = inputMap.fit(sheet(wide, high, "boxes", svg("image", { href: got.image, width: wide, height: high, preserveAspectRatio: "none" })));
  for (const one of got.detections.slice(0, 60)) {
    const [left, top, right, bottom] = one.box;
    const chosen = one.query === query;
    drawing.append(svg("rect", { class: "pick", x: left * wide, y: top * high, width: Math.max(1, (right - left) * wide), height: Math.max(1, (bottom - top) * high), fill: "transparent", stroke: chosen ? "#ff5a36" : "#2b7fff", "stroke-width": chosen ? 3 : 1.5, tabindex: 0, role: "button",
      "aria-label": `${one.text} ${number(one.score)}`, onclick: () => context.set({ pos: one.query }), onkeydown: (event) => event.key === "Enter" && context.set({ pos: one.query }) }),
      svg("text", { x: Math.max(2, left * wide + 3), y: Math.max(12, top * high + 12), fill: "#ffffff", stroke: "#000000", "stroke-width": 2.5, "paint-order": "stroke" }, `${one.text} ${one.score.toFixed(2)}`));
  }
  return drawing;
}

export async function wordAttention(context) {
  const { state, set, box, n } = context;
  const seen = await context.ask("word_attention", { layer: 0 });
  const layer = seen.layers.includes(state.layer) ? state.layer : seen.layers[0];
  const head = state.head === "" || Number(state.head) >= seen.site.heads ? null : Number(state.head);
  const got = layer || head !== null ? await context.ask("word_attention", { layer, head }) : seen;
  const maps = unpack(got.maps);
  const at = state.pos < 0 ? 0 : Math.min(state.pos, got.words.length - 1);
  const block = got.blocks[got.layers.indexOf(layer)], { stage, part: where, plain, heads } = got.site;
  box.append(el("div", { class: "controls" }, choice("Layer", `layer-${n}`, got.layers.map((i) => [i, i]), layer, (value) => set({ layer: Number(value) })),
    choice("Head", `head-${n}`, [["", "mean of heads"], ...[...Array(heads).keys()].map((i) => [i, i])], head ?? "", (value) => set({ head: value })),
    head !== null && plain ? el("button", { type: "button", id: `ablate-${n}`, onclick: () => context.toggleAblation(stage, block, where, head) }, context.isAblated(stage, block, where, head) ? "Restore this head" : "Ablate this head") : ""),
    el("div", { class: "chips" }, got.words.map((word, i) => el("button", { type: "button", id: `word-${n}-${i}`, class: "chip", "aria-pressed": String(i === at), onclick: () => set({ pos: i }) }, visible(word)))));
  const one = part(maps, at);
  box.append(figure(`Attention while generating "${visible(got.words[at])}"`, inputMap.draw(got, one, "attention of a token", {}), rowsOf(one), maxOutput(maximum(one.values))));
  const all = el("div", { class: "grid" });
  all.style.gridTemplateColumns = `repeat(auto-fill, minmax(${got.kind === "audio" ? "20rem" : "8rem"}, 1fr))`;
  got.words.slice(0, 40).forEach((word, i) => all.append(el("div", { class: "cell" }, inputMap.draw(got, part(maps, i), word, { wide: got.kind === "audio" ? 300 : 130 }), el("div", {}, el("b", {}, visible(word))))));
  box.append(figure("All tokens", all, got.words));
}
