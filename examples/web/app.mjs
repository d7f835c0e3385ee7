// The page: frames from a recorded clip or the webcam, the frozen and the adapted answer to each.

import * as ort from "./node_modules/onnxruntime-web/dist/ort.wasm.min.mjs";

import { AdaptiveStream } from "./adaptive-stream.mjs";
import { Clip, toPixelValues } from "./clip.mjs";
import { drawCurves } from "./curves.mjs";
import { dropState, fingerprint, loadState, saveState } from "./storage.mjs";

const WINDOW = 100;
const SAVE_EVERY = 50;
// A camera runs for hours; its curves show the last of it.
const CAMERA_HISTORY = 2000;

const element = (id) => document.getElementById(id);
const folder = new URLSearchParams(location.search).get("demo") ?? "demo";

const app = { history: [], marks: [], shown: 0, running: false };
// What the page has shown, for tests and for the curious; a list in `recorded` collects the frames.
globalThis.gain = app;

start().catch((error) => show(`Cannot start: ${error.message}`));

async function start() {
  ort.env.wasm.wasmPaths = new URL("./node_modules/onnxruntime-web/dist/", import.meta.url).href;
  // Threads need a page that is isolated by its server's headers; serve.py sends them.
  ort.env.wasm.numThreads = crossOriginIsolated ? Math.min(4, navigator.hardwareConcurrency) : 1;
  const model = new Uint8Array(await (await get("model.adaptive.onnx")).arrayBuffer());
  const header = await (await get("clip.json")).json();
  app.clip = new Clip(header, new Uint8Array(await (await get("clip.bin")).arrayBuffer()));
  app.key = await fingerprint(model);
  app.stream = await AdaptiveStream.open(ort, model, { executionProviders: ["wasm"] });
  const saved = await loadState(app.key);
  app.restored = Boolean(saved) && app.stream.importState(saved);
  show(
    app.restored
      ? `Going on with what ${app.stream.frames} frames have taught.`
      : "Nothing learned yet: both answers are the source's.",
  );
  element("clip").onclick = () => run(playClip);
  element("webcam").onclick = () => run(playWebcam);
  element("stop").onclick = () => (app.running = false);
  element("reset").onclick = forget;
  ready(true);
  app.ready = true;
}

async function get(name) {
  const response = await fetch(`${folder}/${name}`);
  if (!response.ok) throw new Error(`${folder}/${name}: ${response.status}; see README.md`);
  return response;
}

async function run(play) {
  app.running = true;
  app.finished = false;
  ready(false);
  Object.assign(app, { history: [], marks: [], shown: 0 });
  try {
    await play();
    await saveState(app.key, app.stream.exportState());
    show(`Learned from ${app.stream.frames} frames; kept in this browser.`);
  } catch (error) {
    show(`Stopped: ${error.message}`);
  }
  app.running = false;
  app.finished = true;
  ready(true);
}

async function playClip() {
  for (let index = 0; index < app.clip.frames && app.running; index += 1) {
    await take(app.clip.frame(index), app.clip.truth[index], app.clip.conditions[index]);
  }
}

async function playWebcam() {
  const media = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  const video = document.createElement("video");
  try {
    video.srcObject = media;
    await video.play();
    const { width, height } = app.clip;
    const canvas = new OffscreenCanvas(width, height);
    const context = canvas.getContext("2d", { willReadFrequently: true });
    while (app.running) {
      // The middle of the picture, in the network's aspect ratio.
      const scale = Math.min(video.videoWidth / width, video.videoHeight / height);
      const [cutWidth, cutHeight] = [width * scale, height * scale];
      const left = (video.videoWidth - cutWidth) / 2;
      const top = (video.videoHeight - cutHeight) / 2;
      context.drawImage(video, left, top, cutWidth, cutHeight, 0, 0, width, height);
      const { data } = context.getImageData(0, 0, width, height);
      await take(data.filter((_, position) => position % 4 !== 3), null, null);
      if (app.history.length > CAMERA_HISTORY) app.history.shift();
    }
  } finally {
    for (const track of media.getTracks()) track.stop();
  }
}

/** One frame through the network: both answers come from the same call. */
async function take(rgb, truth, condition) {
  const { clip, stream, history } = app;
  const pixels = toPixelValues(rgb, clip);
  const input = new ort.Tensor("float32", pixels, [1, 3, clip.height, clip.width]);
  const began = performance.now();
  const prediction = await stream.step(
    { [stream.session.inputNames[0]]: input },
    { update: element("learn").checked },
  );
  const took = performance.now() - began;
  if (!prediction.finite.data[0]) throw new Error("the network returned NaN or infinity");
  const [frozen, adapted] = [prediction.source_probs.data, prediction.probs.data];
  app.recorded?.push(rgb.slice());
  if (condition !== null && condition !== app.condition) {
    app.marks.push({ index: history.length, name: condition });
  }
  app.condition = condition;
  history.push({
    frozen: frozen.indexOf(Math.max(...frozen)),
    adapted: Number(prediction.label.data[0]),
    strength: prediction.strength.data[0],
    confidence: { frozen: Math.max(...frozen), adapted: Math.max(...adapted) },
    truth,
    took,
  });
  app.shown += 1;
  if (app.shown % SAVE_EVERY === 0) await saveState(app.key, stream.exportState());
  draw(rgb, { frozen, adapted, truth, condition });
  await new Promise(requestAnimationFrame);
}

function draw(rgb, { frozen, adapted, truth, condition }) {
  const { clip, history, stream } = app;
  drawFrame(rgb);
  const named = truth === null ? "" : `shown: ${clip.labels[truth]}`;
  element("condition").textContent = [condition, named].filter(Boolean).join(" · ");
  list("frozen-top", frozen, truth);
  list("adapted-top", adapted, truth);
  const judged = history.filter((item) => item.truth !== null);
  for (const name of ["frozen", "adapted"]) {
    element(`${name}-score`).textContent = judged.length
      ? `${percent(mean(judged, name, correct))} of ${judged.length} right`
      : `${percent(mean(history.slice(-WINDOW), name, confidence))} sure, on average`;
  }
  if (app.shown % 5 === 0) drawHistory();
  const { took } = history.at(-1);
  show(`Frame ${app.shown}, learned from ${stream.frames}, ${took.toFixed(0)} ms a frame`);
}

function drawFrame(rgb) {
  const { width, height } = app.clip;
  const image = new ImageData(width, height);
  for (let pixel = 0; pixel < width * height; pixel += 1) {
    image.data.set(rgb.subarray(3 * pixel, 3 * pixel + 3), 4 * pixel);
    image.data[4 * pixel + 3] = 255;
  }
  const small = new OffscreenCanvas(width, height);
  small.getContext("2d").putImageData(image, 0, 0);
  const canvas = element("frame");
  canvas.getContext("2d").drawImage(small, 0, 0, canvas.width, canvas.height);
}

/** Accuracy where the truth is known, as it is of a clip; of a camera how sure the answers are. */
function drawHistory() {
  const { history, marks } = app;
  const judged = history.some((item) => item.truth !== null);
  const value = judged ? correct : confidence;
  element("curve-title").textContent =
    `${judged ? "Accuracy" : "Confidence"} over the last ${WINDOW} frames`;
  const series = ["frozen", "adapted"].map((name) => ({ name, values: running(name, value) }));
  drawCurves(element("curve"), series, marks);
  const strength = history.map((item) => item.strength);
  drawCurves(element("strength"), [{ name: "adapted", values: strength }], marks);
}

/** Mean of a value over the last `WINDOW` frames, at every frame. */
function running(name, value) {
  let sum = 0;
  return app.history.map((item, index) => {
    sum += value(item, name);
    const left = app.history[index - WINDOW];
    if (left) sum -= value(left, name);
    return sum / Math.min(index + 1, WINDOW);
  });
}

function list(id, probs, truth) {
  const best = [...probs.keys()].sort((a, b) => probs[b] - probs[a]).slice(0, 3);
  const items = best.map((index) => {
    const item = document.createElement("li");
    const meter = document.createElement("meter");
    meter.value = probs[index];
    item.textContent = `${app.clip.labels[index]} ${percent(probs[index])}`;
    item.classList.toggle("right", index === truth);
    item.append(meter);
    return item;
  });
  element(id).replaceChildren(...items);
}

async function forget() {
  ready(false);
  try {
    // What is kept goes first: a reload in between must not bring back what was reset.
    await dropState(app.key);
    app.stream.reset();
    show("Nothing learned yet: both answers are the source's.");
  } catch (error) {
    show(`Not reset: ${error.message}`);
  }
  ready(true);
}

function ready(idle) {
  for (const id of ["clip", "webcam", "reset"]) element(id).disabled = !idle;
  element("stop").disabled = idle;
}

const correct = (item, name) => (item[name] === item.truth ? 1 : 0);
const confidence = (item, name) => item.confidence[name];
const mean = (items, name, value) =>
  items.reduce((sum, item) => sum + value(item, name), 0) / items.length;
const percent = (share) => `${(100 * share).toFixed(1)} %`;
const show = (text) => (element("status").textContent = text);
