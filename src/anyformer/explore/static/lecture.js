// The attention lecture as a walk: every stop is a view with a sentence, on a model that can show it.

import { EXAMPLES } from "./address.js";
import { el } from "./dom.js";

const reads = { says: "a model that reads text, with attention", fits: (info) => info.text && info.attends };
const both = { says: "a model that sees its text both ways", fits: (info) => info.text && info.attends && !info.continues && !info.writes, or: reads };
const speaks = { says: "a model that says what comes next", fits: (info) => info.continues && info.words };
const causal = { says: "a decoder", fits: (info) => info.continues && info.attends };
const pair = { says: "an encoder-decoder", fits: (info) => info.text && info.writes && info.crosses && !info.recurs };
const recurrent = { says: "a recurrent encoder-decoder with attention", fits: (info) => info.text && info.writes && info.crosses && info.recurs };
const looks = { says: "a model that looks at pictures", fits: (info) => info.pictures && info.patches && info.attends && !info.hides };

const tired = EXAMPLES["it, tired"], wide = EXAMPLES["it, wide"], eea = EXAMPLES.EEA;

// `word`: the token that is chosen; `target`: the head is taken in which it looks most at that one; `see`: the drawing that is scrolled to.
export const STOPS = [
  { title: "Tokens", view: "tokens", needs: [reads], say: "A tokenizer cuts the text into pieces and gives each a number. The model sees the numbers alone." },
  { title: "Embeddings", view: "embeddings", needs: [reads], say: "Each number picks a row of a learned table: a vector. Words used alike have vectors that point alike." },
  { title: "Positions, width 4", view: "embeddings", needs: [reads], see: "sines-and-cosines-at", say: "Attention does not know order. Sines and cosines of several wavelengths tell each place apart; here with four numbers, as on the blackboard." },
  { title: "Positions in full", view: "embeddings", needs: [reads], see: "sines-and-cosines-in-full", say: "The same at full width, and what this model itself uses: a table, a rotation of queries and keys, or a bias." },
  { title: "Query, key, value", view: "steps", word: "it", head: "0", layer: 1, needs: [reads], see: "2-query-key-and-value", say: "Three learned maps make of the token a query (what it looks for), a key (what it offers to be found by) and a value (what it says when found)." },
  { title: "Scores", view: "steps", word: "it", head: "0", layer: 1, needs: [reads], see: "4-scores", say: "The query times every key: one score a token. Divided by √d of the head, so that the softmax does not saturate." },
  { title: "Masks", view: "mask", layer: 1, needs: [causal], say: "A decoder must not see the future: those scores count as −∞ before the softmax, so their weights are exactly zero." },
  { title: "Padding", view: "mask", layer: 1, pad: 4, needs: [reads], say: "Texts of one batch are made equally long with tokens that mean nothing; a mask keeps everybody from looking at them. Move the slider: the real tokens do not change." },
  { title: "Softmax", view: "steps", word: "it", head: "0", layer: 1, softness: 2, needs: [reads], see: "5-the-weights", say: "Softmax makes the scores positive and sum to one. A temperature makes it softer or harder." },
  { title: "Weighted values", view: "steps", word: "it", head: "0", layer: 1, needs: [reads], see: "6-weighted-values", say: "Each value times its weight, added up: what this head says to this token." },
  { title: "LayerNorm", view: "steps", word: "it", head: "0", layer: 1, needs: [reads], see: "norm", say: "What all heads say is added to the token. A norm over its features keeps the numbers in range." },
  { title: "It was too tired", view: "head", word: "it", target: "animal", mode: "lines", needs: [both], say: "Who is “it”? This is the head in which “it” looks most at “animal”; the list below has the others." },
  { title: "It was too wide", view: "head", word: "it", target: "street", mode: "lines", text: wide, needs: [both], say: "One word later in the text, and “it” is the street. A bidirectional model can see that word; a decoder cannot yet." },
  { title: "Painted on the text", view: "head", word: "it", target: "animal", mode: "painted", needs: [both], say: "The same weights on the text itself. Click a token to see what it looks at." },
  { title: "All heads", view: "heads", needs: [reads], say: "Heads specialise: the token before, the first token, the same word, the verb. H is the entropy in bits, D the distance." },
  { title: "Which heads matter", view: "heads", needs: [reads], see: "all-heads", say: "Silence a head with its button, or measure what is lost without each. Many can go; a few cannot." },
  { title: "Rollout", view: "flow", word: "it", needs: [reads], see: "rollout-of-token", say: "Through all layers: half attention, half residual, multiplied. What each token of the last layer is made of." },
  { title: "Flow", view: "flow", word: "it", needs: [reads], see: "flow-into", say: "The same as water in pipes: the most that can flow from each input token to the chosen one." },
  { title: "The next word", view: "next", text: "The animal didn't cross the street because it was too", needs: [speaks], say: "The last vector, through the output table and a softmax: a chance for every word of the vocabulary." },
  { title: "Temperature, top-k, top-p", view: "next", text: "The animal didn't cross the street because it was too", temp: 0.7, k: 10, needs: [speaks], say: "Before drawing, the chances can be sharpened, and the unlikely cut off." },
  { title: "Logit lens", view: "next", text: "The animal didn't cross the street because it was too", needs: [speaks], see: "the-logit-lens", say: "Read every layer through the output: where does the answer arise?" },
  { title: "Writing with a cache", view: "generation", text: "Once upon a time", needs: [speaks], say: "Word after word. Keys and values of earlier tokens are kept, so that each step does the work of one token." },
  { title: "Beam search", view: "generation", text: "Once upon a time", n: 10, needs: [speaks], see: "beam-search", say: "Several beginnings at once: at each step the best few go on, the others are dropped." },
  { title: "Alignment", view: "alignment", text: eea, needs: [pair], say: "Cross-attention: queries from the decoder, keys and values from the encoder. Each target word looks at its source words." },
  { title: "Before transformers", view: "alignment", text: eea, needs: [recurrent, pair], say: "Bahdanau's recurrent model found its words the same way in 2015; beside it a transformer." },
  { title: "A picture as tokens", view: "picture", needs: [looks], say: "Patches instead of words; everything else stays. Click a patch to see what it looks at." },
  { title: "The numbers", view: "sizes", needs: [reads], say: "Where parameters, work and time go, and which kernel runs." },
];

const TRIED = 12; // models that are opened in search of one that fits
const KEPT = ["view", "text", "see", "mode", "layer", "head", "softness", "pad", "temp", "k", "n"];
const PLAIN = { raw: 0, see: "", mode: "matrix", layer: 0, head: "", softness: 1, pad: 0, temp: 1, k: 0, p: 1, n: 20, side: "right", site: "", pos: -1, to: -1, top: 0, left: 0, step: 0, mute: "", pair: "", target: "" };

// What a stop sets: its view and the state that goes with it.
export function changes(number) {
  const stop = STOPS[number - 1];
  const said = Object.fromEntries(KEPT.filter((name) => name in stop).map((name) => [name, stop[name]]));
  return { ...PLAIN, text: tired, ...said, stop: number };
}

// Models for a stop: those that are open where they fit, else the first that do. `describe` opens one, so few are tried.
export async function cast(stop, open, list, describe) {
  const found = [];
  for (const need of stop.needs) {
    const rest = list.filter((one) => !open.includes(one.id)).sort((a, b) => likely(b, need) - likely(a, need));
    const ids = [...open, ...rest.slice(0, TRIED).map((one) => one.id)].filter((id) => !found.includes(id));
    const here = (await first(ids, need, describe)) || (need.or && (await first(ids, need.or, describe)));
    if (!here) throw new Error(`This stop takes ${need.says}, and there is none here.`);
    found.push(here);
  }
  return found;
}

async function first(ids, need, describe) {
  for (const id of ids) if (need.fits(await describe(id))) return id;
  return null;
}

// By its task and family, before it is opened.
function likely(one, need) {
  const about = `${one.task || ""} ${one.family || ""} ${one.name}`.toLowerCase();
  const hints = new Map([[both, /embed|bert|minilm|fill-mask|classify-text/], [pair, /translate|transformer|t5|pair/], [recurrent, /bahdanau|luong|recurrent|rnn/], [speaks, /generate|gpt|llama|smol|stor/], [causal, /generate|gpt|llama|smol/], [looks, /classify-image|vit|cifar/], [reads, /embed|bert|minilm/]]);
  return Number(hints.get(need).test(about));
}

// The bar: back, the stops, on.
export function bar(number, go, close) {
  const stop = STOPS[number - 1];
  const list = el("select", { id: "stops", "aria-label": "Stops of the lecture", onchange: () => go(Number(list.value)) },
    STOPS.map((one, i) => el("option", { value: i + 1 }, `${i + 1}. ${one.title}`)));
  list.value = number;
  return [
    el("div", { class: "row" },
      el("button", { type: "button", id: "back", disabled: number <= 1, "aria-label": "Stop before", onclick: () => go(number - 1) }, "◀"),
      list,
      el("button", { type: "button", id: "on", disabled: number >= STOPS.length, "aria-label": "Next stop", onclick: () => go(number + 1) }, "▶"),
      el("span", { class: "of" }, `${number} of ${STOPS.length}`),
      el("button", { type: "button", id: "leave", "aria-label": "Leave the lecture", onclick: close }, "✕")),
    el("p", { id: "said" }, stop.say),
  ];
}
