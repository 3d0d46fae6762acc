/* The button below a page's title saves the page's notebook as a file. From disk a browser would show the file as text,
   whatever the link says, and lets no script read it; but it loads scripts, so the notebook also lies there as one. */
"use strict";

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a.btn-download-notebook-button");
  if (!link) return;
  link.download = "";
  if (location.protocol !== "file:") return;
  event.preventDefault();
  const script = document.createElement("script");
  script.src = `${link.href}.js`;
  document.head.append(script);
});

function saveNotebook(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/x-ipynb+json" }));
  link.download = name;
  link.click();
}
