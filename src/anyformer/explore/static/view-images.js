// Pictures: attention laid over them, filters and places, what is hidden and filled in, boxes, words.

import { part, unpack } from "./api.js";
import { choice, el, number, slider, svg, table, visible } from "./dom.js";
import { bars, figure, heatmap, largest, sheet, text } from "./draw.js";
import { rowsOf, sites } from "./view-heads.js";

const WIDE = 340;

// A map of weights over the picture: the picture grey, what is looked at in colour.
function over(image, size, map, title, { pick, mark, most, wide = WIDE } = {}) {
  const long = size[1] > 8 * size[0]; // a sound: wider and higher than it is
  if (long && wide === WIDE) wide = 2 * WIDE;
  const high = long ? Math.round(wide / 6) : Math.round((wide * size[0]) / size[1]);
  const [rows, columns] = map.shape;
  const drawing = sheet(wide, high, title, svg("image", { href: image, width: wide, height: high, preserveAspectRatio: "none" }));
  drawing.append(svg("image", { href: shade(map, most), width: wide, height: high, preserveAspectRatio: "none", "image-rendering": "pixelated", class: "map" }));
  const cover = svg("g", {});
  const [w, h] = [wide / columns, high / rows];
  if (pick) for (let i = 0; i < rows * columns; i++) cover.append(svg("rect", { class: "pick", x: (i % columns) * w, y: Math.floor(i / columns) * h, width: w, height: h, fill: "transparent", stroke: "#ffffff", "stroke-opacity": 0.25, "stroke-width": 0.5,
    tabindex: rows * columns <= 256 ? 0 : undefined, role: "button", "aria-label": `patch ${Math.floor(i / columns)}, ${i % columns}`, onclick: () => pick(i), onkeydown: (event) => event.key === "Enter" && pick(i) },
    svg("title", {}, `patch ${Math.floor(i / columns)}, ${i % columns}: ${number(map.values[i], 4)}`)));
  if (mark >= 0) cover.append(svg("rect", { x: (mark % columns) * w, y: Math.floor(mark / columns) * h, width: w, height: h, fill: "none", stroke: "#ff5a36", "stroke-width": 2.5 }));
  drawing.append(cover);
  return drawing;
}

// Dark where nothing is looked at, clear where much is.
function shade(map, most) {
  const [rows, columns] = map.shape;
  const canvas = el("canvas", { width: columns, height: rows });
  const pixels = new ImageData(columns, rows);
  const top = most || largest(map.values);
  map.values.forEach((value, i) => pixels.data.set([8, 14, 26, Math.round(225 * (1 - value / top))], 4 * i));
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return canvas.toDataURL("image/png");
}

function siteControls(context, fitting, site, layer, extra) {
  const { state, set, n } = context;
  return el("div", { class: "controls" },
    fitting.length > 1 ? choice("Attention", `site-${n}`, fitting.map((one) => [`${one.stage}/${one.part}`, `${one.stage} ${one.part}`]), `${site.stage}/${site.part}`, (value) => set({ site: value, layer: 0, pos: 0 })) : "",
    choice("Layer", `layer-${n}`, [...Array(site.layers).keys()].map((i) => [i, i]), layer, (value) => set({ layer: Number(value) })), extra || "");
}

export async function picture(context) {
  const got = await context.ask("picture");
  const { all } = await sites(context);
  const fitting = all.filter((one) => one.stage === got.stage && one.part === "self");
  const { box, state, set } = context;
  if (got.answers.length) box.append(figure("The answer", bars({ names: got.answers.map((one) => one.text), values: got.answers.map((one) => one.chance), scale: 1, label: "classes" }), got.answers));
  if (fitting.length) await attended(context, got, fitting[0]);
  if (context.info.patches) await patchViews(context, got);
}

async function attended(context, got, site) {
  const { box, state, set } = context;
  const first = got.before ? 0 : Math.floor((got.rows * got.columns) / 2 + got.columns / 2);
  const at = state.pos < 0 ? first : state.pos;
  const layer = Math.min(state.layer, site.layers - 1);
  const found = await context.ask("over", { stage: site.stage, part: site.part, layer, position: at });
  const reset = got.before ? el("button", { type: "button", id: `class-${context.n}`, onclick: () => set({ pos: 0 }) }, "The class token") : "";
  box.append(siteControls(context, [site], site, layer, reset), el("p", {}, `What ${at < got.before ? `the ${visible(found.query)} token` : `patch ${visible(found.query)}`} looks at; click on a patch to ask it instead.`));
  const pick = (i) => set({ pos: i + got.before });
  const mark = at - got.before;
  const mean = unpack(found.mean), maps = unpack(found.maps);
  const rolled = await context.ask("rolled", { stage: site.stage, position: at });
  const roll = unpack(rolled.map);
  box.append(el("div", { class: "pair" }, figure(`Layer ${layer}, mean of its heads`, over(got.image, got.size, mean, "attention over the picture", { pick, mark }), rowsOf(mean), el("output", { class: "most" }, `the most: ${number(Math.max(...mean.values), 4)}`)),
    figure("Rollout through all layers", over(got.image, got.size, roll, "rollout over the picture", { pick, mark }), rowsOf(roll), el("output", { class: "most" }, `the most: ${number(Math.max(...roll.values), 4)}`))));
  const heads = el("div", { class: "grid" });
  heads.style.gridTemplateColumns = "repeat(auto-fill, minmax(9rem, 1fr))";
  for (let head = 0; head < maps.shape[0]; head++) {
    const one = part(maps, head);
    const off = context.isMuted(site.stage, layer, site.part, head);
    heads.append(el("div", { class: off ? "cell muted" : "cell", "data-head": `${layer}.${head}` }, over(got.image, got.size, one, `head ${head}`, { wide: 140, mark }),
      el("div", {}, el("b", {}, `head ${head}`), el("span", {}, `most ${number(Math.max(...one.values), 3)}`), el("button", { type: "button", class: "mute", "aria-pressed": String(off), title: "Silence this head", onclick: () => context.toggleMute(site.stage, layer, site.part, head) }, off ? "off" : "on"))));
  }
  box.append(figure("Each head of this layer", heads, [...Array(maps.shape[0]).keys()].map((head) => rowsOf(part(maps, head)))));
}

async function patchViews(context, got) {
  const at = Math.max(0, (context.state.pos < 0 ? 0 : context.state.pos) - got.before);
  const row = el("div", { class: "pair" });
  context.box.append(row);
  const places = await context.ask("places", { position: at }).catch((error) => refused(error, row));
  if (places) {
    const map = unpack(places.map);
    row.append(figure(`How alike the position of patch ${Math.floor(at / map.shape[1])},${at % map.shape[1]} is to the others`, heatmap({ values: map.values, rows: map.shape[0], columns: map.shape[1], scale: 1, label: "positions", pick: (i, j) => context.set({ pos: i * map.shape[1] + j + got.before }), write: true }), rowsOf(map)));
  }
  const found = await context.ask("filters").catch((error) => refused(error, row));
  if (found) row.append(figure("The first principal components of the patch embedding", filterDrawing(found), found.share));
}

function refused(error, row) {
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

export async function hidden(context) {
  const { state, set, box } = context;
  const holder = el("div", {});
  const draw = async () => {
    const got = await context.ask("hidden", { share: state.share, seed: state.seed });
    const one = (name, title) => figure(title, sheet(260, 260, title, svg("image", { href: got[name], width: 260, height: 260, "image-rendering": "pixelated" })), { loss: got.loss });
    holder.replaceChildren(el("p", { class: "loss" }, `${got.hidden} of ${got.patches} patches are hidden; the squared error there is ${number(got.loss, 4)}`),
      el("div", { class: "pair" }, one("seen", "What it sees"), one("made", "What it makes of it"), one("picture", "The picture")));
  };
  let waiting;
  box.append(el("div", { class: "controls" }, slider("Share that is hidden", `share-${context.n}`, { min: 0.05, max: 0.95, step: 0.05, value: state.share, show: (x) => `${Math.round(100 * x)}%` }, (value) => { set({ share: value }, true); clearTimeout(waiting); waiting = setTimeout(() => draw().catch(() => {}), 60); }),
    el("button", { type: "button", onclick: () => set({ seed: state.seed + 1 }) }, "Hide others")), holder);
  await draw();
  const size = [1, 1];
  await patchViews(context, { before: 0, size });
}

export async function boxes(context) {
  const { state, set, box } = context;
  const got = await context.ask("boxes", { threshold: state.threshold });
  const slot = state.pos < 0 ? (got.things[0]?.slot ?? got.top.slot) : Math.min(state.pos, got.slots - 1);
  const layer = Math.min(state.layer, got.layers - 1);
  const pictureSize = await context.ask("picture");
  const found = await context.ask("over", { stage: context.info.stages.at(-1), part: "cross", layer, position: slot });
  let waiting;
  box.append(el("div", { class: "controls" }, slider("Sure by", `threshold-${context.n}`, { min: 0, max: 1, step: 0.01, value: state.threshold, show: (x) => x.toFixed(2) }, (value) => { set({ threshold: value }, true); clearTimeout(waiting); waiting = setTimeout(() => set({}), 250); }),
    choice("Layer", `layer-${context.n}`, [...Array(got.layers).keys()].map((i) => [i, i]), layer, (value) => set({ layer: Number(value) })),
    choice("Query", `slot-${context.n}`, [...Array(got.slots).keys()].map((i) => [i, i]), slot, (value) => set({ pos: Number(value) }))));
  box.append(el("div", { class: "pair" }, figure(`${got.things.length} things are surer than ${state.threshold.toFixed(2)}; the surest query is ${got.top.slot} with ${number(got.top.score)}`, boxDrawing(context, got, pictureSize.size, slot), got.things),
    figure(`Where query ${slot} looks: layer ${layer}, mean of its heads`, over(got.image, pictureSize.size, unpack(found.mean), "cross-attention", {}), rowsOf(unpack(found.mean)), el("output", { class: "most" }, `the most: ${number(Math.max(...unpack(found.mean).values), 4)}`))));
  box.append(figure("One by one", table(["thing", "score", "query", "left", "top", "right", "bottom"], got.things.slice(0, 50).map((one) => [one.text, number(one.score), String(one.slot), ...one.box.map((side) => number(side))])), got.things));
}

function boxDrawing(context, got, size, slot) {
  const wide = 420, high = Math.round((wide * size[0]) / size[1]);
  const drawing = sheet(wide, high, "boxes", svg("image", { href: got.image, width: wide, height: high, preserveAspectRatio: "none" }));
  for (const one of got.things.slice(0, 60)) {
    const [left, top, right, bottom] = one.box;
    const chosen = one.slot === slot;
    drawing.append(svg("rect", { class: "pick", x: left * wide, y: top * high, width: Math.max(1, (right - left) * wide), height: Math.max(1, (bottom - top) * high), fill: "transparent", stroke: chosen ? "#ff5a36" : "#2b7fff", "stroke-width": chosen ? 3 : 1.5, tabindex: 0, role: "button",
      "aria-label": `${one.text} ${number(one.score)}`, onclick: () => context.set({ pos: one.slot }), onkeydown: (event) => event.key === "Enter" && context.set({ pos: one.slot }) }),
      svg("text", { x: Math.max(2, left * wide + 3), y: Math.max(12, top * high + 12), fill: "#ffffff", stroke: "#000000", "stroke-width": 2.5, "paint-order": "stroke" }, `${one.text} ${one.score.toFixed(2)}`));
  }
  return drawing;
}

export async function caption(context) {
  const { state, set, box } = context;
  const got = await context.ask("caption", { layer: state.layer, head: state.head === "" ? null : Number(state.head) });
  const size = (await context.ask("picture")).size;
  const maps = unpack(got.maps);
  const at = state.pos < 0 ? 0 : Math.min(state.pos, got.words.length - 1);
  box.append(el("div", { class: "controls" }, choice("Layer", `layer-${context.n}`, [...Array(got.layers).keys()].map((i) => [i, i]), Math.min(state.layer, got.layers - 1), (value) => set({ layer: Number(value) }))),
    el("div", { class: "chips" }, got.words.map((word, i) => el("button", { type: "button", id: `word-${context.n}-${i}`, class: "chip", "aria-pressed": String(i === at), onclick: () => set({ pos: i }) }, visible(word)))));
  const one = part(maps, at);
  box.append(figure(`Where it looks as it writes "${visible(got.words[at])}"`, over(got.image, size, one, "attention of a word", {}), rowsOf(one), el("output", { class: "most" }, `the most: ${number(Math.max(...one.values), 4)}`)));
  const all = el("div", { class: "grid" });
  all.style.gridTemplateColumns = "repeat(auto-fill, minmax(8rem, 1fr))";
  got.words.slice(0, 40).forEach((word, i) => all.append(el("div", { class: "cell" }, over(got.image, size, part(maps, i), word, { wide: 130 }), el("div", {}, el("b", {}, visible(word))))));
  box.append(figure("Word by word", all, got.words));
}
