// Asking the service, logging in, and saying what came of it.

import { at, chip } from "/words.js";

const RETRY_MS = 2000;

export const online = { now: false };

export async function api(path, options = {}) {
  const reply = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(8000), ...options });
  if (reply.status === 401 && path !== "/api/session") askForToken();
  if (!reply.ok) {
    const { detail } = await reply.json().catch(() => ({ detail: reply.statusText }));
    const problem = new Error(typeof detail === "string" ? detail : reply.statusText);
    problem.status = reply.status;
    throw problem;
  }
  setOnline(true);
  return reply.json().catch(() => null);
}

export function post(path, body) {
  const headers = body === undefined ? {} : { "Content-Type": "application/json" };
  return api(path, { method: "POST", headers, body: body === undefined ? undefined : JSON.stringify(body) });
}

export function setOnline(now) {
  if (online.now === now && at("online").textContent !== "connecting") return;
  online.now = now;
  document.body.classList.toggle("offline", !now);
  chip(at("online"), now ? "online" : "offline", now ? "good" : "bad");
  document.dispatchEvent(new Event("online-changed"));
}

// Does something again and again while its page is shown; tells nobody who does not look.
export async function forever(task, pauseMs, wanted) {
  for (;;) {
    let pause = pauseMs;
    try {
      if (!document.hidden && at("login").hidden && wanted()) await task();
    } catch (problem) {
      pause = RETRY_MS;
      if (problem.status === undefined) setOnline(false);
    }
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

export function toast(text) {
  at("toast").textContent = text;
  at("toast").classList.add("shown");
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => at("toast").classList.remove("shown"), 4000);
}

export function confirmed(text, yes) {
  const dialog = at("ask");
  at("ask-text").textContent = text;
  at("ask-yes").textContent = yes;
  dialog.showModal();
  return new Promise((resolve) => {
    // Not by the close event: it comes later, and would answer a dialog opened meanwhile.
    at("ask-yes").onclick = () => { dialog.close(); resolve(true); };
    at("ask-no").onclick = () => { dialog.close(); resolve(false); };
    dialog.oncancel = () => resolve(false);
  });
}

function askForToken() {
  if (!at("login").hidden) return;
  document.body.classList.add("locked");
  at("login").hidden = false;
  at("token").focus();
}

at("login-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  at("login-problem").textContent = "";
  try {
    await post("/api/session", { token: at("token").value.trim() });
    at("token").value = "";
    at("login").hidden = true;
    document.body.classList.remove("locked");
    document.dispatchEvent(new Event("logged-in"));
  } catch (problem) {
    at("login-problem").textContent = problem.status === 401 ? "That is not the token." : problem.message;
  }
});
