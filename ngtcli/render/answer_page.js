"use strict";
// What is shown of a stretch is placed above it where there is no room below. Escape hides it, and
// leads from a place in a document back to the stretch from which it was reached. A document that
// was closed is opened where a link leads into it.
let from = null, hidden = null;

function show(event) {
  const stretch = event.target.closest(".stretch");
  if (!stretch || stretch === hidden) return;
  if (hidden) hidden.nextElementSibling.classList.remove("hidden");
  hidden = null;
  const about = stretch.nextElementSibling;
  about.style.top = "";
  const above = stretch.getClientRects()[0].top - about.offsetHeight;
  if (about.getBoundingClientRect().bottom > innerHeight && above > 0)
    about.style.top = `${stretch.offsetTop - about.offsetHeight}px`;
}

function escape(event) {
  if (event.key !== "Escape") return;
  const place = document.activeElement.closest("mark");
  if (place) {
    const back = document.querySelector(place.querySelector("a").hash);
    (from && from.hash === `#${place.id}` ? from : back).focus();
    return;
  }
  for (const stretch of document.querySelectorAll(".stretch:hover, .stretch:focus")) {
    hidden = stretch;
    stretch.nextElementSibling.classList.add("hidden");
  }
}

function follow(event) {
  const link = event.target.closest("a");
  if (!link) return;
  from = link;
  const details = document.querySelector(link.hash).closest("details");
  if (details) details.open = true;
}

document.addEventListener("mouseover", show);
document.addEventListener("focusin", show);
document.addEventListener("keydown", escape);
document.addEventListener("click", follow);
