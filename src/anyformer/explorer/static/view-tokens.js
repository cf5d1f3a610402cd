// Tokens of the text, next-token probabilities, and the logit lens.

import { el, number, slider, table, visible } from "./dom.js";
import { bars, curve, figure } from "./draw.js";

export async function tokens(context) {
  const found = await context.ask("tokens");
  const heads = ["#", "id", "text", "as stored", "bytes", "characters"];
  const line = (word, i) => [String(i), String(word.id), visible(word.text), word.raw, word.bytes, word.end > word.start ? `${word.start}–${word.end}` : "added"];
  for (const [stage, words] of Object.entries(found.words)) {
    const chips = words.map((word, i) => el("button", { type: "button", class: "chip", "aria-pressed": String(i === context.state.pos),
      onclick: () => context.set({ pos: i }) }, visible(word.text), el("small", {}, word.id)));
    context.box.append(figure(`${words.length} tokens of the ${stage}`, el("div", { class: "chips" }, chips), words),
      figure(`Tokens of the ${stage}, one by one`, table(heads, words.map(line)), words));
  }
  context.box.append(el("p", {}, `Forward pass: ${(1000 * found.seconds).toFixed(0)} ms`));
}

function positionChips(context, words) {
  const at = context.state.pos < 0 ? words.length - 1 : Math.min(context.state.pos, words.length - 1);
  return el("div", { class: "chips", role: "group", "aria-label": "Position in the text" }, words.map((word, i) =>
    el("button", { type: "button", id: `at-${context.n}-${i}`, class: "chip", "aria-pressed": String(i === at), onclick: () => context.set({ pos: i }) }, visible(word.text))));
}

export async function next(context) {
  const found = await context.ask("tokens");
  const { state, set, n } = context;
  const holder = el("div", {});
  const draw = async () => {
    const got = await context.ask("next", { position: state.pos, temperature: state.temp, top_k: state.k, top_p: state.p });
    const title = `After token ${got.position}: ${got.left.toLocaleString("en")} of ${got.vocabulary.toLocaleString("en")} tokens can be sampled`;
    const all = (name) => got.words.map((word) => word[name]);
    const drawing = bars({ names: all("text"), values: all("probability"), before: all("model"), digits: 4, label: "next tokens" });
    holder.replaceChildren(figure(title, drawing, got, el("p", {}, `Blue: probabilities with these settings. Gray: probabilities of the model, entropy ${got.entropy.toFixed(2)} bits.`)));
  };
  let waiting;
  const live = (name) => (value) => { set({ [name]: value }, true); clearTimeout(waiting); waiting = setTimeout(() => draw().catch(() => {}), 40); };
  context.box.append(positionChips(context, Object.values(found.words).at(-1)), el("div", { class: "controls" },
    slider("Temperature", `temp-${n}`, { min: 0.1, max: 3, step: 0.05, value: state.temp, show: (x) => x.toFixed(2) }, live("temp")),
    slider("Top-k", `k-${n}`, { min: 0, max: 100, step: 1, value: state.k, show: (x) => (x ? String(x) : "all") }, live("k")),
    slider("Top-p", `p-${n}`, { min: 0.05, max: 1, step: 0.01, value: state.p, show: (x) => x.toFixed(2) }, live("p"))), holder);
  await draw();
  await lens(context);
}

async function lens(context) {
  const got = await context.ask("logit_lens", { position: context.state.pos });
  const share = (word, probability) => `${visible(word)} ${(100 * probability).toFixed(1)}%`;
  const rows = got.rows.map((row) => [row.layer ? `after ${row.layer}` : "input", ...row.words.map((word, i) => share(word, row.probabilities[i])),
    number(row.answer, 4), String(row.rank + 1), row.bits.toFixed(2)]);
  const best = got.rows[0].words.map((_, i) => `${i + 1}.`);
  const answers = got.rows.map((row) => row.answer);
  const title = `Logit lens: the output head applied to every layer; the prediction is "${visible(got.answer)}"`;
  context.box.append(figure(title, table(["layer", ...best, "prediction", "rank", "entropy (bits)"], rows), got),
    figure("Probability of the prediction by layer", curve({ rows: [answers], label: "probability by layer" }), answers));
}
