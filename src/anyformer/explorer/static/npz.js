// Write an npz file: .npy arrays in an uncompressed zip.

// {name: {shape, values}} of all arrays in a nested object. A list of objects becomes one array for each key.
export function arrays(value, name = "values", found = {}) {
  if (value === null || value === undefined) return found;
  if (typeof value !== "object") value = [value];
  if (!Array.isArray(value)) {
    for (const [key, one] of Object.entries(value)) arrays(one, name === "values" ? key : `${name}.${key}`, found);
  } else if (value.length && value.every((one) => one !== null && typeof one === "object" && !Array.isArray(one))) {
    const keys = [...new Set(value.flatMap(Object.keys))];
    for (const key of keys) arrays(value.map((one) => one[key] ?? null), name === "values" ? key : `${name}.${key}`, found);
  } else {
    const shape = shapeOf(value);
    if (shape) found[name] = { shape, values: value.flat(shape.length - 1) };
    else value.forEach((one, i) => arrays(one, `${name}.${i}`, found));
  }
  return found;
}

// The shape of a nested list, or null if it is ragged.
function shapeOf(list) {
  if (!list.some(Array.isArray)) return list.some((one) => one !== null && typeof one === "object") ? null : [list.length];
  if (!list.every(Array.isArray)) return null;
  const shapes = list.map(shapeOf);
  return shapes.every((one) => one && String(one) === String(shapes[0])) ? [list.length, ...shapes[0]] : null;
}

function npy({ shape, values }) {
  const text = values.some((one) => typeof one === "string");
  const wide = text ? Math.max(1, ...values.map((one) => [...String(one ?? "")].length)) : 0;
  const size = text ? 4 * wide : 8;
  const dims = shape.map((one) => `${one},`).join(" ");
  const header = `{'descr': '${text ? `<U${wide}` : "<f8"}', 'fortran_order': False, 'shape': (${dims}), }`;
  const padded = header.padEnd(64 * Math.ceil((header.length + 11) / 64) - 11) + "\n";
  const file = new Uint8Array(10 + padded.length + size * values.length);
  file.set([0x93, ...[..."NUMPY"].map((letter) => letter.charCodeAt(0)), 1, 0, padded.length & 255, padded.length >> 8]);
  file.set([...padded].map((letter) => letter.charCodeAt(0)), 10);
  const view = new DataView(file.buffer, 10 + padded.length);
  values.forEach((one, i) => {
    if (text) [...String(one ?? "")].forEach((letter, j) => view.setUint32(size * i + 4 * j, letter.codePointAt(0), true));
    else view.setFloat64(8 * i, one === null ? NaN : Number(one), true);
  });
  return file;
}

const TABLE = Uint32Array.from({ length: 256 }, (_, n) => {
  for (let k = 0; k < 8; k++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1;
  return n;
});

function checksum(bytes) {
  let sum = 0xffffffff;
  for (const byte of bytes) sum = TABLE[(sum ^ byte) & 255] ^ (sum >>> 8);
  return (sum ^ 0xffffffff) >>> 0;
}

// A zip record from pairs of width in bytes and value.
function record(fields) {
  const view = new DataView(new ArrayBuffer(fields.reduce((sum, [width]) => sum + width, 0)));
  let at = 0;
  for (const [width, value] of fields) {
    if (width === 2) view.setUint16(at, value, true);
    else view.setUint32(at, value, true);
    at += width;
  }
  return new Uint8Array(view.buffer);
}

export function npz(numbers) {
  const parts = [], listed = [];
  let at = 0;
  for (const [name, array] of Object.entries(arrays(numbers))) {
    const file = npy(array), title = new TextEncoder().encode(`${name}.npy`);
    const about = [[2, 20], [2, 0x800], [2, 0], [2, 0], [2, 33], [4, checksum(file)], [4, file.length], [4, file.length], [2, title.length], [2, 0]];
    const head = record([[4, 0x04034b50], ...about]);
    listed.push(record([[4, 0x02014b50], [2, 20], ...about, [2, 0], [2, 0], [2, 0], [4, 0], [4, at]]), title);
    parts.push(head, title, file);
    at += head.length + title.length + file.length;
  }
  const size = listed.reduce((sum, one) => sum + one.length, 0);
  const end = record([[4, 0x06054b50], [2, 0], [2, 0], [2, listed.length / 2], [2, listed.length / 2], [4, size], [4, at], [2, 0]]);
  return new Blob([...parts, ...listed, end], { type: "application/zip" });
}
