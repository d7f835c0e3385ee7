// Streams a recorded clip through an adaptive file:
//
//   npm ci && node stream.mjs MODEL.adaptive.onnx CLIP_DIR [--out RESULT_DIR] [--batch 1] [--frozen]
//
// Prints one line per frame with the frozen and the adapted label, and with --out writes
// result.json and the final state, one raw little-endian file per tensor.

import { mkdir, readFile, writeFile } from "node:fs/promises";
import path from "node:path";
import { parseArgs } from "node:util";

import * as ort from "onnxruntime-node";

import { AdaptiveStream } from "../web/adaptive-stream.mjs";
import { Clip, toPixelValues } from "../web/clip.mjs";

const { values: flags, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    out: { type: "string" },
    batch: { type: "string", default: "1" },
    frozen: { type: "boolean", default: false },
  },
});
if (positionals.length !== 2) {
  console.error("usage: node stream.mjs MODEL CLIP_DIR [--out DIR] [--batch N] [--frozen]");
  process.exit(2);
}
const [modelPath, clipPath] = positionals;

const header = JSON.parse(await readFile(path.join(clipPath, "clip.json"), "utf8"));
const clip = new Clip(header, await readFile(path.join(clipPath, "clip.bin")));
const stream = await AdaptiveStream.open(ort, modelPath, { intraOpNumThreads: 1 });
const input = stream.session.inputNames[0];

const results = [];
for (let first = 0; first < clip.frames; first += Number(flags.batch)) {
  const size = Math.min(Number(flags.batch), clip.frames - first);
  const pixels = new Float32Array(size * clip.stride);
  for (let row = 0; row < size; row += 1) {
    pixels.set(toPixelValues(clip.frame(first + row), clip), row * clip.stride);
  }
  const shape = [size, 3, clip.height, clip.width];
  const prediction = await stream.step(
    { [input]: new ort.Tensor("float32", pixels, shape) },
    { update: !flags.frozen },
  );
  if (!prediction.finite.data[0]) {
    console.error(`frames ${first} to ${first + size - 1}: not finite, rejected`);
    continue;
  }
  for (let row = 0; row < size; row += 1) results.push(describe(prediction, first + row, row));
}
const learned = stream.frames;
console.error(`${results.length} frames, learned from ${learned}`);
if (flags.out) await save(flags.out, { results, learned });

function describe(prediction, index, row) {
  const width = clip.labels.length;
  const source = prediction.source_probs.data.subarray(row * width, (row + 1) * width);
  const record = {
    index,
    source: source.indexOf(Math.max(...source)),
    adapted: Number(prediction.label.data[row]),
    strength: prediction.strength.data[row],
    gain: prediction.gain.data[row],
  };
  const [frozen, adapted] = [clip.labels[record.source], clip.labels[record.adapted]];
  console.log(`${index}\t${frozen}\t${adapted}\t${record.strength.toFixed(3)}`);
  return record;
}

async function save(folder, summary) {
  await mkdir(folder, { recursive: true });
  const state = [];
  for (const { name, type, dims, data } of stream.exportState()) {
    state.push({ name, type, dims });
    await writeFile(path.join(folder, `${name}.bin`), Buffer.from(data.buffer));
  }
  await writeFile(path.join(folder, "result.json"), JSON.stringify({ ...summary, state }));
}
