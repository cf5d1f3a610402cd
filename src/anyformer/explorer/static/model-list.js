// The list of available models, and a chip for each open model.

import { el } from "./dom.js";

const GROUPS = { given: "From the command line", shipped: "Models included with anyformer and its packages", here: "In this folder" };
export const MAX = 4; // open models

// All models, grouped by origin.
export function page(list, choose) {
  if (!list.length) return [el("p", {}, "No models found. Start with anyformer explore --model DIR, or train a model first.")];
  const parts = [el("p", {}, "Choose a model. You can add more models for comparison later.")];
  for (const [group, title] of Object.entries(GROUPS)) {
    const members = list.filter((one) => one.group === group);
    if (members.length) parts.push(el("h2", {}, title), el("ul", { class: "models" }, members.map((one) => el("li", {}, card(one, choose)))));
  }
  return parts;
}

function card(one, choose) {
  return el("button", { type: "button", class: "card", onclick: () => choose([one.id]) }, el("b", {}, one.name), el("small", {}, one.description || ""));
}

// A chip for each open model with a button that closes it, and a list that adds another. The same model can be added
// again, to compare it with and without a head.
export function chips(open, list, choose) {
  const chip = (id, n) => {
    const { name } = list.find((one) => one.id === id);
    const close = el("button", { type: "button", "aria-label": `Close ${name}`, title: `Close ${name}`, onclick: () => choose(open.filter((_, i) => i !== n)) }, "✕");
    return el("span", { class: "model" }, name, close);
  };
  const add = el("select", { id: "add", "aria-label": open.length ? "Add a model for comparison" : "Open a model", onchange: () => choose([...open, add.value]) },
    el("option", { value: "" }, open.length ? "compare with …" : "open …"), list.map((one) => el("option", { value: one.id }, one.name)));
  return [...open.map(chip), ...(list.length && open.length < MAX ? [add] : [])];
}
