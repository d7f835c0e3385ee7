// Which part of the page is shown: #/ is the overview, #/camera/NAME a camera, #/events the events.

import { hideCamera, showCamera } from "/camera.js";
import { showEvents } from "/events.js";
import { showOverview } from "/overview.js";
import { at, fillTerms } from "/words.js";

fillTerms();

function route() {
  const [, page = "", name = ""] = location.hash.split("/");
  const shown = page === "camera" && name ? "camera" : page === "events" ? "events" : "overview";
  for (const id of ["overview", "camera", "events"]) at(id).hidden = id !== shown;
  at("to-cameras").toggleAttribute("aria-current", shown !== "events");
  at("to-events").toggleAttribute("aria-current", shown === "events");
  if (shown === "camera") showCamera(decodeURIComponent(name));
  else hideCamera();
  if (shown === "overview") showOverview();
  if (shown === "events") showEvents();
  scrollTo(0, 0);
}

addEventListener("hashchange", route);
document.addEventListener("logged-in", route);
route();
