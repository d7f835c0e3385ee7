// node drive.mjs CHROMIUM URL OUT_DIR: plays the clip, reloads, plays on; writes what it saw.

import { writeFile } from "node:fs/promises";
import path from "node:path";

import { chromium } from "playwright-core";

const [executablePath, url, out] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
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
  await page.click("#clip");
  await page.waitForFunction(() => globalThis.gain.finished, null, { timeout: 240_000 });
  const after = await page.evaluate(() => ({
    history: globalThis.gain.history,
    learned: globalThis.gain.stream.frames,
    status: document.getElementById("status").textContent,
    state: globalThis.gain.stream
      .exportState()
      .map(({ name, type, dims, data }) => ({ name, type, dims, data: [...data].map(Number) })),
  }));
  return { ...before, ...after };
}
