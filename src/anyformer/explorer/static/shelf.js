// The models at hand: as a page of their own, and as chips for those that are open.

import { el } from "./dom.js";

const GROUPS = { given: "Given on the command line", shipped: "Models that come with anyformer or its packages", here: "Under this folder" };
export const MOST = 4; // panels side by side

// Every model, by where it comes from.
export function page(list, choose) {
  if (!list.length) return [el("p", {}, "No models were found here. Start with: anyformer explore --model DIR, or train one.")];
  const parts = [el("p", {}, "Choose a model to look inside; more can be put beside it.")];
  for (const [group, title] of Object.entries(GROUPS)) {
    const members = list.filter((one) => one.group === group);
    if (members.length) parts.push(el("h2", {}, title), el("ul", { class: "shelf" }, members.map((one) => el("li", {}, card(one, choose)))));
  }
  return parts;
}

function card(one, choose) {
  return el("button", { type: "button", class: "card", onclick: () => choose([one.id]) }, el("b", {}, one.name), el("small", {}, one.about || ""));
}

// The open ones, each with a button that closes it, and a list to add another from: the same one too, for with and
// without a head.
export function chips(open, list, choose) {
  const chip = (id, n) => {
    const { name } = list.find((one) => one.id === id);
    const close = el("button", { type: "button", "aria-label": `Close ${name}`, title: `Close ${name}`, onclick: () => choose(open.filter((_, i) => i !== n)) }, "✕");
    return el("span", { class: "model" }, name, close);
  };
  const add = el("select", { id: "add", "aria-label": open.length ? "Put a model beside" : "Open a model", onchange: () => choose([...open, add.value]) },
    el("option", { value: "" }, open.length ? "beside …" : "open …"), list.map((one) => el("option", { value: one.id }, one.name)));
  return [...open.map(chip), ...(list.length && open.length < MOST ? [add] : [])];
}
