// Keypoints with their heat maps and attention, and semantic segmentation.

import { part, unpack } from "./api.js";
import { choice, el, number, slider, svg, table, visible } from "./dom.js";
import { bars, figure, sheet } from "./draw.js";
import { headGrid, maxOutput } from "./head-grid.js";
import * as inputMap from "./input-map.js";
import { rowsOf } from "./view-heads.js";

const hue = (i) => `hsl(${(i * 222.5) % 360} 85% 55%)`;

export async function pose(context) {
  const { state, set, box, n } = context;
  const got = await context.ask("pose");
  const selected = state.pos < 0 ? 0 : Math.min(state.pos, got.names.length - 1);
  const map = part(unpack(got.maps), selected);
  box.append(el("div", { class: "controls" }, choice("Keypoint", `keypoint-${n}`, got.names.map((name, i) => [i, name]), selected, (value) => set({ pos: Number(value) }))),
    el("div", { class: "pair" }, figure(`${got.names.length} keypoints; click one to select it`, skeleton(context, got, selected), got.keypoints),
      figure(got.points ? `Similarity of each cell to the query of ${got.names[selected]}` : `Heat map of ${got.names[selected]}`, dotted(inputMap.image(got.image, got.size, map, "keypoint map"), got, selected), rowsOf(map), el("output", { class: "peak" }, `max: ${number(got.peaks[selected], 4)}`))));
  await keypointAttention(context, got, selected);
  box.append(figure("All keypoints", table(["keypoint", "x", "y", "score", "map maximum"], got.keypoints.map(([x, y, score], i) => [got.names[i], number(x, 4), number(y, 4), number(score, 3), number(got.peaks[i], 4)])), got.keypoints));
}

// The attention of the keypoint's query, or of the patch that contains the keypoint if it has no query.
async function keypointAttention(context, got, selected) {
  const seen = await context.ask("input");
  const own = seen.attentions.find((one) => !one.cells && one.queries === got.names.length);
  const attention = own || seen.attentions.find((one) => one.cells);
  if (!attention) return;
  const layer = attention.layers.includes(context.state.layer) ? context.state.layer : attention.layers.at(-1);
  const cell = (share, size) => Math.max(0, Math.min(size - 1, Math.floor(share * size)));
  const [x, y] = got.keypoints[selected], [rows, columns] = seen.shape;
  const at = own ? selected : attention.before + cell(y, rows) * columns + cell(x, columns);
  const found = await context.ask("attention_map", { stage: attention.stage, part: attention.part, layer, position: at });
  const mean = unpack(found.mean);
  context.box.append(el("div", { class: "controls" }, choice("Layer", `layer-${context.n}`, attention.layers.map((i) => [i, i]), layer, (value) => context.set({ layer: Number(value) }))),
    figure(`Attention of ${own ? `the query of ${got.names[selected]}` : `the patch at ${got.names[selected]}`}: layer ${layer}, mean of heads`, inputMap.draw(seen, mean, "attention of the keypoint", { mark: own ? -1 : at - attention.before }), rowsOf(mean), maxOutput(found.max)),
    headGrid(context, seen, attention, layer, unpack(found.maps), { mark: own ? -1 : at - attention.before, axes: [0, 1] }));
}

function skeleton(context, got, chosen) {
  const wide = 420, high = Math.round((wide * got.size[0]) / got.size[1]);
  const drawing = inputMap.fit(sheet(wide, high, "keypoints", svg("image", { href: got.image, width: wide, height: high, preserveAspectRatio: "none" })));
  const place = (i) => [got.keypoints[i][0] * wide, got.keypoints[i][1] * high];
  for (const [a, b] of got.bones) drawing.append(svg("line", { x1: place(a)[0], y1: place(a)[1], x2: place(b)[0], y2: place(b)[1], stroke: hue(a), "stroke-width": 2.5 }));
  got.names.forEach((name, i) => {
    const act = () => context.set({ pos: i });
    drawing.append(svg("circle", { class: "pick keypoint", cx: place(i)[0], cy: place(i)[1], r: i === chosen ? 7 : 4.5, fill: hue(i), stroke: i === chosen ? "#ff5a36" : "#ffffff", "stroke-width": i === chosen ? 3 : 1.2, tabindex: 0, role: "button", "aria-label": name, onclick: act, onkeydown: (event) => event.key === "Enter" && act() },
      svg("title", {}, `${name}: ${number(got.keypoints[i][0])}, ${number(got.keypoints[i][1])}`)));
  });
  return drawing;
}

function dotted(drawing, got, selected) {
  const [, , wide, high] = drawing.getAttribute("viewBox").split(" ").map(Number);
  drawing.append(svg("circle", { cx: got.keypoints[selected][0] * wide, cy: got.keypoints[selected][1] * high, r: 5, fill: "none", stroke: "#ff5a36", "stroke-width": 2 }));
  return drawing;
}

export async function segments(context) {
  const { state, set, box, n } = context;
  const got = await context.ask("segments");
  const wide = 420, high = Math.round((wide * got.size[0]) / got.size[1]);
  const mask = svg("image", { href: got.mask, width: wide, height: high, preserveAspectRatio: "none", opacity: state.share, "image-rendering": "pixelated" });
  const drawing = inputMap.fit(sheet(wide, high, "segmentation", svg("image", { href: got.image, width: wide, height: high, preserveAspectRatio: "none" }), mask));
  const colors = got.classes.map((one) => el("span", { class: "chip" }, swatch(one.color), ` ${visible(one.text)}`));
  box.append(el("div", { class: "controls" }, slider("Mask opacity", `share-${n}`, { min: 0, max: 1, step: 0.05, value: state.share, show: (x) => `${Math.round(100 * x)}%` }, (value) => { set({ share: value }, true); mask.setAttribute("opacity", value); })),
    el("div", { class: "pair" }, figure("The class of each pixel", drawing, got.classes, el("div", { class: "chips" }, colors)),
      figure("Fraction of the image by class", bars({ names: got.classes.map((one) => one.text), values: got.classes.map((one) => one.share), scale: 1, digits: 4, label: "fractions" }), got.classes)));
  await classAttention(context);
}

function swatch([red, green, blue]) {
  return svg("svg", { width: 12, height: 12, viewBox: "0 0 12 12", "aria-hidden": "true" }, svg("rect", { width: 12, height: 12, fill: `rgb(${red} ${green} ${blue})` }));
}

// The attention of a class query or of a selected patch.
async function classAttention(context) {
  const { state, set, box, n } = context;
  const seen = await context.ask("input");
  const attention = seen.attentions.find((one) => `${one.stage}/${one.part}` === state.site) || seen.attentions.at(-1);
  if (!attention) return;
  const layer = attention.layers.includes(state.layer) ? state.layer : attention.layers.at(-1);
  const queries = attention.names.slice(attention.before);
  const at = state.pos >= 0 && state.pos < attention.queries ? state.pos : queries.length ? attention.before + attention.cells : attention.before + Math.floor(attention.cells / 2);
  const found = await context.ask("attention_map", { stage: attention.stage, part: attention.part, layer, position: at });
  const mean = unpack(found.mean);
  const options = { mark: at - attention.before < attention.cells ? at - attention.before : -1, pick: (i) => set({ pos: i + attention.before }), axes: [0, 1] };
  box.append(el("div", { class: "controls" },
    seen.attentions.length > 1 ? choice("Queries", `site-${n}`, seen.attentions.map((one) => [`${one.stage}/${one.part}`, `${one.stage}: ${one.part}`]), `${attention.stage}/${attention.part}`, (value) => set({ site: value, layer: 0, pos: -1 })) : "",
    choice("Layer", `layer-${n}`, attention.layers.map((i) => [i, i]), layer, (value) => set({ layer: Number(value) })),
    queries.length ? choice("Class query", `query-${n}`, [["", "a patch"], ...queries.map((name, i) => [attention.before + attention.cells + i, visible(name)])], options.mark < 0 ? at : "", (value) => set({ pos: value === "" ? attention.before : Number(value) })) : ""),
    figure(`Attention of ${options.mark < 0 ? `the query of ${visible(found.query)}` : `patch ${visible(found.query)}`}: layer ${layer}, mean of heads; click a patch to select it`, inputMap.draw(seen, mean, "attention over the image", options), rowsOf(mean), maxOutput(found.max)),
    headGrid(context, seen, attention, layer, unpack(found.maps), options));
}
