// A chart with its title and download buttons: the chart as SVG or PNG, its values as JSON or npz.

import { el, svg } from "./dom.js";
import { flatten } from "./flatten.js";
import { npz } from "./npz.js";
import { paper } from "./colors.js";

// `numbers` may be a function, for large data that is rarely downloaded.
export function figure(title, drawing, numbers, more) {
  const name = title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");
  const whole = () => (drawing instanceof SVGElement ? drawing : flatten(drawing));
  const values = () => (typeof numbers === "function" ? numbers() : numbers);
  const kinds = {
    SVG: () => download(`${name}.svg`, new Blob([asText(whole())], { type: "image/svg+xml" })),
    PNG: () => savePng(`${name}.png`, whole()),
    JSON: () => download(`${name}.json`, new Blob([JSON.stringify(values(), null, 1)], { type: "application/json" })),
    npz: () => download(`${name}.npz`, npz(values())),
  };
  const buttons = Object.entries(kinds).map(([kind, save]) => el("button", { type: "button", onclick: save, "aria-label": `${title} as ${kind}` }, kind));
  return el("figure", { "data-figure": name, "aria-label": title },
    el("figcaption", {}, el("b", {}, title), el("span", { class: "exports" }, buttons)), el("div", { class: "scroll" }, drawing), more);
}

function asText(drawing) {
  const copy = drawing.cloneNode(true);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.prepend(svg("rect", { width: "100%", height: "100%", fill: paper() }));
  return new XMLSerializer().serializeToString(copy);
}

function download(name, blob) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 5000);
}

function savePng(name, drawing) {
  const image = new Image();
  const [, , width, height] = drawing.getAttribute("viewBox").split(" ").map(Number);
  image.onload = () => {
    const canvas = el("canvas", { width: 2 * width, height: 2 * height });
    canvas.getContext("2d").drawImage(image, 0, 0, 2 * width, 2 * height);
    canvas.toBlob((blob) => download(name, blob));
  };
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(asText(drawing));
}
