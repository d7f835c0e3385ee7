// node drive.mjs CHROMIUM URL OUT_DIR [CAMERA.y4m]: plays the clip, or with a file in the place of a
// camera watches that; reloads, plays on; writes what it saw.

import { writeFile } from "node:fs/promises";
import path from "node:path";

import { chromium } from "playwright-core";

const CAMERA_FRAMES = 60;
const [executablePath, url, out, camera] = process.argv.slice(2);
const args = ["--no-sandbox"];
if (camera) {
  args.push("--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream");
  args.push(`--use-file-for-fake-video-capture=${camera}`);
}
const browser = await chromium.launch({ executablePath, args });
const seen = { hosts: [], errors: [] };
try {
  const page = await browser.newPage({ viewport: { width: 1000, height: 1000 } });
  page.on("request", (request) => {
    const { protocol, host } = new URL(request.url());
    if (protocol.startsWith("http") && !seen.hosts.includes(host)) seen.hosts.push(host);
  });
  page.on("pageerror", (error) => seen.errors.push(String(error)));
  page.on("console", (message) => {
    if (message.type() === "error") seen.errors.push(message.text());
  });
  await page.goto(url);
  seen.first = await play(page);
  await page.screenshot({ path: path.join(out, "page.png") });
  await page.reload();
  seen.second = await play(page);
  await page.reload();
  await ready(page);
  await page.click("#reset");
  await page.waitForFunction(() => globalThis.gain.stream.frames === 0);
  await page.reload();
  await ready(page);
  seen.afterReset = await page.evaluate(() => globalThis.gain.restored);
} finally {
  await browser.close();
  await writeFile(path.join(out, "seen.json"), JSON.stringify(seen));
}

async function ready(page) {
  await page.waitForFunction(() => globalThis.gain?.ready, null, { timeout: 120_000 });
}

async function play(page) {
  await ready(page);
  const before = await page.evaluate(() => ({
    restored: globalThis.gain.restored,
    frames: globalThis.gain.stream.frames,
    isolated: crossOriginIsolated,
  }));
  await page.click(camera ? "#webcam" : "#clip");
  if (camera) await watch(page);
  await page.waitForFunction(() => globalThis.gain.finished, null, { timeout: 240_000 });
  const after = await page.evaluate(() => ({
    history: globalThis.gain.history,
    learned: globalThis.gain.stream.frames,
    recorded: globalThis.gain.recorded?.map((rgb) => [...rgb]),
    status: document.getElementById("status").textContent,
    title: document.getElementById("curve-title").textContent,
    scores: ["frozen", "adapted"].map((name) => document.getElementById(`${name}-score`).textContent),
    state: globalThis.gain.stream
      .exportState()
      .map(({ name, type, dims, data }) => ({ name, type, dims, data: [...data].map(Number) })),
  }));
  return { ...before, ...after };
}

async function watch(page) {
  await page.evaluate(() => (globalThis.gain.recorded = []));
  await page.waitForFunction(
    (frames) => globalThis.gain.finished || globalThis.gain.history?.length >= frames,
    CAMERA_FRAMES,
    { timeout: 240_000 },
  );
  await page.click("#stop", { timeout: 5_000 }).catch(() => {}); // it may have stopped by itself
}
