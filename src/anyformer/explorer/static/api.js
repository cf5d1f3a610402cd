// Requests to the server, and decoding of its 16-bit arrays.

export async function models() { return (await get("api/models")).models; }
export async function describe(id) { return get(`api/models/${encodeURIComponent(id)}`); }

async function get(path, signal) { return read(await fetch(path, { signal })); }

export async function ask(id, view, body, signal) {
  const response = await fetch(`api/models/${encodeURIComponent(id)}/${view}`, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal,
  });
  return read(response);
}

async function read(response) {
  const found = await response.json().catch(() => ({ error: `The server answered ${response.status}.` }));
  if (!response.ok) throw new Error(found.error || `The server answered ${response.status}.`);
  return found;
}

// {shape, low, high, u16} -> {shape, values}
export function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed.u16), (letter) => letter.charCodeAt(0));
  const levels = new DataView(bytes.buffer);
  const span = packed.high - packed.low;
  const values = new Float64Array(bytes.length / 2);
  for (let i = 0; i < values.length; i++) values[i] = packed.low + (levels.getUint16(2 * i, true) / 65535) * span;
  return { shape: packed.shape, values };
}

// Index n along the first axis.
export function part(tensor, n) {
  const shape = tensor.shape.slice(1);
  const size = shape.reduce((a, b) => a * b, 1);
  return { shape, values: tensor.values.subarray(n * size, (n + 1) * size) };
}
