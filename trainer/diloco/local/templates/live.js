"use strict";
const everyMilliseconds = 3000;
const away = document.getElementById("away");

async function again() {
  try {
    const answer = await fetch(location.href, {cache: "no-store"});
    const text = await answer.text();
    const page = new DOMParser().parseFromString(text, "text/html");
    const fresh = page.querySelector("main"), shown = document.querySelector("main");
    if (!answer.ok || !fresh) throw new Error(text.slice(0, 300));
    away.hidden = true;
    if (getSelection().isCollapsed || "over" in fresh.dataset) {
      document.title = page.title;
      const places = [...shown.querySelectorAll(".scroll")].map(one => one.scrollLeft);
      shown.replaceWith(fresh);
      fresh.querySelectorAll(".scroll").forEach((one, index) => { one.scrollLeft = places[index] || 0; });
    }
    if ("over" in fresh.dataset) return;
  } catch (error) {
    if (away.hidden) away.textContent = `No answer since ${new Date().toLocaleTimeString()}: ${error.message}. Trying again.`;
    away.hidden = false;
  }
  setTimeout(again, everyMilliseconds);
}
setTimeout(again, everyMilliseconds);
