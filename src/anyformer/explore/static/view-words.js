// Words: how text is cut, what comes next, vectors and positions, writing and searching.

import { unpack } from "./api.js";
import { bytes, choice, el, number, short, slider, svg, table, visible } from "./dom.js";
import { bars, blue, curve, figure, heatmap, ink, sheet, soft, text, warm } from "./draw.js";
import { rowsOf } from "./view-heads.js";

export async function tokens(context) {
  const found = await context.ask("tokens");
  for (const [stage, words] of Object.entries(found.words)) {
    const chips = words.map((word, i) => el("button", { type: "button", class: "chip", "aria-pressed": String(i === context.state.pos), onclick: () => context.set({ pos: i }) }, visible(word.text), el("small", {}, word.id)));
    context.box.append(figure(`${words.length} tokens of the ${stage}`, el("div", { class: "chips" }, chips), words),
      figure(`Tokens of the ${stage}, one by one`, table(["#", "id", "text", "as stored", "bytes", "characters"], words.slice(0, 300).map((word, i) => [String(i), String(word.id), visible(word.text), word.raw, word.bytes, word.end > word.start ? `${word.start}–${word.end}` : "added"])), words));
  }
  context.box.append(el("p", {}, `One pass took ${(1000 * found.seconds).toFixed(0)} ms.`));
}

function place(context, words) {
  const at = context.state.pos < 0 ? words.length - 1 : Math.min(context.state.pos, words.length - 1);
  return el("div", { class: "chips", role: "group", "aria-label": "Place in the text" }, words.slice(0, 400).map((word, i) =>
    el("button", { type: "button", id: `at-${context.n}-${i}`, class: "chip", "aria-pressed": String(i === at), onclick: () => context.set({ pos: i }) }, visible(word.text))));
}

export async function next(context) {
  const found = await context.ask("tokens");
  const words = Object.values(found.words).at(-1);
  const { state, set } = context;
  const holder = el("div", {});
  const draw = async () => {
    const got = await context.ask("next", { position: state.pos, temperature: state.temp, top_k: state.k, top_p: state.p });
    const title = `After token ${got.position}: ${got.left.toLocaleString("en")} of ${got.vocabulary.toLocaleString("en")} words are left`;
    holder.replaceChildren(figure(title, bars({ names: got.words.map((word) => word.text), values: got.words.map((word) => word.chance), before: got.words.map((word) => word.model), digits: 4, label: "next words" }), got,
      el("p", {}, `Blue: with these settings. Grey: as the model says, ${got.entropy.toFixed(2)} bits.`)));
  };
  let waiting;
  const live = (name) => (value) => { set({ [name]: value }, true); clearTimeout(waiting); waiting = setTimeout(() => draw().catch(() => {}), 40); };
  context.box.append(place(context, words), el("div", { class: "controls" },
    slider("Temperature", `temp-${context.n}`, { min: 0.1, max: 3, step: 0.05, value: state.temp, show: (x) => x.toFixed(2) }, live("temp")),
    slider("Top-k", `k-${context.n}`, { min: 0, max: 100, step: 1, value: state.k, show: (x) => (x ? String(x) : "all") }, live("k")),
    slider("Top-p", `p-${context.n}`, { min: 0.05, max: 1, step: 0.01, value: state.p, show: (x) => x.toFixed(2) }, live("p"))), holder);
  await draw();
  await lens(context);
}

async function lens(context) {
  const got = await context.ask("lens", { position: context.state.pos });
  const rows = got.rows.map((row) => [row.layer ? `after ${row.layer}` : "input", ...row.words.map((word, i) => `${visible(word)} ${(100 * row.chances[i]).toFixed(1)}%`), number(row.answer, 4), String(row.rank + 1), row.bits.toFixed(2)]);
  const best = got.rows[0].words.map((_, i) => `${i + 1}.`);
  context.box.append(figure(`The logit lens: every layer read through the output head; the answer is "${visible(got.answer)}"`,
    table(["layer", ...best, "the answer", "its rank", "bits"], rows), got),
    figure("How likely each layer finds the answer", curve({ rows: [got.rows.map((row) => row.answer)], label: "the answer by layer" }), got.rows.map((row) => row.answer)));
}

export async function embeddings(context) {
  const got = await context.ask("embeddings", context.state.site ? { stage: context.state.site.split("/")[0] } : {});
  const { box, info, set } = context;
  if (info.stages.length > 1) box.append(el("div", { class: "controls" }, choice("Stage", `stage-${context.n}`, info.stages.map((name) => [name, name]), got.stage, (value) => set({ site: `${value}/self` }))));
  const said = el("output", {}, "Point at a cell.");
  const read = (names) => (i, j, value) => { said.textContent = `${visible(names[i])} · ${j < names.length ? visible(names[j]) : j}: ${number(value, 4)}`; };
  const vectors = unpack(got.vectors), alike = unpack(got.alike);
  box.append(figure(`What goes into the ${got.stage}: ${got.of[0]} vectors of ${got.of[1]} numbers`, heatmap({ values: vectors.values, rows: vectors.shape[0], columns: vectors.shape[1], rowNames: got.names, label: "embeddings" }), { names: got.names, vectors: rowsOf(vectors) }),
    figure("How alike they are (cosine)", heatmap({ values: alike.values, rows: alike.shape[0], columns: alike.shape[1], rowNames: got.names, columnNames: got.names, scale: 1, readout: read(got.names), label: "cosine", write: true }), { names: got.names, cosine: rowsOf(alike) }, said));
  box.append(el("h3", {}, `Positions: ${got.kind === "none" ? "none are encoded here" : got.kind}`));
  if (got.table) {
    const places = unpack(got.table);
    box.append(figure("The encoding of each position", heatmap({ values: places.values, rows: places.shape[0], columns: places.shape[1], label: "positions" }), rowsOf(places)));
  }
  if (got.distance) box.append(figure("How alike two positions are, by distance", curve({ rows: [got.distance], label: "similarity by distance" }), got.distance));
  if (got.bias) box.append(figure("What is added to the scores, by distance, one line a head", curve({ rows: got.bias, label: "bias by distance" }), got.bias));
  box.append(figure("Sines and cosines at a toy width of 4", table(["position", "sin 1", "cos 1", "sin 2", "cos 2"], got.toy.map((row, i) => [String(i), ...row.map((value) => number(value, 3))])), got.toy));
}

export async function generation(context) {
  const { state, set, box } = context;
  box.append(el("div", { class: "controls" },
    choice("Take", `sample-${context.n}`, [["0", "the likeliest"], ["1", "a draw"]], String(state.sample), (value) => set({ sample: Number(value) })),
    choice("New tokens", `new-${context.n}`, [5, 10, 20, 40, 80].map((n) => [n, n]), state.n, (value) => set({ n: Number(value) })),
    choice("Beams", `beams-${context.n}`, [2, 3, 4, 5].map((n) => [n, n]), state.beams, (value) => set({ beams: Number(value) })),
    state.sample ? el("button", { type: "button", onclick: () => set({ seed: state.seed + 1 }) }, "Draw again") : ""));
  const asked = { new_tokens: state.n, temperature: state.temp, top_k: state.k, top_p: state.p, sample: Boolean(state.sample), seed: state.seed };
  const got = await context.ask("generation", asked);
  written(context, got);
  const tree = await context.ask("beams", { beams: state.beams, new_tokens: Math.min(state.n, 12) });
  box.append(figure(`Beam search with ${tree.beams} beams: the best is "${tree.result.map(visible).join(" ")}" at ${number(tree.score)}`, drawTree(tree), tree));
}

function written(context, got) {
  const holder = el("div", {});
  const draw = (n) => {
    const at = got.steps[n];
    const chips = [...got.read.slice(-60).map((word) => el("span", { class: "chip" }, visible(word))), ...got.steps.slice(0, n + 1).map((one, i) => {
      const chip = el("span", { class: "chip", "aria-pressed": String(i === n) }, visible(one.text), el("small", {}, number(one.chance, 3)));
      return chip;
    })];
    holder.replaceChildren(figure(`Step ${n + 1} of ${got.steps.length}`, el("div", { class: "chips" }, chips), got),
      figure("What could come at this step", bars({ names: at.best.map((one) => one.text), values: at.best.map((one) => one.chance), scale: 1, digits: 4, label: "candidates" }), at.best),
      figure("The cache so far", cacheDrawing(got.steps, n), got.steps.map((one) => one.cache), el("p", { class: "cache" }, `${at.cache.tokens} tokens remembered, ${bytes(at.cache.bytes)}`)));
  };
  const start = Math.min(context.state.step, got.steps.length - 1);
  context.box.append(el("div", { class: "controls" }, slider("Step", `step-${context.n}`, { min: 0, max: got.steps.length - 1, step: 1, value: start, show: (x) => String(x + 1) }, (value) => { context.set({ step: value }, true); draw(value); })), holder);
  draw(start);
}

function cacheDrawing(steps, n) {
  const wide = 460, high = 90, most = Math.max(...steps.map((one) => one.cache.bytes), 1);
  const step = wide / steps.length;
  return sheet(wide + 20, high + 20, "bytes of the cache at each step", steps.map((one, i) => svg("rect", { x: 10 + i * step, width: Math.max(step - 2, 1), y: 5 + high * (1 - one.cache.bytes / most), height: high * one.cache.bytes / most,
    fill: i === n ? warm() : blue(), "fill-opacity": i <= n ? 1 : 0.25 }, svg("title", {}, `${one.cache.tokens} tokens, ${bytes(one.cache.bytes)}`))));
}

// Levels from left to right; what goes on is joined by lines to what it continues, what is dropped is grey, ■ is an end.
function drawTree(tree) {
  const wide = 118, step = 20;
  const most = Math.max(...tree.levels.map((level) => level.length));
  const drawing = sheet(wide * (tree.levels.length + 1), most * step + 24, "beam search");
  let before = new Map([[0, [10, 30]]]);
  drawing.append(text(2, 16, "start", { fill: soft() }));
  let path = new Set([0]); // beams that say the result so far
  tree.levels.forEach((level, n) => {
    const now = new Map();
    const best = level.filter((one) => path.has(one.from) && one.id === tree.ids[n]);
    level.forEach((one, i) => {
      const x = wide * (n + 0.6), y = 20 + i * step;
      const kept = one.beam !== null || one.ended;
      const from = before.get(one.from);
      if (from) drawing.append(svg("line", { x1: from[0], y1: from[1] - 4, x2: x - 4, y2: y - 4, stroke: kept ? blue() : soft(), "stroke-opacity": kept ? 0.9 : 0.2, "stroke-width": kept ? 1.6 : 1 }));
      drawing.append(text(x, y, `${short(one.text, 9)} ${one.score.toFixed(2)}${one.ended ? " ■" : ""}`, { fill: kept ? ink() : soft(), "fill-opacity": kept ? 1 : 0.6, "font-weight": best.includes(one) ? 700 : 400, class: best.includes(one) ? "candidate best" : "candidate" }));
      if (one.beam !== null) now.set(one.beam, [x + 70, y]);
    });
    before = now;
    path = new Set(best.map((one) => one.beam));
  });
  return drawing;
}
